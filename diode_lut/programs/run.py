"""Run a program with the hook armed in all its processes, and account for it: its receipt, and the time it saves.

A program that shares our terminal stays in our process group, so Ctrl-C and Ctrl-Z reach it as ever. Any other program
gets a session of its own, in which a signal for us reaches all its processes.

The account is an estimate. A receipt does not know how often a compiled GEMM runs, so each runs once per call. The time
of ``aten`` is a roofline, its lower bound. The saved share comes from the row's gain, or from the model's expectation.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shutil import move, rmtree
from types import FrameType
from typing import IO, NamedTuple

from diode_lut.decide.catalog import open_file
from diode_lut.decide.sources import THRESHOLD, Source, shown, source_of
from diode_lut.errors import DiodeLutError, ProgramError, ReceiptError, as_command, counted
from diode_lut.files import write_atomically
from diode_lut.hardware import Hardware, roofline_ns
from diode_lut.problem import NO_EPILOGUE, Problem
from diode_lut.receipts import FREEZABLE, GeneratedKernel, Hit, Receipt, merge_receipts, read_receipt, receipt_bytes
from diode_lut.receipts.receipt_file import AFTER_RUN
from diode_lut.receipts.summary import Loss, freezing, losses
from diode_lut.templates.config import ATEN, baseline

STARTUP = str(Path(__file__).resolve().parents[1] / "startup")  # has ``sitecustomize``, which arms the hook
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit codes if a program cannot be started, as in shells
_GRACE_S = 5.0  # how long the other processes of a program may take to end after a signal, in seconds
_LEFT_S = 1.0  # how long a program's other processes may take to end after it, in seconds, until they count as left
_LOOK_S = 0.1  # The longest time between two looks at programs, in seconds. The end of the first is seen at once
_END_S = 60.0  # how long a program may take to end when its time is over, in seconds

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_TYPED = (signal.SIGINT, signal.SIGQUIT)  # the signals from a terminal to all processes in the foreground
_MARKS = "_DIODE_LUT_RUN"  # the variable with the marks of all programs that a process is part of, the innermost last

_LEAKS = re.compile(r"^nanobind: leaked .*?refleaks\.html\n?", flags=re.MULTILINE | re.DOTALL)


def without_leaks(output: str) -> str:
    """Return a program's output without the 40 lines on leaks of Triton 3.9 at the end of each process."""
    return _LEAKS.sub("", output)


class Ended(NamedTuple):
    """The end of a program: its exit code as in shells, its wall time in seconds, and the first signal for us, or 0.

    ``left`` is the number of its processes that go on, such as servers. It is known on Linux. ``is_cut`` says whether
    the program still ran when the signal came.
    """

    code: int
    seconds: float
    signal: int = 0
    left: int = 0
    is_cut: bool = False


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


class Start(NamedTuple):
    """The environment of a program to start, and where its output goes: to files or descriptors, or where ours goes."""

    environment: Mapping[str, str]
    out: IO[bytes] | int | None = None
    err: IO[bytes] | int | None = None


def run_program(command: Sequence[str], environment: Mapping[str, str], out: int | None = None) -> Ended:
    """Run a program to its end, as ``run_at_once`` does."""
    return run_at_once(command, [Start(environment, out)])[0]


def run_at_once(
    command: Sequence[str],
    starts: Sequence[Start],
    limit_s: float | None = None,
    meanwhile: Callable[[Sequence[bool]], None] | None = None,
) -> list[Ended]:
    """Run a program in several environments at once to their ends. ProgramError if it cannot be started.

    ``meanwhile`` is called often, with whether each runs. Our first signal is passed on, and the programs take their
    time to end. The second kills them. After ``limit_s`` seconds they get SIGINT, as by Ctrl-C, and are killed if they
    do not end then. In this case the exit code is 0.
    """
    programs = [_Running(start, shares_terminal=os.isatty(0)) for start in starts]
    begin = time.monotonic()

    def receive(number: int, _frame: FrameType | None) -> None:
        for program in programs:
            program.receive(number)

    with ExitStack() as stack:
        for each in _FORWARDED:
            if signal.getsignal(each) is not signal.SIG_IGN:  # ignored signals stay ignored
                stack.callback(signal.signal, each, signal.signal(each, receive))
        processes = [program.start(command) for program in programs]
        seconds, running = [0.0] * len(processes), [True] * len(processes)
        while any(running) and (limit_s is None or time.monotonic() < begin + limit_s):
            if meanwhile is not None:
                meanwhile(running)
            with suppress(subprocess.TimeoutExpired):
                processes[running.index(True)].wait(_LOOK_S)
            for number, process in enumerate(processes):
                if running[number]:
                    seconds[number], running[number] = time.monotonic() - begin, process.poll() is None
        left = []
        for program, is_over_time in zip(programs, running, strict=True):
            if is_over_time or program.received:
                program.end()
            left.append(program.await_others(_LEFT_S))
    ended = []
    for number, (program, process) in enumerate(zip(programs, processes, strict=True)):
        code = 0 if running[number] and not program.received else process.wait()
        first = next(iter(program.received), 0)
        ended.append(Ended(128 - code if code < 0 else code, seconds[number], first, left[number], program.is_cut))
    return ended


class _Running:
    """A running program, our signals meanwhile, and whether one of them came before its end."""

    def __init__(self, start: Start, *, shares_terminal: bool) -> None:
        self.received: list[int] = []
        self.is_cut = False
        self._mark = os.urandom(8).hex()
        self._start = start
        self._shares_terminal = shares_terminal
        self._passed_on = 0
        self._process: subprocess.Popen[bytes] | None = None

    def receive(self, number: int) -> None:
        """Keep a signal, and pass it on if the program has been started."""
        self.received.append(number)
        self.is_cut |= self._process is None or self._process.poll() is None
        if self._process is not None:
            self._pass_on(number)

    def start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start the program, and pass on earlier signals."""
        environment, out, err = self._start
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own program
                command,
                env={**environment, _MARKS: f"{environment.get(_MARKS, '')} {self._mark}"},
                stdout=out,
                stderr=err,
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
        found = set() if self._process.poll() is not None else {self._process.pid}
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it has ended, or is another user's
                if self._mark.encode() in path.read_bytes():
                    found.add(int(path.parent.name))
        return found


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


class ProgramRun(NamedTuple):
    """A run of a program: its end, and the merged receipt of all its processes."""

    ended: Ended
    receipt: Receipt


def run_with_receipt(
    command: Sequence[str], environment: Mapping[str, str], destination: Path | None, limit_s: float | None = None
) -> ProgramRun:
    """Run the program, armed, and write the merged receipt of its processes, if there is any, to ``destination``.

    ``limit_s`` is as in ``run_at_once``. OSError, before the program is started, without a directory for temporary
    files. Processes that go on after the program put their receipts beside ``destination``.
    """
    (run,) = run_with_receipts(command, [Start(environment)], limit_s, after_run=str(destination or ""))
    if destination is not None and run.receipt.processes:
        write_atomically(destination, receipt_bytes(run.receipt))
    return run


def run_with_receipts(
    command: Sequence[str],
    starts: Sequence[Start],
    limit_s: float | None = None,
    meanwhile: Callable[[Sequence[bool]], None] | None = None,
    *,
    after_run: str = "",
) -> list[ProgramRun]:
    """Run the program, armed, in several environments at once, as ``run_at_once`` does.

    Processes that go on after the program put their receipts beside ``after_run``, if it is not empty.
    """
    parent = Path(tempfile.mkdtemp(prefix="diode-lut-"))
    try:
        # One file for each process: what two that are started one after the other asked is in both.
        ours = []
        for number, start in enumerate(starts):
            Path(parent, f"{number}").mkdir()
            variables = {"DIODE_LUT_RECEIPT": str(parent / f"{number}" / "%p.json"), AFTER_RUN: after_run}
            ours.append(start._replace(environment=armed(start.environment, **variables)))
        runs = []
        for number, ended in enumerate(run_at_once(command, ours, limit_s, meanwhile)):
            done = parent / f"{number}.done"
            move(parent / f"{number}", done)  # from now on no process writes there
            receipts = []
            for path in sorted(done.glob("*.json")):
                with suppress(ReceiptError, OSError):  # a program may have put a file of its own there
                    receipts.append(read_receipt(path))
            runs.append(ProgramRun(ended, merge_receipts(receipts)))
    finally:
        rmtree(parent, ignore_errors=True)
    return runs


_NAMED = 3  # how many missed problems are named


def summary(run: ProgramRun, destination: Path | None, tune: str) -> list[str]:
    """Return the account of a run as lines for people. ``tune`` is the command that measures misses."""
    receipt = run.receipt
    asked = sum(device.calls for device in receipt.devices.values())
    where = [] if destination is None or not receipt.processes else [f"receipt: {shown(destination)}"]
    if destination is not None and run.ended.left:
        go_on, its = ("goes on", "its") if run.ended.left == 1 else ("go on", "each one's")
        later = shown(destination.with_suffix(f".PID{destination.suffix}"))
        where.append(f"{counted(run.ended.left, 'process')} of the program {go_on}; {its} receipt will be {later}")
    if not receipt.processes:
        return [
            "nothing was answered, and there is no receipt: the program compiled nothing with torch.compile",
            *where,
        ]
    generated = sum((device.generated for device in receipt.devices.values()), Counter[GeneratedKernel]())
    if generated:
        decided = sum(times for kernel, times in generated.items() if kernel.config)
        kernels = counted(generated.total(), "generated kernel")
        where.insert(0, f"{kernels}: {decided} with the config of a table or model, the others with Inductor's")
    if not asked:
        return [f"{'no GEMM' if generated else 'nothing'} was answered: {nothing_asked(receipt)}", *where]
    problems = {hit.problem for device in receipt.devices.values() for hit in device.hits}
    missed = losses(receipt)
    problems.update(loss.problem for loss in missed)
    misses = sum(loss.calls for loss in missed)
    questions = f"{counted(asked, 'question')} about {counted(len(problems), 'GEMM')}"
    others = len(_without_choice(receipt))
    more = f"; Inductor has no choice for {others} more" if others else ""
    files, compiled = Counter[tuple[str, str]](), set[Problem]()
    for hardware, device in receipt.devices.items():
        paths = {source.digest: source.path for source in device.sources}
        for hit, count in device.hits.items():
            files[hit.tier, paths.get(hit.digest, "")] += count
            if hardware.is_cpu and not _is_aten(hit):
                compiled.add(hit.problem)
    cost = (
        f"C++ kernels: for {counted(len(compiled), 'GEMM')}; each takes the compiler 0.7 to 10 s if it is in no cache, "
        "and aten none (DIODE_LUT_MIN_GAIN=0.1 leaves gains below 10 % to aten)"
    )
    named = ((Path(path).name or "a table in memory", tier, count) for (tier, path), count in files.most_common())
    answering = ", ".join(f"{name} ({tier}) {count}" for name, tier, count in named)
    library = sum(count for device in receipt.devices.values() for hit, count in device.hits.items() if _is_aten(hit))
    as_before = f"; {library} of the answers are aten, as by default" if library else ""
    return [
        f"{questions}, of {counted(receipt.processes, 'process')}: {asked - misses} answered, {misses} missed{more}",
        f"answered by: {answering or 'no table and no model'}{as_before}",
        *([cost] if compiled else []),
        f"missed: {named_gemms(missed)}; to measure them: {tune}" if missed else "missed: none",
        estimate(receipt),
        *where,
    ]


def _is_aten(hit: Hit) -> bool:
    return hit.configs[0] == str(ATEN)


def nothing_asked(receipt: Receipt) -> str:
    """Return the reason for no question: no GEMM was compiled, or Inductor has no choice for any."""
    without = _without_choice(receipt)
    if not without:
        return "Inductor asked for no GEMM (only what torch.compile compiles is asked for)"
    reasons = {each.reason for device in receipt.devices.values() for each in device.no_choice} - {FREEZABLE}
    why = "; ".join([*freezing(receipt.devices.values()), *sorted(reasons)])
    return f"Inductor has no choice of kernels for {_named(without)} ({why})"


def _without_choice(receipt: Receipt) -> list[str]:
    return list(dict.fromkeys(str(each.problem) for device in receipt.devices.values() for each in device.no_choice))


def named_gemms(missed: Sequence[Loss]) -> str:
    """Return the first GEMMs of these misses, and how many more there are."""
    return _named(list(dict.fromkeys(str(loss.problem) for loss in missed)))


def _named(named: Sequence[str]) -> str:
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return f"{', '.join(named[:_NAMED])}{more}"


def estimate(receipt: Receipt) -> str:
    """Return a line on the time saved and lost, and on how much of it is known."""
    *times, calls = savings(receipt)
    words = {EXPECTED: "estimated by a roofline or a model", UNKNOWN: "not known"}
    known = ", ".join(f"{calls[how]} {text}" for how, text in words.items() if calls[how])
    saved, lost = (f"{ns / 1e3:.1f} us" if ns < 1e6 else f"{ns / 1e6:.2f} ms" for ns in times)
    return f"if each ran once: {saved} saved, {lost} lost ({known})"


EXPECTED, UNKNOWN = "expected", "unknown"  # whether the saved time of a GEMM can be estimated


def savings(receipt: Receipt) -> tuple[float, float, Counter[str]]:
    """Estimate the nanoseconds saved and lost on all devices of a receipt, and count calls by how well they are known.

    Misses and slower answers lose time. Calls answered by changed tables and models count as not known.
    """
    saved, lost, calls = 0.0, 0.0, Counter[str]()
    for hardware, device in receipt.devices.items():
        sources = {}
        for source in device.sources:
            with suppress(DiodeLutError):  # the receipt outlives its tables, and their files may have changed
                opened = source_of(open_file(Path(source.path)), hardware)
                sources[opened.digest] = opened
        fused = Counter[Problem]()  # a GEMM with a fused epilogue has a question without epilogue as well
        for hit, asked in device.hits.items():
            if hit.problem.epilogue != NO_EPILOGUE:
                fused[hit.problem.alone] += asked
        for hit, asked in device.hits.items():
            instead = min(asked, fused[hit.problem]) if hit.problem.epilogue == NO_EPILOGUE else 0
            fused[hit.problem] -= instead
            ns, how = _saved_ns(hit, sources.get(hit.digest), hardware)
            count = asked - instead
            saved, lost = saved + count * max(ns, 0.0), lost + count * max(-ns, 0.0)
            calls[how] += count
    for loss in losses(receipt):
        lost += loss.nanoseconds or 0.0
        calls[UNKNOWN if loss.nanoseconds is None else EXPECTED] += loss.calls
    return saved, lost, calls


def _saved_ns(hit: Hit, source: Source | None, hardware: Hardware) -> tuple[float, str]:
    """Return the time that the first config saves in one execution, and how well it is known."""
    if hit.configs[0] == str(baseline(hit.problem.op)):
        return 0.0, EXPECTED
    answer = None if source is None else source.ask(hit.problem, THRESHOLD, padding=True)
    if answer is None:
        return 0.0, UNKNOWN
    if answer.ranking is not None:
        times = dict(zip(map(str, answer.ranking.configs), answer.ranking.times, strict=True))
        ratio = times.get(hit.configs[0])
    else:
        assert answer.entry is not None
        gains = {str(each.config): each.gain_permille for each in answer.entry.candidates}
        gain = gains.get(hit.configs[0])
        ratio = 1000 / gain if gain else None  # the row may not tell
    baseline_ns = roofline_ns(hit.problem, hardware)
    return (0.0, UNKNOWN) if ratio is None or baseline_ns is None else (baseline_ns * (1 - ratio), EXPECTED)
