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
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import IO, Any, NamedTuple

import orjson
from msgspec.structs import asdict

from diode_lut.errors import DiodeLutError, ProgramError, as_command, counted, printable
from diode_lut.files import write_atomically
from diode_lut.hardware import Hardware
from diode_lut.probe import CLOSED, DONE, READY, VARIABLE
from diode_lut.problem import GENERATED, OP_SIZES, SIZE_FIELDS, Problem
from diode_lut.programs.costs import Cost, costs_in, largest
from diode_lut.programs.run import Start, cold, named_gemms, nothing_asked, run_with_receipts, without_leaks
from diode_lut.programs.times import (
    GEMMS_ERR,
    LEAST_GEMM_RUNS,
    TIMES_ERR,
    GemmChange,
    GraphTimes,
    Speedup,
    change_of,
    error_of,
    gemm_name,
    graph_times,
    is_all_told,
    judged,
    read_traces,
)
from diode_lut.programs.tune import own_table
from diode_lut.receipts import Hit, Receipt
from diode_lut.receipts.summary import losses
from diode_lut.settings import USER
from diode_lut.table import read_table
from diode_lut.table.row import KIND_FIELDS
from diode_lut.templates.config import BASELINES, baseline


def spread_text(times: Sequence[float]) -> str:
    """Return the median and the extremes of times in seconds, in a suitable unit."""
    scale, unit = next((scale, unit) for scale, unit in _UNITS if median(times) >= scale or unit == "us")
    scaled = (time / scale for time in (median(times), min(times), max(times)))
    middle, low, high = (f"{time:.3g}" if time < 1000 else f"{time:.0f}" for time in scaled)
    return f"{middle} {unit}" if len(times) == 1 else f"{middle} {unit} ({low} to {high})"


_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


WITHOUT, WITH = "without", "with"  # the two kinds of runs

WORDS = {"graph": "a call of a compiled graph", "gemms": "its GEMMs and the work fused into them", "step": "step time"}
"""The names of times. Those of graphs and GEMMs come from traces."""


class Comparison(NamedTuple):
    """The result of a comparison. ``changes`` has the known times of WORDS, and ``receipt`` is from a run "with".

    ``compile_s`` has the seconds that the first run of each kind took to compile, if both are known. ``on_gpu`` says
    whether traced times are of GPU kernels. ``gemms``, and in ``generated`` the kernels that Inductor generated in both
    kinds of runs, begin with the largest gain. ``spent`` is the number of seconds after which the budget ended the
    comparison with verdicts open, or 0. ``costs`` are the costs of the runs "with" that no kernel's choice removes, the
    largest first. ``stopped`` is the exit code if a signal stopped the comparison, which is then that of the pairs of
    runs that were finished, or 0.
    """

    command: Sequence[str]
    settings: Mapping[str, str]
    receipt: Receipt
    changes: Mapping[str, Speedup]
    on_gpu: bool
    gemms: Sequence[GemmChange]
    spent: float = 0.0
    costs: Sequence[Cost] = ()
    generated: Sequence[GemmChange] = ()
    compile_s: Mapping[str, float] = MappingProxyType({})
    stopped: int = 0

    @property
    def pairs(self) -> int:
        """The number of pairs of runs with times."""
        return max((len(change.without) for change in self.changes.values()), default=0)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return all figures for programs. Times are in nanoseconds or, if the name says so, in seconds."""
    devices = comparison.receipt.devices
    return {
        "command": list(map(printable, comparison.command)),
        "settings": {name: printable(value) for name, value in comparison.settings.items()},
        "hardware": [str(hardware) for hardware in sorted(devices)],
        "versions": [asdict(versions) for versions in sorted(comparison.receipt.versions)],
        "questions": sum(device.calls for device in devices.values()),
        "answered": sum(device.hits.total() for device in devices.values()),
        "seconds": {
            name: {
                WITHOUT: change.without,
                WITH: change.tuned,
                "gain": change.gain,
                "interval": [change.low, change.high],
                "is_clear": change.is_clear,
                "verdict": change.verdict,
            }
            for name, change in comparison.changes.items()
        },
        "first_compile_s": dict(comparison.compile_s),
        "is_stopped": bool(comparison.stopped),
        "on_gpu": comparison.on_gpu,
        "gemms": [{"gemm": change.name, **_figures(change)} for change in comparison.gemms],
        "generated": [{"kernel": change.name, **_figures(change)} for change in comparison.generated],
        "costs": [cost._asdict() for cost in comparison.costs],
    }


def _figures(change: GemmChange) -> dict[str, Any]:
    return {
        "saved_ns": change.saved_ns,
        "ratio": change.ratios and change.ratios[0],
        "interval": change.ratios and change.ratios[1:],
        "is_clear": change.is_clear,
        "is_open": change.is_open,
        WITHOUT: [time._asdict() for time in change.without],
        WITH: [time._asdict() for time in change.tuned],
    }


def compile_text(comparison: Comparison) -> str:
    """Return a sentence on the time that compiling took, or empty text if it is unknown."""
    if not comparison.compile_s:
        return ""
    without, tuned = (spread_text([comparison.compile_s[kind]]) for kind in KINDS)
    return f"compile time with empty caches: {without} without tables, {tuned} with (one run of each: no verdict)"


def summary(comparison: Comparison) -> list[str]:
    """Return the verdicts as lines for a terminal."""
    lines = []
    for name, change in comparison.changes.items():
        times = f"{spread_text(change.without)} without tables, {spread_text(change.tuned)} with"
        varies = comparison.on_gpu and name == "step" and not change.is_told
        why = ", as the CPU's part varies from run to run" if varies else ""
        lines.append(f"{WORDS[name]}: {change.verdict} ({change.interval}){why}; {times}")
    lines += filter(None, [compile_text(comparison)])
    for what, changes in (("GEMMs", comparison.gemms), ("generated kernels", comparison.generated)):
        if not changes:
            continue
        clear = [change for change in changes if change.is_clear]
        gained = sum(change.saved_ns > 0 for change in clear)
        are_open = sum(change.is_open for change in changes)
        differ = f"{are_open} open (apart in all runs, but too few runs for so many kernels), " if are_open else ""
        lines.append(
            f"{what}: {gained} faster, {len(clear) - gained} slower, {differ}"
            f"{len(changes) - len(clear) - are_open} without a difference beyond noise"
        )
        runs = min((len(kind) for change in changes for kind in (change.without, change.tuned) if kind), default=0)
        if runs < LEAST_GEMM_RUNS:
            lines.append(f"no verdict on {what} without {LEAST_GEMM_RUNS} traced runs of each kind")
    return [*lines, *(f"no kernel's choice removes: {cost}" for cost in comparison.costs)]


class Loser(NamedTuple):
    """A GEMM or generated kernel that tables make slower.

    ``command`` has the words of a command that sets the kernel without tables in the user's table. ``source`` is the
    name of the shipped table or the model that answered, or empty for a row of the user's.
    """

    problem: Problem
    command: Sequence[str | Path]
    source: str = ""

    def __str__(self) -> str:
        why = f"as {self.source} answers" if self.source else "with its row"
        return f"{self.problem} is slower {why}; for {baseline(self.problem.op)} instead: {as_command(*self.command)}"


def losers(comparison: Comparison) -> Iterator[Loser]:
    """Yield a loser for each row of the user's, and for each problem that a shipped table or a model answered.

    Removing a row would not last, because the next ``build`` from the same timings makes it again. So a row for the
    baseline goes into the user's own table, which may be new, and is asked before shipped tables and models.
    """
    lost = {change.name for change in comparison.gemms if change.is_clear and change.saved_ns < 0}
    saved: defaultdict[str, float] = defaultdict(float)
    for change in comparison.generated:  # several kernels may have a problem, and with it a row
        saved[change.name.partition(": ")[0]] += change.saved_ns * change.is_clear
    lost |= {name for name, ns in saved.items() if ns < 0}
    found: dict[object, Loser] = {}
    for hardware, device in comparison.receipt.devices.items():
        sources = {source.digest: source for source in device.sources}
        decided = [
            Hit(kernel.problem, kernel.tier, kernel.digest, kernel.row, (kernel.config,), kernel.over)
            for kernel in device.generated
            if kernel.config
        ]
        for hit in (*device.hits, *decided):
            problem, source = hit.problem, sources.get(hit.digest)
            name = str(problem) if problem.op in GENERATED else gemm_name(problem.sizes, problem.dtype)
            if name not in lost or source is None:
                continue
            path, entry = Path(source.path), None
            if source.tier == USER:
                with suppress(DiodeLutError):
                    entry = read_table(path).lookup(problem)
                if entry is not None and entry.note is None and entry.best.config not in BASELINES:
                    key = {name: getattr(entry, name) for name in (*KIND_FIELDS, *SIZE_FIELDS)}
                    found[path, entry] = Loser(problem, _set_command(path, problem, key))
            elif not hit.over and hit.configs[0] not in map(str, BASELINES):
                sizes = {name: (size, size) for name in OP_SIZES[problem.op] for size in (getattr(problem, name),)}
                kind = ("op", "variant") if problem.op in GENERATED else KIND_FIELDS
                key = {**{name: getattr(problem, name) or None for name in kind}, **sizes}
                with suppress(ProgramError):  # without a home directory
                    command = _set_command(own_table(hardware), problem, key, hardware)
                    found[hardware, problem] = Loser(problem, command, path.name)
    yield from found.values()


def _set_command(
    path: Path, problem: Problem, key: Mapping[str, Any], hardware: Hardware | None = None
) -> list[str | Path]:
    """Return the command that sets the baseline for a key in a table. With ``hardware``, the table may be new."""
    given = {name: value for name, value in key.items() if name not in ("op", "align") and value is not None}
    texts = {
        name: value if isinstance(value, str) else "-".join(map(str, dict.fromkeys(value)))
        for name, value in given.items()
    }
    options = [word for name, text in texts.items() for word in (f"--{name}", text)]
    if problem.op not in GENERATED:
        options += ["--align", "any" if key["align"] is None else str(key["align"])]
    answer = ("--config", str(baseline(problem.op)), "--note", "slower in a program")
    new = () if hardware is None else ("--hardware", f"{hardware.name},{hardware.arch},{hardware.sm_count}")
    return ["diode-lut", "set", path, key["op"] or "any", *options, *answer, *new]


def not_answered(comparison: Comparison) -> Iterator[str]:
    """Yield the GEMMs that no table and no model answered, with the reason and the remedy."""
    receipt = comparison.receipt
    missed = losses(receipt)
    if missed:
        why = "; ".join(["no row and no model has them", *_left_out(receipt)])
        tune = as_command("diode-lut", "tune", "--", *comparison.command)
        yield f"not answered: {named_gemms(missed)} ({why}); to measure them: {tune}"
    if any(device.no_choice for device in receipt.devices.values()):
        yield f"not asked: {nothing_asked(receipt)}"


def _left_out(receipt: Receipt) -> list[str]:
    """Return the reasons why tables of the user's own are left out."""
    reasons = dict.fromkeys(reason for device in receipt.devices.values() for reason in device.left_out)
    return [reason.removeprefix("user: ") for reason in reasons if reason.startswith(_OWN)]


_VARIABLES = {WITHOUT: {"DIODE_LUT_POLICY": "off"}, WITH: dict[str, str]()}

KINDS = (WITHOUT, WITH)

_OWN = "user: left out: "  # the beginning of a receipt's reason against a table of the user's own
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


def require_answers(receipt: Receipt, command: Sequence[str]) -> None:
    """Raise ProgramError, with a remedy, if a run with tables had no answer."""
    devices = receipt.devices.values()
    if any(device.hits or any(kernel.config for kernel in device.generated) for device in devices):
        return
    asked = sum(device.calls for device in devices)
    if not asked:
        raise ProgramError(f"nothing to compare: {nothing_asked(receipt)}")
    tune = as_command("diode-lut", "tune", "--", *command)
    reasons = [f"`{tune}` measures what was missed", *_left_out(receipt)]
    text = f"no table and no model answered any of {counted(asked, 'question')}; {'; '.join(reasons)}"
    raise ProgramError(f"nothing to compare: {text}")


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
