"""Runs the tests that touch Inductor with every release of PyTorch that the hook supports, without a GPU.

``python tools/test_versions.py [RELEASE]...``, for example ``2.12``; without one, all. A release is installed from PyPI
into .versions, once, beside everything else that this Python has. On Linux that is a CUDA build. The gigabytes of
libraries that it asks for are left out: the CUDA runtime is installed, the others are replaced by empty ones, since
nothing in them is called where there is no GPU.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = ROOT / ".versions"
TESTS = (
    *("tests/hook", "tests/interpreter", "tests/compile_check", "tests/measure", "tests/templates"),
    *("tests/test_import.py", "tests/test_post_import.py", "tests/test_hardware.py", "tests/test_compare.py"),
)
RUNTIME = "nvidia-cuda-runtime==13.5.37"  # for CUDA 13; a newer one serves PyTorch built for an older one as well


class Release(NamedTuple):
    """Of PyTorch and of the Triton that it asks for, with what pip fetches for them, in megabytes."""

    torch: str
    triton: str
    download: int


RELEASES = {
    "2.11": Release("2.11.0", "3.6.0", 719),
    "2.12": Release("2.12.1", "3.7.1", 730),
    "2.13": Release("2.13.0", "3.7.1", 725),
    "2.14": Release("2.14.1", "3.8.0", 803),
    "2.15": Release("2.15.0", "3.9.0", 825),
}


def main(names: Sequence[str]) -> int:
    """Install and test each release; 1 if a test fails, or none passes, with any."""
    results = {name: test(RELEASES[name], install(RELEASES[name])) for name in names or RELEASES}
    print("\nPyTorch  passed  skipped  failed")
    for name, (passed, skipped, failed) in results.items():
        print(f"{RELEASES[name].torch:<7}  {passed:>6}  {skipped:>7}  {failed:>6}")
    return int(any(failed or not passed for passed, _, failed in results.values()))


def install(release: Release) -> Path:
    """The directory that has the release, to be put before all others on Python's path."""
    directory = INSTALLED / release.torch
    if (directory / ".ready").exists():
        return directory
    shutil.rmtree(directory, ignore_errors=True)
    wanted = [f"torch=={release.torch}", f"triton=={release.triton}", RUNTIME]
    print(f"Installing {', '.join(wanted)} in {directory}: pip fetches {release.download} MB, if it has not yet")
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--target", str(directory)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *wanted], check=True)
    _complete(directory)
    (directory / ".ready").touch()
    return directory


def _complete(directory: Path) -> None:
    """Give PyTorch's libraries all that they are linked with."""
    libraries = directory / "torch" / "lib"
    for runtime in directory.glob("nvidia/*/lib/libcudart.so.*"):
        (libraries / runtime.name).symlink_to(runtime)
    command = ["readelf", "-d", *map(str, libraries.glob("*.so"))]
    needed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = set(re.findall(r"\(NEEDED\).*\[(lib(?:cu|nccl|nv).*)\]", needed)) - {"libcuda.so.1"}  # at the start, never
    for library in sorted(libraries / name for name in names):
        if not library.exists():
            _make_empty(library)
    (directory / "sitecustomize.py").write_text(_AT_START, encoding="utf-8")


_AT_START = """
import os, sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

sys.setdlopenflags(os.RTLD_LAZY)
_after = len(sys.path) - sys.path[::-1].index(os.path.dirname(__file__))
_next = PathFinder.find_spec("sitecustomize", sys.path[_after:])
if _next is not None:
    _next.loader.exec_module(module_from_spec(_next))
"""
"""Run when Python starts, with the next module of this name, which a test may have written. Functions of the empty
libraries are looked for when they are called, which is never."""


def _make_empty(library: Path) -> None:
    # Data, unlike functions, has to be there; torch 2.15 is the first that wants some.
    wanted = {"libnvshmem_host": ("char nvshmem_selected_device_transport[64];", "NVSHMEM { *; };")}
    source, versions = wanted.get(library.name.partition(".")[0], ("", "{};"))
    script = library.with_suffix(".map")
    script.write_text(versions, encoding="utf-8")
    options = ["-shared", "-xc", "-", f"-Wl,-soname,{library.name}", f"-Wl,--version-script={script}"]
    subprocess.run(["cc", *options, "-o", library], input=source, text=True, check=True)
    script.unlink()


def test(release: Release, directory: Path) -> tuple[int, int, int]:
    """How many tests passed, were skipped, and failed."""
    paths = [str(directory), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""}
    says = [sys.executable, "-c", "import torch; print(torch.__version__)"]
    found = subprocess.run(says, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    print(f"PyTorch {found}", flush=True)
    assert found.partition("+")[0] == release.torch, f"{directory} does not come first"
    results = directory / "results.xml"
    results.unlink(missing_ok=True)
    options = ["-q", "-W", "default", "--junitxml", str(results)]  # each release warns of other things
    subprocess.run([sys.executable, "-m", "pytest", *options, *TESTS], cwd=ROOT, env=environment, check=False)
    counts = ET.parse(results).getroot()[0].attrib
    tests, skipped, failed, errors = (int(counts[key]) for key in ("tests", "skipped", "failures", "errors"))
    return tests - skipped - failed - errors, skipped, failed + errors


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
