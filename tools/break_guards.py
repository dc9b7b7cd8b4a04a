"""Takes each guard of the hook away, one after the other, in a copy of the repository, and sees that a test fails.

``python tools/break_guards.py [GUARD]...``; without a name, all that ``guards.py`` lists. First the tests run with
every guard in its place, and must pass. No GPU is needed. Ends with 1 if there is a guard that no test misses.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree as ET

from guards import GUARDS
from source_changes import Guard

ROOT = Path(__file__).resolve().parent.parent
WIDTH = max(map(len, GUARDS))
COPIED = ("diode_lut", "tests", "schemas", "tables", "pyproject.toml")


def main() -> int:
    """Run what the command line says, and say how to exit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="GUARD", help="the names of guards, as --list has them")
    parser.add_argument("--list", action="store_true", help="print the names of all guards, and where their code is")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - GUARDS.keys()):
        parser.error(f"no such guard: {', '.join(unknown)}; --list names them")
    guards = {name: GUARDS[name] for name in options.names or GUARDS}
    if options.list:
        print("\n".join(f"{name:<{WIDTH}}  {guard.module}.{guard.name}" for name, guard in guards.items()))
        return 0
    with tempfile.TemporaryDirectory() as directory:
        return Copy(Path(directory)).try_without(guards)


class Copy:
    """A copy of the repository, to break guards in."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, directory)

    def try_without(self, guards: dict[str, Guard]) -> int:
        """Print for each guard which tests fail without it; 1 if there is one without which none does."""
        start = time.monotonic()
        if failed := self._failing({test for guard in guards.values() for test in guard.tests}):
            print(f"fail with every guard in its place: {', '.join(failed)}")
            return 1
        missed = 0
        for name, guard in guards.items():
            failed = self._failing_without(guard)
            print(f"{name:<{WIDTH}}  {'caught by ' + ', '.join(failed) if failed else 'NOT CAUGHT'}", flush=True)
            missed += not failed
        print(f"{len(guards)} guards, {missed} not caught, {time.monotonic() - start:.0f} s")
        return int(missed > 0)

    def _failing_without(self, guard: Guard) -> list[str]:
        path = self._directory / guard.path
        whole = path.read_text(encoding="utf-8")
        path.write_text(guard.taken_from(whole), encoding="utf-8")
        try:
            return self._failing(guard.tests)
        finally:
            path.write_text(whole, encoding="utf-8")

    def _failing(self, tests: Iterable[str]) -> list[str]:
        """The names of those that fail, each once, whatever its parameters."""
        results = self._directory / "results.xml"
        results.unlink(missing_ok=True)
        options = ["-q", "-p", "no:cacheprovider", "--junitxml", str(results)]
        command = [sys.executable, "-m", "pytest", *options, *sorted(tests)]
        done = subprocess.run(command, cwd=self._directory, env=self._environment(), capture_output=True, text=True)
        if done.returncode not in (0, 1):
            sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        cases = [case for case in ET.parse(results).iter("testcase") if case.find("failure") is not None]
        return sorted({case.attrib["name"].partition("[")[0] for case in cases})

    def _environment(self) -> dict[str, str]:
        """One without a GPU, so that the same tests run everywhere, and without bytecode, which might be of before."""
        path = os.pathsep.join([str(self._directory), *filter(None, [os.environ.get("PYTHONPATH")])])
        ours = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
        return {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "1", **os.environ, **ours}


if __name__ == "__main__":
    sys.exit(main())
