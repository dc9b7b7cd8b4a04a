"""Compare a program with and without tables: run it in turn, trace it, and tell differences from noise."""

from __future__ import annotations

import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median, stdev
from typing import IO, Any, NamedTuple

import orjson

from diode_lut.errors import DiodeLutError, ProgramError, as_command, printable
from diode_lut.probe import TRACED, VARIABLE
from diode_lut.problem import SIZE_FIELDS, Problem
from diode_lut.programs.account import ProgramRun, counted, nothing_asked, run_with_receipt
from diode_lut.programs.launch import Streams, cold, without_leaks
from diode_lut.programs.trace import GemmTime, GraphTimes, read_traces, unpadded
from diode_lut.receipts.receipt import Receipt
from diode_lut.settings import USER
from diode_lut.table import Entry, read_table
from diode_lut.templates.config import BASELINES, baseline

_STUDENT = (12.71, 4.31, 3.19, 2.78, 2.58, 2.45, 2.37, 2.31, 2.27, 2.23)
"""Student's t for 95 %, by degrees of freedom from 1 on."""


class Speedup(NamedTuple):
    """Times in seconds without and with tables, a pair for each repetition, and the speed-up.

    ``gain`` is the geometric mean of the ratios without / with. ``low`` and ``high`` are the ends of its 95 %
    confidence interval, for normally distributed logarithms of the ratios.
    """

    without: Sequence[float]
    tuned: Sequence[float]
    gain: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the difference is beyond noise."""
        return self.low > 1 or self.high < 1

    @property
    def verdict(self) -> str:
        """The verdict as text."""
        return _percent(self.gain) if self.is_clear else "no difference beyond noise"

    @property
    def interval(self) -> str:
        """The confidence interval, for people."""
        return f"{_percent(self.low)} to {_percent(self.high)}"


def change_of(without: Sequence[float], tuned: Sequence[float]) -> Speedup:
    """The change from at least two pairs of positive times."""
    ratios = [math.log(one / other) for one, other in zip(without, tuned, strict=True)]
    freedom = len(ratios) - 1
    student = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 1.96 + 2.7 / freedom
    middle, margin = fmean(ratios), student * stdev(ratios) / math.sqrt(len(ratios))
    return Speedup(without, tuned, *(math.exp(middle + each) for each in (0.0, -margin, margin)))


def spread_text(times: Sequence[float]) -> str:
    """Return the median and the extremes of times in seconds, in a suitable unit."""
    scale, unit = next((scale, unit) for scale, unit in _UNITS if median(times) >= scale or unit == "us")
    middle, low, high = (f"{time / scale:.3g}" for time in (median(times), min(times), max(times)))
    return f"{middle} {unit}" if len(times) == 1 else f"{middle} {unit} ({low} to {high})"


_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


_MOST = 9
"""A larger increase, as a fraction, is not given in percent: of two pairs, an interval may end at a million."""


def _percent(gain: float) -> str:
    """Return a gain as text, as a change of the time "without"."""
    change = 1 / gain - 1
    if change > _MOST:
        return f"over {_MOST + 1} times the time"
    return f"{abs(change):.1%} {'less' if change <= 0 else 'more'} time"


WITHOUT, WITH = "without", "with"
"""The two kinds of runs."""

WORDS = {
    "wall": "wall time",
    "compile": "compile time",
    "step": "step time",
    "graph": "a call of a compiled graph",
    "gemms": "the GEMMs in a call of a graph",
}
"""The names of times. Times of graphs and GEMMs come from traced runs."""


_LEAST_RUNS = 2
"""Fewer traced runs of each kind say nothing of noise."""

_TEMPLATE = "triton_tem_"
"""The beginning of the name of a Triton template's kernel."""


class GemmChange(NamedTuple):
    """The times of a GEMM in traced runs with and without tables, empty if it was in none of them."""

    name: str
    without: Sequence[GemmTime]
    tuned: Sequence[GemmTime]

    @property
    def saved_ns(self) -> float:
        """The time saved in a traced run, 0 without a comparison."""
        if not self.without or not self.tuned:
            return 0.0
        calls = min(time.calls for time in (*self.without, *self.tuned))
        return calls * (middle_ns(self.without) - middle_ns(self.tuned))

    @property
    def is_clear(self) -> bool:
        """Whether the kernels differ, and every run of one kind is faster than every run of the other.

        Kernels of Triton may have the same name and differ.
        """
        one, other = ([time.ns for time in times] for times in (self.without, self.tuned))
        if min(len(one), len(other)) < _LEAST_RUNS:
            return False
        kernels = {time.kernel for time in (*self.without, *self.tuned)}
        is_same = len(kernels) == 1 and not kernels.pop().startswith(_TEMPLATE)
        return not is_same and (min(one) > max(other) or min(other) > max(one))


def middle_ns(times: Sequence[GemmTime]) -> float:
    """The median over runs."""
    return median(time.ns for time in times)


class Comparison(NamedTuple):
    """The result of a comparison. ``changes`` has the known times of WORDS, and ``receipt`` is from a run "with".

    ``on_gpu`` is whether traced times are times of GPU kernels. ``gemms`` begin with the largest gain.
    """

    command: Sequence[str]
    settings: Mapping[str, str]
    receipt: Receipt
    changes: Mapping[str, Speedup]
    on_gpu: bool
    gemms: Sequence[GemmChange]


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
        "gemms": [
            {
                "gemm": change.name,
                "saved_ns": change.saved_ns,
                "is_clear": change.is_clear,
                WITHOUT: [time._asdict() for time in change.without],
                WITH: [time._asdict() for time in change.tuned],
            }
            for change in comparison.gemms
        ],
    }


def summary(comparison: Comparison) -> list[str]:
    """The verdicts, for a terminal."""
    lines = []
    for name, change in comparison.changes.items():
        times = f"{spread_text(change.without)} without tables, {spread_text(change.tuned)} with"
        lines.append(f"{WORDS[name]}: {change.verdict} ({change.interval}); {times}")
    if comparison.gemms:
        clear = [change for change in comparison.gemms if change.is_clear]
        gained = sum(change.saved_ns > 0 for change in clear)
        lines.append(
            f"GEMMs: {gained} faster, {len(clear) - gained} slower, "
            f"{len(comparison.gemms) - len(clear)} without a difference beyond noise"
        )
    return lines


def losing_rows(comparison: Comparison) -> Iterator[str]:
    """Yield a command for each row of the user's tables whose GEMM lost. It sets the library's kernel.

    Removing the row would not last: the next ``build`` from the same timings makes it again.
    """
    lost = {change.name for change in comparison.gemms if change.is_clear and change.saved_ns < 0}
    rows = {}
    for device in comparison.receipt.devices.values():
        paths = {source.digest: Path(source.path) for source in device.sources if source.tier == USER}
        for hit in device.hits:
            if _traced_name(hit.problem) in lost and hit.digest in paths:
                with suppress(DiodeLutError):
                    entry = read_table(paths[hit.digest]).lookup(hit.problem)
                    if entry is not None and entry.note is None and entry.best.config not in BASELINES:
                        rows[paths[hit.digest], entry] = hit.problem
    for (path, entry), problem in rows.items():
        command = _set_command(path, entry, problem)
        yield f"{problem} is slower with its row; for {baseline(problem.op)} instead: {command}"


def _traced_name(problem: Problem) -> str:
    """The name of the GEMM in a trace."""
    batch = f"{problem.b}x" if problem.b > 1 else ""
    return f"{batch}{problem.m}x{problem.n}x{problem.k} {'float32' if problem.dtype == 'tf32' else problem.dtype}"


def _set_command(path: Path, entry: Entry, problem: Problem) -> str:
    names = ("dtype", "layout", "epilogue", "variant", *SIZE_FIELDS)
    fields = {name: getattr(entry, name) for name in names if getattr(entry, name) is not None}
    texts = {name: value if isinstance(value, str) else "-".join(map(str, value)) for name, value in fields.items()}
    options = [word for name, text in texts.items() for word in (f"--{name}", text)]
    align = "any" if entry.align is None else str(entry.align)
    answer = ("--align", align, "--config", str(baseline(problem.op)), "--note", "slower in a program")
    return as_command("diode-lut", "set", path, entry.op or "any", *options, *answer)


_VARIABLES = {WITHOUT: {"DIODE_LUT_POLICY": "off"}, WITH: dict[str, str]()}

KINDS = (WITHOUT, WITH)

_OWN = "user: left out: "
"""The beginning of a receipt's reason against a table of the user's own."""

_LEAST_PAIRS = 2
"""Fewer pairs have no spread."""

_TRACED_PAIRS = 3
"""How many pairs of runs are traced."""

_INTERRUPTED = 130
_TAIL_LINES, _TAIL_BYTES = 20, 1 << 16
"""Maximum output of a failed program to show."""


class ComparisonPlan(NamedTuple):
    """The program, its environment, the number of pairs of runs, and the seconds until it is interrupted."""

    command: Sequence[str]
    environment: Mapping[str, str]
    pairs: int
    limit_s: float | None


class RunTimes(NamedTuple):
    """Seconds of a run: all of it, the longest compiling of a process, and a step.

    None is not known. A step is the median of the process with the longest steps, or of printed times without marks.
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
    """Run everything, and tell how it goes. Ended if it cannot be finished.

    ProgramError if no table and no model answered: then there is nothing to compare.
    """
    receipt = _run(plan, WITH, tell).receipt
    require_answers(receipt, plan.command)
    tell("the program runs, and GEMMs are answered; this first run warms up the disk and does not count")
    samples: dict[str, list[RunTimes]] = {WITHOUT: [], WITH: []}
    for kind in _in_turn(plan.pairs):
        samples[kind].append(_run(plan, kind, tell).sample)
        tell(f"{len(samples[kind])} of {plan.pairs} {kind} tables: {_told(samples[kind][-1])}")
    graphs = _traces(plan, tell)
    settings = {name: value for name, value in sorted(plan.environment.items()) if name.startswith("DIODE_LUT_")}
    on_gpu = any(each.on_gpu for each in graphs[WITH])
    changes = _changes(samples, graphs)
    return Comparison(plan.command, settings, receipt, changes, on_gpu, _gemm_changes(graphs))


def _in_turn(pairs: int) -> Iterator[str]:
    """Yield kinds of runs in alternating order, so a drift of the machine affects both alike."""
    for number in range(pairs):
        yield from (WITH, WITHOUT) if number % 2 == 0 else (WITHOUT, WITH)


def require_answers(receipt: Receipt, command: Sequence[str]) -> None:
    """Raise ProgramError, with a remedy, if a run with tables had no answer."""
    devices = receipt.devices.values()
    if any(device.hits for device in devices):
        return
    asked = sum(device.calls for device in devices)
    if not asked:
        raise ProgramError(f"nothing to compare: {nothing_asked(receipt)}")
    own = dict.fromkeys(reason for device in devices for reason in device.left_out if reason.startswith(_OWN))
    tune = as_command("diode-lut", "tune", "--", *command)
    reasons = [f"`{tune}` measures what was missed", *(reason.removeprefix("user: ") for reason in own)]
    text = f"no table and no model answered any of {counted(asked, 'question')}; {'; '.join(reasons)}"
    raise ProgramError(f"nothing to compare: {text}")


def _told(sample: RunTimes) -> str:
    known = {name: time for name, time in sample._asdict().items() if time is not None}
    return ", ".join(f"{name} {spread_text([time])}" for name, time in known.items())


class _OneRun(NamedTuple):
    """The times, the receipt and the trace of a run."""

    sample: RunTimes
    receipt: Receipt
    times: GraphTimes | None


def _run(plan: ComparisonPlan, kind: str, tell: Callable[[str], None], *, traced: bool = False) -> _OneRun:
    """Run the program once. ComparisonEnded if it was interrupted, or failed without tracing."""
    with (
        tempfile.TemporaryDirectory(prefix="diode-lut-", ignore_cleanup_errors=True) as name,
        tempfile.TemporaryFile() as output,
    ):
        probe = f"{TRACED if traced else ''}{name}"
        with cold({**plan.environment, **_VARIABLES[kind], VARIABLE: probe}) as environment:
            run = run_with_receipt(plan.command, environment, None, Streams(output, output), plan.limit_s)
            if run.ended.interrupted or (run.ended.code and not traced):
                _tell_end(run, kind, output, tell)
                raise ComparisonEnded(run.ended.code or _INTERRUPTED)
            said = _said(Path(name))
            times = read_traces(Path(name, each["trace"]) for each in said if each.get("trace")) if traced else None
        return _OneRun(_sample(run, said, output, plan), run.receipt, times)


def _tell_end(run: ProgramRun, kind: str, output: IO[bytes], tell: Callable[[str], None]) -> None:
    if run.ended.interrupted:
        tell("interrupted: nothing is compared")
        return
    for line in without_leaks(_tail(output)).splitlines()[-_TAIL_LINES:]:
        tell(f"| {line}")
    tell(f"the program failed {kind} tables, with exit code {run.ended.code}: nothing is compared")


def _tail(output: IO[bytes], size: int = _TAIL_BYTES) -> str:
    output.seek(max(0, output.seek(0, 2) - size))
    return output.read().decode(errors="replace")


def _said(directory: Path) -> list[dict[str, Any]]:
    """Read the files that the processes wrote at their ends."""
    found = []
    for path in sorted(directory.glob("*[0-9].json")):
        with suppress(OSError, orjson.JSONDecodeError):
            found.append(orjson.loads(path.read_bytes()))
    return found


def _sample(run: ProgramRun, said: Iterable[Mapping[str, Any]], output: IO[bytes], plan: ComparisonPlan) -> RunTimes:
    compiled = [each["compile_s"] for each in said if each.get("compile_s")]
    steps = [median(each["steps_s"]) for each in said if each["steps_s"]]
    printed = [] if steps else printed_steps(_tail(output, 1 << 24))
    wall = None if plan.limit_s is not None else run.ended.seconds
    return RunTimes(wall, max(compiled, default=None), max(steps, default=median(printed) if printed else None))


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
    found = [time for each in _PRINTED.finditer(output) if (time := _seconds(each)) > 0]
    return found[len(found) // 2 :]


def _seconds(found: re.Match[str]) -> float:
    with suppress(ValueError, ZeroDivisionError):
        if found["rate"]:
            return 1 / float(found["rate"])
        return float(found["time"] or found["named"]) * _SECONDS[(found["unit"] or found["named_unit"]).lower()]
    return 0.0


def _changes(
    samples: Mapping[str, Sequence[RunTimes]], graphs: Mapping[str, Sequence[GraphTimes]]
) -> dict[str, Speedup]:
    """Return the known changes by name, if enough pairs of runs have the time."""
    times = {name: [[getattr(each, name) for each in samples[kind]] for kind in KINDS] for name in RunTimes._fields}
    times["graph"] = [[each.call_ns / 1e9 for each in graphs[kind]] for kind in KINDS]
    times["gemms"] = [[each.gemms_ns / 1e9 for each in graphs[kind]] for kind in KINDS]
    known = {name: [pair for pair in zip(*each, strict=True) if all(pair)] for name, each in times.items()}
    return {name: change_of(*zip(*pairs, strict=True)) for name, pairs in known.items() if len(pairs) >= _LEAST_PAIRS}


def _traces(plan: ComparisonPlan, tell: Callable[[str], None]) -> dict[str, list[GraphTimes]]:
    """Trace some pairs of runs. The times are empty if a run left no trace."""
    found: dict[str, list[GraphTimes]] = {WITHOUT: [], WITH: []}
    pairs = min(plan.pairs, _TRACED_PAIRS)
    for kind in _in_turn(pairs):
        times = _run(plan, kind, tell, traced=True).times
        if times is None:
            tell(f"no times of graphs and GEMMs: the run {kind} tables left no trace of a compiled graph")
            return {WITHOUT: [], WITH: []}
        found[kind].append(times)
        calls, gemms = counted(times.calls, "call"), counted(len(times.gemms), "GEMM")
        tell(f"{len(found[kind])} of {pairs} {kind} tables, traced: {calls} of compiled graphs, {gemms}")
    return found


def _gemm_changes(graphs: Mapping[str, Sequence[GraphTimes]]) -> list[GemmChange]:
    shown = unpadded([times.gemms for kind in KINDS for times in graphs[kind]])
    found: defaultdict[str, dict[str, list[GemmTime]]] = defaultdict(lambda: {kind: [] for kind in KINDS})
    for kind in KINDS:
        for times in graphs[kind]:
            for name, time in times.gemms.items():
                found[shown[name]][kind].append(time)
    changes = [GemmChange(name, *(times[kind] for kind in KINDS)) for name, times in found.items()]
    return sorted(changes, key=lambda change: (-change.saved_ns, change.name))
