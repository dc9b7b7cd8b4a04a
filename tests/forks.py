"""Programs in processes of their own, which need not import torch again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from diode_lut.programs.run import without_leaks

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "tests" / "programs" / "run_in_forks.py"

INDUCTOR = """
import torch, torch._inductor.compile_fx, torch._inductor.kernel.bmm, torch._inductor.kernel.mm
import torch._dynamo.backends.inductor, torch._inductor.codegen.cpp_bmm_template
from tests.quick import quicken
quicken()
"""
"""What programs import that compile."""

_NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def first_compile(device: str) -> str:
    """A program that does what the first compile of a process for a device does, and later ones do not do again.

    It finds out about PyTorch, Triton and the CPU, in seconds, with a C++ compiler, and makes the patterns of attention
    that Inductor looks for.
    """
    return f"""
import torch
from torch._inductor.codecache import CacheBase, torch_key
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._inductor.fx_passes.fuse_attention import _sfdp_init
from torch._inductor.pattern_matcher import init_once_fakemode
CacheBase.get_system(), torch_key(), pick_vec_isa()
init_once_fakemode(_sfdp_init)(torch.device({device!r}))
"""


class Forks:
    """Runs each program in a new fork of a process that has imported something, and does nothing else.

    They see no GPU: CUDA cannot be used in a fork of a process that has asked for it, as importing may.
    """

    def __init__(self, parent: subprocess.Popen[str], directory: Path) -> None:
        self._parent, self._directory = parent, directory

    @property
    def pid(self) -> int:
        """The number of the process that is forked."""
        return self._parent.pid

    @contextmanager
    def started(self, *arguments: str, cwd: Path = ROOT, **variables: str) -> Iterator[Forked]:
        """What ``python ARGUMENTS`` would be, in this environment but for the given variables; it is killed at the end.

        One at a time.
        """
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
        process = Forked(int(self._parent.stdout.readline()), self._parent.stdout, outputs)
        try:
            yield process
        finally:
            process.send(signal.SIGKILL)
            process.wait()

    def run(self, *arguments: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
        """What becomes of such a process."""
        with self.started(*arguments, cwd=cwd, **variables) as process:
            return process.wait()


class Forked:
    """A process that has been started."""

    def __init__(self, pid: int, answers: IO[str], outputs: list[Path]) -> None:
        self._pid, self._answers, self._outputs = pid, answers, outputs
        self._code: int | None = None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless its end has been waited for."""
        if self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def wait(self) -> subprocess.CompletedProcess[str]:
        """Its exit code and what it printed, after its end."""
        if self._code is None:
            self._code = int(self._answers.readline())
        stdout, stderr = (output.read_text() for output in self._outputs)
        return subprocess.CompletedProcess([], self._code, stdout, without_leaks(stderr))


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
