"""Start a program with the hook armed in all its processes, pass signals on to it, and return its exit code.

A program that shares our terminal stays in our process group, so Ctrl-C and Ctrl-Z reach it as ever. Any other program
gets a session of its own, in which a signal for us reaches all its processes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, NamedTuple

from diode_lut.errors import ProgramError, as_command

STARTUP = str(Path(__file__).resolve().parents[1] / "startup")
"""The directory of the module ``sitecustomize``, which arms the hook."""

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes if a program cannot be started, as in shells."""

_GRACE_S = 5.0
"""How long the other processes of a program may take to end after a signal, in seconds."""

_LEFT_S = 1.0
"""How long a program's other processes may take to end after it, in seconds, until they count as left."""

_END_S = 60.0
"""How long a program may take to end when its time is over, in seconds."""

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_TYPED = (signal.SIGINT, signal.SIGQUIT)
"""The signals from a terminal to all processes in the foreground."""

_MARKS = "_DIODE_LUT_RUN"
"""The variable with the marks of all programs that a process is part of, the innermost last."""

_LEAKS = re.compile(r"^nanobind: leaked .*?refleaks\.html\n?", flags=re.MULTILINE | re.DOTALL)


def without_leaks(output: str) -> str:
    """Return a program's output without the 40 lines on leaks of Triton 3.9 at the end of each process."""
    return _LEAKS.sub("", output)


class Ended(NamedTuple):
    """The end of a program: its exit code as in shells, its wall time in seconds, and whether we got a signal.

    ``left`` is the number of its processes that go on, such as servers. It is known on Linux.
    """

    code: int
    seconds: float
    interrupted: bool
    left: int = 0


class Streams(NamedTuple):
    """Where a program's output goes: files or descriptors, None for where ours goes."""

    out: IO[bytes] | int | None = None
    err: IO[bytes] | int | None = None


INHERITED = Streams()
"""The output goes where ours goes."""


def armed(environment: Mapping[str, str], **variables: str) -> dict[str, str]:
    """Return the environment in which every Python process imports diode_lut, with more variables."""
    path = os.pathsep.join([STARTUP, *filter(None, [environment.get("PYTHONPATH")])])
    return {**environment, "DIODE_LUT": "1", "PYTHONPATH": path, **variables}


@contextmanager
def cold(environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the environment in which Inductor and Triton find no cache, and leave none."""
    with tempfile.TemporaryDirectory(prefix="diode-lut-caches-", ignore_cleanup_errors=True) as directory:
        kept = {name: value for name, value in environment.items() if name != "TRITON_CACHE_DIR"}
        yield {**kept, "TORCHINDUCTOR_CACHE_DIR": directory}


def run_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    streams: Streams = INHERITED,
    limit_s: float | None = None,
) -> Ended:
    """Run a program to its end. ProgramError if it cannot be started.

    Our first signal is passed on, and the program takes its time to end. The second kills it. After ``limit_s`` seconds
    it gets SIGINT, as by Ctrl-C, and is killed if it does not end then. In this case the exit code is 0.
    """
    program = _Running(environment, shares_terminal=os.isatty(0))
    start = time.monotonic()
    with program.forwarding():
        process = program.start(command, streams)
        with suppress(subprocess.TimeoutExpired):
            process.wait(limit_s)
        seconds = time.monotonic() - start
        is_over_time = process.poll() is None
        if is_over_time or program.received:
            program.end()
        left = program.await_others(_LEFT_S)
    code = 0 if is_over_time and not program.received else process.wait()
    return Ended(128 - code if code < 0 else code, seconds, bool(program.received), left)


class _Running:
    """A running program, and our signals meanwhile."""

    def __init__(self, environment: Mapping[str, str], *, shares_terminal: bool) -> None:
        self.received: list[int] = []
        self._mark = os.urandom(8).hex()
        self._environment = {**environment, _MARKS: f"{environment.get(_MARKS, '')} {self._mark}"}
        self._shares_terminal = shares_terminal
        self._passed_on = 0
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def forwarding(self) -> Iterator[None]:
        """Pass signals on instead of ending with them. Ignored signals stay ignored."""
        handled = [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
        before = [(number, signal.signal(number, self._receive)) for number in handled]
        try:
            yield
        finally:
            for number, handler in before:
                signal.signal(number, handler)

    def start(self, command: Sequence[str], streams: Streams) -> subprocess.Popen[bytes]:
        """Start the program, and pass on earlier signals."""
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own program
                command,
                env=self._environment,
                stdout=streams.out,
                stderr=streams.err,
                start_new_session=not self._shares_terminal,
            )
        except OSError as error:
            raise _not_started(command[0], error) from error
        except ValueError as error:  # a zero byte
            raise ProgramError(f"{command[0]}: cannot be started: {error}", NOT_FOUND) from error
        for number in self.received:
            self._pass_on(number)
        return self._process

    def end(self) -> None:
        """Interrupt the program if it still runs, and kill its remaining processes when their time is over."""
        assert self._process is not None
        if self._process.poll() is None:
            self._signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        self.await_others(_GRACE_S)
        self._kill()

    def await_others(self, seconds: float) -> int:
        """Wait for the end of all its processes, at most so many seconds, and return how many go on.

        None is seen while the last is replaced by another program, because its environment is not there then. So they
        have ended only if two looks in a row see none.
        """
        deadline, unseen = time.monotonic() + seconds, 0
        while True:
            running = len(self._processes())
            unseen = 0 if running else unseen + 1
            if unseen == 2 or (running and time.monotonic() >= deadline):
                return running
            time.sleep(0.05 if running else 0.01)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(number)
        if self._process is not None:
            self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        if self._shares_terminal and number in _TYPED:
            return  # the terminal has sent it to the program as well
        self._passed_on += 1
        if self._passed_on > 1:
            self._kill()
        else:
            self._signal(number)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            if self._shares_terminal:
                self._process.send_signal(number)
            else:
                os.killpg(self._process.pid, number)

    def _kill(self) -> None:
        assert self._process is not None
        if not self._shares_terminal:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        for pid in self._processes():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _processes(self) -> set[int]:
        """Return all running processes of the program.

        On Linux the environment tells them, even in sessions of their own, as the ranks of torchrun are.
        """
        assert self._process is not None
        mark = self._mark.encode()
        found = {int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in _content(path)}
        return found | ({self._process.pid} if self._process.poll() is None else set())


def _content(path: Path) -> bytes:
    """Read a file of /proc. It is empty for ended processes, and for other users' processes."""
    with suppress(OSError):
        return path.read_bytes()
    return b""


def _not_started(program: str, error: OSError) -> ProgramError:
    remedy = ""
    if not program:
        remedy = "; the program's name is empty: a variable may be unset"
    elif program.endswith(".py") and (" " not in program or Path(program).is_file()):
        remedy = f"; to run a script: {as_command(Path(sys.executable).name, Path(program))}"
    elif " " in program:
        remedy = "; a program and its arguments are separate words: leave out the quotes around them"
    elif re.match(r"\w+=", program):
        remedy = "; set variables before diode-lut, or start the program with env"
    if isinstance(error, FileNotFoundError):
        return ProgramError(f"{program}: no such program{remedy}", NOT_FOUND)
    return ProgramError(f"{program}: cannot be started: {error.strerror}{remedy}", NOT_EXECUTABLE)
