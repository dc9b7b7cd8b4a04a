"""Programs in processes of their own, which need not import torch again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "tests" / "programs" / "run_in_forks.py"

_NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


class Forks:
    """Runs each program in a new fork of a process that has imported something, and does nothing else.

    They see no GPU: CUDA cannot be used in a fork of a process that has asked for it, as importing may.
    """

    def __init__(self, parent: subprocess.Popen[str], directory: Path) -> None:
        self._parent, self._directory = parent, directory

    def run(self, *arguments: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
        """What ``python ARGUMENTS`` would do, in this environment but for the given variables."""
        outputs = [self._directory / name for name in ("stdout", "stderr")]
        for output in outputs:
            output.write_text("")
        request = {
            "arguments": arguments,
            "environment": environment() | _NO_GPU | variables,
            "cwd": str(cwd),
            **{output.name: str(output) for output in outputs},
        }
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        print(json.dumps(request), file=self._parent.stdin, flush=True)
        code = self._parent.stdout.readline()
        assert code, "the process that is to fork has ended"
        return subprocess.CompletedProcess(arguments, int(code), *(output.read_text() for output in outputs))


@contextmanager
def forks_after(beginning: str) -> Iterator[Forks]:
    """Forks of a process that has run ``beginning``, which starts no threads."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, str(PROGRAM), beginning]
    with (
        tempfile.TemporaryDirectory() as directory,
        subprocess.Popen(command, env=environment() | _NO_GPU, text=True, **pipes) as parent,  # type: ignore[call-overload]
    ):
        yield Forks(parent, Path(directory))


def environment() -> dict[str, str]:
    """That of a process in which this repository can be imported, and Inductor starts no processes."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
