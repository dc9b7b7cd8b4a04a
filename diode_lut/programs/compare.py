"""Compare a program with and without tables: run both in turn, trace them, and tell differences from noise."""

from __future__ import annotations

import math
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import IO, Any, NamedTuple

import orjson

from diode_lut.errors import DiodeLutError, ProgramError, as_command, counted, printable
from diode_lut.hardware import Hardware
from diode_lut.probe import TRACED, VARIABLE
from diode_lut.problem import GENERATED, OP_SIZES, SIZE_FIELDS, Problem
from diode_lut.programs.costs import Cost, costs_in, largest
from diode_lut.programs.run import Streams, cold, named_gemms, nothing_asked, run_with_receipt, without_leaks
from diode_lut.programs.times import (
    GEMMS_ERR,
    LEAST_GEMM_RUNS,
    TIMES_ERR,
    GemmChange,
    GraphTimes,
    Speedup,
    change_of,
    error_of,
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

WORDS = {
    "wall": "wall time",
    "compile": "compile time",
    "step": "step time",
    "graph": "a call of a compiled graph",
    "gemms": "the GEMMs in a call of a graph",
}
"""The names of times. Times of graphs and GEMMs come from traced runs."""


class Comparison(NamedTuple):
    """The result of a comparison. ``changes`` has the known times of WORDS, and ``receipt`` is from a run "with".

    ``on_gpu`` is whether traced times are times of GPU kernels. ``gemms`` and ``generated``, the kernels that Inductor
    generated in both kinds of runs, begin with the largest gain. ``spent`` is the number of seconds after which the
    budget ended it with some verdicts open, or 0 if none is open. ``costs`` are those of the runs "with" that no
    kernel's choice removes, the largest first.
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


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return all figures for programs. Times are in nanoseconds or, if the name says so, in seconds."""
    devices = comparison.receipt.devices
    return {
        "command": list(map(printable, comparison.command)),
        "settings": {name: printable(value) for name, value in comparison.settings.items()},
        "hardware": [str(hardware) for hardware in sorted(devices)],
        "versions": [versions._asdict() for versions in sorted(comparison.receipt.versions)],
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
        WITHOUT: [time._asdict() for time in change.without],
        WITH: [time._asdict() for time in change.tuned],
    }


def summary(comparison: Comparison) -> list[str]:
    """The verdicts, for a terminal."""
    lines = []
    for name, change in comparison.changes.items():
        times = f"{spread_text(change.without)} without tables, {spread_text(change.tuned)} with"
        lines.append(f"{WORDS[name]}: {change.verdict} ({change.interval}); {times}")
    for what, changes in (("GEMMs", comparison.gemms), ("generated kernels", comparison.generated)):
        if not changes:
            continue
        clear = [change for change in changes if change.is_clear]
        gained = sum(change.saved_ns > 0 for change in clear)
        lines.append(
            f"{what}: {gained} faster, {len(clear) - gained} slower, "
            f"{len(changes) - len(clear)} without a difference beyond noise"
        )
        runs = min((len(kind) for change in changes for kind in (change.without, change.tuned) if kind), default=0)
        if runs < LEAST_GEMM_RUNS:
            lines.append(f"no verdict on {what} without {LEAST_GEMM_RUNS} traced runs of each kind")
    return [*lines, *(f"no kernel's choice removes: {cost}" for cost in comparison.costs)]


class Loser(NamedTuple):
    """A slower GEMM or generated kernel, the words of the command that sets the kernel which it has without tables, in
    a table of the user's, and its source.

    ``source`` is the name of a shipped table or a model, or empty for a row of the user's.
    """

    problem: Problem
    command: Sequence[str | Path]
    source: str = ""

    def __str__(self) -> str:
        why = f"as {self.source} answers" if self.source else "with its row"
        return f"{self.problem} is slower {why}; for {baseline(self.problem.op)} instead: {as_command(*self.command)}"


def losers(comparison: Comparison) -> Iterator[Loser]:
    """Yield what lost, one for each row of the user's, and one for each problem that something else answered.

    Removing a row would not last: the next ``build`` from the same timings makes it again. The user's own table, which
    may be a new one, is asked before shipped tables and models.
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
            if _traced(problem) not in lost or source is None:
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


def _traced(problem: Problem) -> str:
    """Return the name of a problem in a trace."""
    if problem.op in GENERATED:
        return str(problem)
    batch = f"{problem.b}x" if problem.b > 1 else ""
    dtype = "float32" if problem.dtype == "tf32" else problem.dtype
    return f"{batch}{problem.m}x{problem.n}x{problem.k} {dtype}"


def _set_command(
    path: Path, problem: Problem, key: Mapping[str, Any], hardware: Hardware | None = None
) -> list[str | Path]:
    """Return the command that sets the kernel without tables for a key, in a table that is new with ``hardware``."""
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
        own = dict.fromkeys(
            reason for device in receipt.devices.values() for reason in device.left_out if reason.startswith(_OWN)
        )
        why = "; ".join(["no row and no model has them", *(reason.removeprefix("user: ") for reason in own)])
        tune = as_command("diode-lut", "tune", "--", *comparison.command)
        yield f"not answered: {named_gemms(missed)} ({why}); to measure them: {tune}"
    if any(device.no_choice for device in receipt.devices.values()):
        yield f"not asked: {nothing_asked(receipt)}"


_VARIABLES = {WITHOUT: {"DIODE_LUT_POLICY": "off"}, WITH: dict[str, str]()}

KINDS = (WITHOUT, WITH)

_OWN = "user: left out: "  # the beginning of a receipt's reason against a table of the user's own
_LEAST_PAIRS = 2  # fewer pairs have no spread
_FIRST_LOOK = 5  # The pairs of runs before the first verdict. Each further look has twice as many

_INTERRUPTED = 130
_TAIL_LINES, _TAIL_BYTES = 20, 1 << 16  # maximum output of a failed program to show


class ComparisonPlan(NamedTuple):
    """The program, its environment, and the seconds until a run is interrupted.

    Runs go on until everything is told, but no pair begins that would end after ``budget_s``. With ``pairs`` there are
    so many pairs instead.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    pairs: int | None
    budget_s: float
    limit_s: float | None


class RunTimes(NamedTuple):
    """Seconds of a run: all of it, the longest compiling of a process, and a step.

    None stands for an unknown time. A step is the median of the process with the longest steps, or of printed times
    without marks.
    """

    wall: float | None
    compile: float | None
    step: float | None


class ComparisonEnded(Exception):  # noqa: N818 (what ended is the program)
    """A run failed or was interrupted, so the comparison ends. ``code`` is the exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def compare(plan: ComparisonPlan, tell: Callable[[str], None]) -> Comparison:
    """Run everything, and tell how it goes. ComparisonEnded if it is cut. ProgramError if nothing answered."""
    start = time.monotonic()
    receipt = _run(plan, WITH, tell).receipt
    require_answers(receipt, plan.command)
    tell(expected(time.monotonic() - start, plan))
    samples: dict[str, list[RunTimes]] = {kind: [] for kind in KINDS}
    graphs: dict[str, list[GraphTimes]] = {kind: [] for kind in KINDS}
    costs: list[Sequence[Cost]] = []
    traced, look, pairs, longest = True, 0 if plan.pairs else 1, 0, 0.0
    while True:
        begin = time.monotonic()
        for kind in KINDS if pairs % 2 else reversed(KINDS):  # so a drift of the machine affects both alike
            sample = _run(plan, kind, tell).sample
            samples[kind].append(sample)
            told = (f"{name} {spread_text([time])}" for name, time in sample._asdict().items() if time is not None)
            tell(f"{pairs + 1}{f' of {plan.pairs}' if plan.pairs else ''} {kind} tables: {', '.join(told)}")
        traced = traced and _trace_pair(plan, graphs, costs, pairs, tell)
        pairs += 1
        longest = max(longest, time.monotonic() - begin)
        ends = pairs == plan.pairs if plan.pairs else time.monotonic() - start + longest > plan.budget_s
        is_look = not plan.pairs and pairs == _FIRST_LOOK * 2 ** (look - 1)
        if pairs >= _LEAST_PAIRS and (ends or is_look):
            changes = _changes(samples, graphs, look)
            gemms, generated = judged(graphs[WITHOUT], graphs[WITH], error_of(look, GEMMS_ERR))
            is_told = is_all_told([*changes.values()], [*gemms, *generated])
            if ends or is_told:
                break
            look += 1
            tell(f"after {counted(pairs, 'pair')} some times are open: it goes on")
    settings = {name: value for name, value in sorted(plan.environment.items()) if name.startswith("DIODE_LUT_")}
    on_gpu = any(each.on_gpu for each in graphs[WITH])
    spent = 0.0 if is_told else time.monotonic() - start
    return Comparison(plan.command, settings, receipt, changes, on_gpu, gemms, spent, largest(costs), generated)


def expected(run_s: float, plan: ComparisonPlan) -> str:
    """Say how long a comparison will take, from the time of one run. Each pair is traced once more."""
    pair_s = 4 * run_s
    if plan.pairs:
        return (
            f"a run takes {spread_text([run_s])}: {counted(plan.pairs, 'pair')} take about {_long(plan.pairs * pair_s)}"
        )
    first, budget = _FIRST_LOOK * pair_s, plan.budget_s
    if first > budget:
        fit, least = int((budget - run_s) / pair_s), _LEAST_PAIRS
        if fit < least:
            take = f"{least} pairs, the least, take {_long(least * pair_s)}, more than --budget"
        else:
            take = f"{_long(budget)} (--budget) are enough for {fit} pairs"
        take += f", and {_FIRST_LOOK} take {_long(first)}"
    else:
        times = " to ".join(dict.fromkeys((_long(first), _long(budget))))
        take = f"it will take {times} (--budget), until it can tell"
    return f"a run takes {spread_text([run_s])}: {take}"


def longer(found: Comparison, plan: ComparisonPlan) -> tuple[str, str]:
    """Return the option for twice the pairs of runs, or for the first look, before which no GEMM has a verdict."""
    pairs = max((len(each.without) for each in found.changes.values()), default=_LEAST_PAIRS)
    times = max(2, math.ceil(_FIRST_LOOK / pairs))
    seconds = times * max(plan.budget_s, found.spent)  # two pairs run whatever the budget is
    return ("--repetitions", f"{times * plan.pairs}") if plan.pairs else ("--budget", f"{seconds:.0f}s")


def _long(seconds: float) -> str:
    """A time for people who wait."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"


def require_answers(receipt: Receipt, command: Sequence[str]) -> None:
    """Raise ProgramError, with a remedy, if a run with tables had no answer."""
    devices = receipt.devices.values()
    if any(device.hits or any(kernel.config for kernel in device.generated) for device in devices):
        return
    asked = sum(device.calls for device in devices)
    if not asked:
        raise ProgramError(f"nothing to compare: {nothing_asked(receipt)}")
    own = dict.fromkeys(reason for device in devices for reason in device.left_out if reason.startswith(_OWN))
    tune = as_command("diode-lut", "tune", "--", *command)
    reasons = [f"`{tune}` measures what was missed", *(reason.removeprefix("user: ") for reason in own)]
    text = f"no table and no model answered any of {counted(asked, 'question')}; {'; '.join(reasons)}"
    raise ProgramError(f"nothing to compare: {text}")


class _OneRun(NamedTuple):
    """The times and the receipt of a run, and the times and costs in its traces."""

    sample: RunTimes
    receipt: Receipt
    times: GraphTimes | None
    costs: Sequence[Cost] = ()


def _run(plan: ComparisonPlan, kind: str, tell: Callable[[str], None], *, traced: bool = False) -> _OneRun:
    """Run the program once. ComparisonEnded if it was interrupted, or failed without tracing."""
    with (
        tempfile.TemporaryDirectory(prefix="diode-lut-", ignore_cleanup_errors=True) as name,
        tempfile.TemporaryFile() as output,
    ):
        probe = f"{TRACED if traced else ''}{name}"
        with cold({**plan.environment, **_VARIABLES[kind], VARIABLE: probe}) as environment:
            run = run_with_receipt(plan.command, environment, None, Streams(output, output), plan.limit_s)
            if run.ended.interrupted:
                tell("interrupted: nothing is compared")
                raise ComparisonEnded(run.ended.code or _INTERRUPTED)
            if run.ended.code and not traced:
                for line in without_leaks(_tail(output)).splitlines()[-_TAIL_LINES:]:
                    tell(f"| {line}")
                tell(f"the program failed {kind} tables, with exit code {run.ended.code}: nothing is compared")
                raise ComparisonEnded(run.ended.code)
            said: list[dict[str, Any]] = []
            for path in sorted(Path(name).glob("*[0-9].json")):  # which the processes wrote at their ends
                with suppress(OSError, orjson.JSONDecodeError):
                    said.append(orjson.loads(path.read_bytes()))
            traces = read_traces(Path(name, each["trace"]) for each in said if each.get("trace")) if traced else []
        compiled = [each["compile_s"] for each in said if each.get("compile_s")]
        steps = [median(each["steps_s"]) for each in said if each["steps_s"]]
        printed = [] if steps else printed_steps(_tail(output, 1 << 24))
        wall = None if plan.limit_s is not None else run.ended.seconds
        step = max(steps, default=median(printed) if printed else None)
        sample = RunTimes(wall, max(compiled, default=None), step)
        return _OneRun(sample, run.receipt, graph_times(traces), costs_in(traces, said))


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
"""``12.3 ms/step``, ``8.1 it/s`` as tqdm prints it, ``step time: 12.3 ms``."""


def printed_steps(output: str) -> list[float]:
    """Return the printed times of steps, in seconds, without the first half, which warms up."""
    steps = []
    for found in _PRINTED.finditer(output):
        with suppress(ValueError, ZeroDivisionError):
            unit = 0.0 if found["rate"] else _SECONDS[(found["unit"] or found["named_unit"]).lower()]
            steps.append(unit * float(found["time"] or found["named"]) if unit else 1 / float(found["rate"]))
    steps = [time for time in steps if time > 0]
    return steps[len(steps) // 2 :]


def _changes(
    samples: Mapping[str, Sequence[RunTimes]], graphs: Mapping[str, Sequence[GraphTimes]], look: int
) -> dict[str, Speedup]:
    """Return the known changes by name, if enough pairs of runs have the time."""
    times = {name: [[getattr(each, name) for each in samples[kind]] for kind in KINDS] for name in RunTimes._fields}
    times["graph"] = [[each.call_ns / 1e9 for each in graphs[kind]] for kind in KINDS]
    times["gemms"] = [[each.gemms_ns / 1e9 for each in graphs[kind]] for kind in KINDS]
    pairs = {name: [pair for pair in zip(*each, strict=True) if all(pair)] for name, each in times.items()}
    known = {name: each for name, each in pairs.items() if len(each) >= _LEAST_PAIRS}
    error = error_of(look, TIMES_ERR) / max(len(known), 1)
    return {name: change_of(*map(list, zip(*each, strict=True)), error=error) for name, each in known.items()}


def _trace_pair(
    plan: ComparisonPlan,
    graphs: dict[str, list[GraphTimes]],
    costs: list[Sequence[Cost]],
    pairs: int,
    tell: Callable[[str], None],
) -> bool:
    """Trace a pair of runs, and return whether both left a trace. If not, there are no times of graphs at all."""
    for kind in KINDS if pairs % 2 else reversed(KINDS):
        run = _run(plan, kind, tell, traced=True)
        times = run.times
        if kind == WITH:
            costs.append(run.costs)
        if times is None:
            tell(f"no times of graphs and GEMMs: the run {kind} tables left no trace of a compiled graph")
            for each in graphs.values():
                each.clear()
            return False
        graphs[kind].append(times)
        calls, gemms = counted(times.calls, "call"), counted(len(times.gemms), "GEMM")
        kernels = f", {counted(len(times.generated), 'generated kernel')}" if times.generated else ""
        tell(f"{pairs + 1} {kind} tables, traced: {calls} of compiled graphs, {gemms}{kernels}")
    return True
