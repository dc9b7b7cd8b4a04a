"""Compare a program with and without tables: run both in turn, trace them, and tell differences from noise.

A run takes long to start and to compile, and needs little time on the GPU. The first two runs are alone and begin with
empty caches. Later runs find only the compiled Triton kernels of the first run of their kind, and Inductor chooses and
benchmarks anew in each. They start at once, as far as cores and memory suffice. After all have compiled their first
graph, they run alone, one after the other.
"""

from __future__ import annotations

import math
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import IO, Any, NamedTuple

import orjson

from diode_lut.errors import counted
from diode_lut.files import write_atomically
from diode_lut.probe import CLOSED, DONE, READY, VARIABLE
from diode_lut.programs.comparison import KINDS, WITH, WITHOUT, Comparison, require_answers, spread_text
from diode_lut.programs.costs import Cost, costs_in, largest
from diode_lut.programs.run import Start, cold, run_with_receipts, without_leaks
from diode_lut.programs.times import (
    GEMMS_ERR,
    TIMES_ERR,
    GraphTimes,
    change_of,
    error_of,
    graph_times,
    is_all_told,
    judged,
    read_traces,
)
from diode_lut.receipts import Receipt

_VARIABLES = {WITHOUT: {"DIODE_LUT_POLICY": "off"}, WITH: dict[str, str]()}
_LEAST_PAIRS = 2  # fewer pairs have no spread
_FIRST_LOOK = 5  # number of pairs of runs before the first verdict. Each later look has twice as many
_MOST_AT_ONCE = 8  # maximum number of runs that compile at once
_CORES = 2  # number of cores for each of these runs

_SIGNALLED = 128  # the exit code after a signal is greater by its number, as in shells
_TAIL_LINES, _TAIL_BYTES = 20, 1 << 16  # maximum output of a failed program to show


class ComparisonPlan(NamedTuple):
    """The program and its environment. A run is interrupted after ``limit_s``.

    Runs go on until all verdicts are clear, but none begins that would end after ``budget_s``. With ``pairs``, there
    are as many pairs of runs instead. At most ``at_once`` runs compile at once.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    pairs: int | None
    budget_s: float
    limit_s: float | None
    at_once: int = _MOST_AT_ONCE


class ComparisonEnded(SystemExit):
    """A run failed or was interrupted, so the comparison ends. Its argument is the exit code."""

    code: int


class _OneRun(NamedTuple):
    """The times, the receipt and the costs of a run.

    ``compile_s`` is the time of the process that compiled longest. ``step_s`` is the median step of the process with
    the longest steps, or without marks of steps, of printed times. None stands for an unknown time. ``copies`` is the
    number of such programs that may compile at once, as the memory of its GPUs and the cores allow. It is 1 without a
    GPU, or if several processes call graphs. ``alone_s`` are the seconds in which no other run goes on: those of its
    turn, and of reading its trace.
    """

    receipt: Receipt
    compile_s: float | None
    step_s: float | None
    times: GraphTimes | None
    costs: Sequence[Cost]
    copies: int
    alone_s: float

    def __str__(self) -> str:
        times = self.times
        if times is None:
            return "no trace of a compiled graph, so no times of graphs and GEMMs"
        kernels = f", {counted(len(times.generated), 'generated kernel')}" if times.generated else ""
        step = f", a step {spread_text([self.step_s])}" if self.step_s else ""
        call = f"{counted(times.calls, 'call')} of compiled graphs traced, {spread_text([times.call_ns / 1e9])} each"
        return f"{call}, {counted(len(times.gemms), 'GEMM')}{kernels}{step}"


class Pace(NamedTuple):
    """How long runs take: a run by itself, and in addition each other run that compiles at the same time."""

    run_s: float = 0.0
    turn_s: float = 0.0

    def seconds(self, count: int, at_once: int) -> float:
        """Return the seconds that ``count`` runs take, if ``at_once`` of them compile together."""
        together = math.ceil(count / at_once)
        return together * self.run_s + (count - together) * self.turn_s

    def after(self, seconds: float, made: Sequence[_OneRun]) -> Pace:
        """Return the pace, updated by runs that together took ``seconds``."""
        if len(made) == 1:
            return Pace(max(self.run_s, seconds), max(self.turn_s, made[0].alone_s))
        return self._replace(turn_s=max(self.turn_s, (seconds - self.run_s) / (len(made) - 1)))


def compare(plan: ComparisonPlan, tell: Callable[[str], None]) -> Comparison:
    """Run everything, and tell how it goes. ComparisonEnded if a run fails. ProgramError if no table answers."""
    start = time.monotonic()
    limit = f"of {2 * plan.pairs}" if plan.pairs else f"of as many as fit into {_long(plan.budget_s)} (--budget)"
    tell(f"run 1 {limit} begins; after it there is an estimate of how long they take")
    runs: dict[str, list[_OneRun]] = {kind: [] for kind in KINDS}
    look, at_once, pace = 0 if plan.pairs else 1, 1, Pace()
    with tempfile.TemporaryDirectory(prefix="diode-lut-kernels-", ignore_cleanup_errors=True) as kernels:
        while True:
            begin, count = time.monotonic(), sum(map(len, runs.values()))
            pairs, goal = count // 2, plan.pairs or _FIRST_LOOK * 2 ** (look - 1)
            left, least = plan.budget_s - (begin - start), min(2, at_once)
            ends = pairs == plan.pairs if plan.pairs else pace.seconds(least, least) > left
            if pairs >= _LEAST_PAIRS and (ends or pairs == goal):
                found, is_told = _judged(plan, runs, pairs, look)
                if ends or is_told:
                    return found if is_told else found._replace(spent=begin - start)
                look += 1
                tell(f"after {counted(pairs, 'pair')} some times are open: it goes on")
                continue
            size = 1 if count < 2 else min(at_once, 2 * goal - count)
            while not plan.pairs and size > 2 and pace.seconds(size, size) > left:
                size -= 2
            # The kinds alternate as in ABBA, so that a drift of the machine affects both alike.
            kinds = [WITHOUT if (number + 1) // 2 % 2 else WITH for number in range(count, count + size)]
            made, stopped = _run(plan, kinds, Path(kernels), tell)
            if made and not stopped:
                pace = pace.after(time.monotonic() - begin, [run for _, run in made])
            if made and count == 0:
                first = made[0][1]
                require_answers(first.receipt, plan.command)
                at_once = min(plan.at_once, first.copies) if plan.limit_s is None else 1
                tell(expected(pace, plan, at_once))
            elif not made:
                at_once = 1
            for number, (kind, run) in enumerate(made, count + 1):
                runs[kind].append(run)
                tell(f"run {number}, {kind} tables: {run}")
            if stopped:
                pairs = min(map(len, runs.values()))
                if pairs < _LEAST_PAIRS:
                    few = f" ({counted(pairs, 'pair')} of runs finished, {_LEAST_PAIRS} are the least)" if pairs else ""
                    tell(f"interrupted: nothing is compared{few}")
                    raise ComparisonEnded(stopped)
                tell(f"interrupted: the verdicts are from the {pairs} pairs of runs that were finished")
                return _judged(plan, runs, pairs, look)[0]._replace(stopped=stopped)
            if count == 1 and not any(run.times or run.step_s for each in runs.values() for run in each):
                return _judged(plan, runs, 1, look)[0]


def _judged(
    plan: ComparisonPlan, made: Mapping[str, Sequence[_OneRun]], pairs: int, look: int
) -> tuple[Comparison, bool]:
    """Return the comparison of the first pairs of runs, and whether more runs would say little more.

    On a GPU, the times of kernels decide about more runs. A step includes time of the CPU, which may never settle.
    """
    runs = {kind: made[kind][:pairs] for kind in KINDS}
    graphs = {kind: [run.times for run in runs[kind] if run.times] for kind in KINDS}
    if not all(run.times for each in runs.values() for run in each):
        graphs = {kind: [] for kind in KINDS}
    times: dict[str, list[list[Any]]] = {
        "graph": [[each.call_ns / 1e9 for each in graphs[kind]] for kind in KINDS],
        "gemms": [[each.gemms_ns / 1e9 for each in graphs[kind]] for kind in KINDS],
        "step": [[run.step_s for run in runs[kind]] for kind in KINDS],
    }
    both = {name: [(a, b) for a, b in zip(*each, strict=True) if a and b] for name, each in times.items()}
    known = {name: each for name, each in both.items() if len(each) >= _LEAST_PAIRS}
    error = error_of(look, TIMES_ERR) / max(len(known), 1)
    changes = {name: change_of(*map(list, zip(*each, strict=True)), error=error) for name, each in known.items()}
    gemms, generated = judged(graphs[WITHOUT], graphs[WITH], error_of(look, GEMMS_ERR))
    on_gpu = any(each.on_gpu for each in graphs[WITH])
    decisive = [change for name, change in changes.items() if not (on_gpu and name == "step")]
    compile_s = {kind: runs[kind][0].compile_s or 0.0 for kind in KINDS}
    found = Comparison(
        plan.command,
        {name: value for name, value in sorted(plan.environment.items()) if name.startswith("DIODE_LUT_")},
        runs[WITH][0].receipt,
        changes,
        on_gpu,
        gemms,
        costs=largest([run.costs for run in runs[WITH]]),
        generated=generated,
        compile_s=compile_s if all(compile_s.values()) else {},
    )
    return found, is_all_told(decisive, [*gemms, *generated])


def expected(pace: Pace, plan: ComparisonPlan, at_once: int) -> str:
    """Return how long a comparison will take, as text, from the pace of the first run."""

    def seconds(pairs: int) -> float:
        return pace.seconds(2, 1) + pace.seconds(2 * pairs - 2, at_once)

    run = f"a run takes {spread_text([pace.run_s])}{f', and {at_once} compile at once' if at_once > 1 else ''}"
    if plan.pairs:
        return f"{run}: {counted(plan.pairs, 'pair')} take about {_long(seconds(plan.pairs))}"
    first, budget = seconds(_FIRST_LOOK), plan.budget_s
    if first <= budget:
        times = " to ".join(dict.fromkeys((_long(first), _long(budget))))
        return f"{run}: it will take {times} (--budget), until it can tell"
    fit = max((pairs for pairs in range(_FIRST_LOOK) if seconds(pairs) <= budget), default=0)
    if fit < _LEAST_PAIRS:
        least = f"{_LEAST_PAIRS} pairs run in any case, {_long(seconds(_LEAST_PAIRS))}"
        take = f"{_long(budget)} (--budget) are too short, and {least}"
    else:
        take = f"{_long(budget)} (--budget) are enough for {fit} pairs"
    return f"{run}: {take}; verdicts on GEMMs need {_FIRST_LOOK} pairs, {_long(first)}"


def longer(found: Comparison, plan: ComparisonPlan) -> tuple[str, str]:
    """Return the option for twice as many pairs of runs, but at least those of the first look.

    Before the first look, no GEMM has a verdict.
    """
    times = max(2, math.ceil(_FIRST_LOOK / (found.pairs or _LEAST_PAIRS)))
    seconds = times * max(plan.budget_s, found.spent)  # two pairs run whatever the budget is
    return ("--repetitions", f"{times * plan.pairs}") if plan.pairs else ("--budget", f"{seconds:.0f}s")


def _long(seconds: float) -> str:
    """Return a long time as text, in seconds or minutes."""
    return f"{seconds:.0f} s" if seconds < 200 else f"{seconds / 60:.0f} minutes"


def _run(
    plan: ComparisonPlan, kinds: Sequence[str], kernels: Path, tell: Callable[[str], None]
) -> tuple[list[tuple[str, _OneRun]], int]:
    """Run the program once for each of these kinds, all together. Triton's kernels are kept in ``kernels``.

    Return the runs with their kinds, and the exit code if a signal came, else 0. Runs that a signal cut short are left
    out. If several run together and one fails, return no runs. ComparisonEnded if a single run fails.
    """
    with ExitStack() as stack:
        directories, outputs, starts = [], [], []
        began: dict[Path, float] = {}
        ended: dict[Path, float] = {}
        for kind in kinds:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="diode-lut-", ignore_cleanup_errors=True))
            directories.append(Path(name))
            outputs.append(stack.enter_context(tempfile.TemporaryFile()))
            write_atomically(Path(name, CLOSED), b"%d" % os.getpid())
            environment = stack.enter_context(cold({**plan.environment, **_VARIABLES[kind], VARIABLE: name}))
            environment["TRITON_CACHE_DIR"] = str(kernels / kind)
            starts.append(Start(environment, outputs[-1], outputs[-1]))

        def give_turn(running: Sequence[bool]) -> None:
            """Let the next program go on when all others wait for their turns or are done."""
            others = [
                each for each, runs in zip(directories, running, strict=True) if runs and not (each / DONE).exists()
            ]
            if others and all((each / CLOSED).exists() and (each / READY).exists() for each in others):
                began[others[0]] = time.monotonic()
                (others[0] / CLOSED).unlink()
            for each in began:
                if (each / DONE).exists():
                    ended.setdefault(each, time.monotonic())

        found = run_with_receipts(plan.command, starts, plan.limit_s, give_turn)
        number = found[0].ended.signal
        for kind, run, output in zip(kinds, found, outputs, strict=True):
            if number or not run.ended.code:
                continue
            if len(kinds) > 1:
                tell(
                    f"one of {len(kinds)} runs at once failed, with exit code {run.ended.code}: now one after the other"
                )
                return [], 0
            for line in without_leaks(_tail(output)).splitlines()[-_TAIL_LINES:]:
                tell(f"| {line}")
            tell(f"the program failed {kind} tables, with exit code {run.ended.code}: nothing is compared")
            raise ComparisonEnded(run.ended.code)
        made: list[tuple[str, _OneRun]] = []
        try:
            for kind, run, directory, output in zip(kinds, found, directories, outputs, strict=True):
                if not run.ended.is_cut and not run.ended.code:
                    turn_s = ended.get(directory, 0.0) - began.get(directory, 0.0)
                    made.append((kind, _read(run.receipt, directory, output, turn_s)))
        except KeyboardInterrupt:  # between programs, a signal is for us
            number = signal.SIGINT
        return made, _SIGNALLED + number if number else 0


def _read(receipt: Receipt, directory: Path, output: IO[bytes], turn_s: float) -> _OneRun:
    """Read the reports that the processes of a run wrote at their ends, and the times that it printed.

    ``turn_s`` is how many seconds its turn took, or not above 0 if that is unknown.
    """
    begin = time.monotonic()
    said: list[dict[str, Any]] = []
    for path in sorted(directory.glob("*[0-9].json")):
        with suppress(OSError, orjson.JSONDecodeError):
            said.append(orjson.loads(path.read_bytes()))
    traces = read_traces(directory / each["trace"] for each in said if each.get("trace"))
    compiled = [each["compile_s"] for each in said if each.get("compile_s")]
    steps = [median(each["steps_s"]) for each in said if each["steps_s"]]
    printed = [] if steps else printed_steps(_tail(output, 1 << 24))
    copies = [each["copies"] for each in said if each.get("copies")]
    times, costs = graph_times(traces), costs_in(traces, said)
    return _OneRun(
        receipt,
        max(compiled, default=None),
        max(steps, default=median(printed) if printed else None),
        times,
        costs,
        max(1, min(*copies, len(os.sched_getaffinity(0)) // _CORES)) if copies and len(traces) == 1 else 1,
        max(turn_s, 0.0) + time.monotonic() - begin,
    )


def _tail(output: IO[bytes], size: int = _TAIL_BYTES) -> str:
    output.seek(max(0, output.seek(0, 2) - size))
    return output.read().decode(errors="replace")


_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
_STEP = r"(?:steps?|it|iters?|iterations?|batch(?:es)?)"
_PRINTED = re.compile(
    rf"(?P<time>\d[\d.]*(?:e-?\d+)?) ?(?P<unit>us|µs|ms|s|sec) ?(?:/|per) ?{_STEP}\b"
    rf"|(?P<rate>\d[\d.]*) ?{_STEP} ?(?:/|per) ?s(?:ec(?:ond)?)?\b"
    rf"|\b{_STEP}[ _-]time\W*(?P<named>\d[\d.]*(?:e-?\d+)?) ?(?P<named_unit>us|µs|ms|s|sec)\b",
    flags=re.IGNORECASE,
)
"""Printed times of steps: ``12.3 ms/step``, ``8.1 it/s`` as tqdm prints it, ``step time: 12.3 ms``."""


def printed_steps(output: str) -> list[float]:
    """Return the printed times of steps in seconds, without the first half, which warms up."""
    steps = []
    for found in _PRINTED.finditer(output):
        with suppress(ValueError, ZeroDivisionError):
            unit = 0.0 if found["rate"] else _SECONDS[(found["unit"] or found["named_unit"]).lower()]
            steps.append(unit * float(found["time"] or found["named"]) if unit else 1 / float(found["rate"]))
    steps = [time for time in steps if time > 0]
    return steps[len(steps) // 2 :]
