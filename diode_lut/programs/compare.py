"""``compare``: a program with and without tables, in turn, and what differs beyond noise.

"Without" is the setting ``policy`` at ``off``; everything else is the same, and every run begins with cold caches.
Before the timed runs comes one that is not timed, after them some with a profiler.
"""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import IO, Any, NamedTuple

import orjson

from diode_lut.domain.errors import ProgramError
from diode_lut.domain.printable import as_command
from diode_lut.programs.account import Run, counted, nothing_asked, run_with_receipt
from diode_lut.programs.comparison import WITH, WITHOUT, Comparison, GemmChange
from diode_lut.programs.launch import Streams, cold, without_leaks
from diode_lut.programs.noise import Speedup, change_of, spread_text
from diode_lut.programs.trace import GemmTime, GraphTimes, read_traces, unpadded
from diode_lut.receipt.receipt import Receipt
from diode_lut.runtime.probe import TRACED, VARIABLE

_VARIABLES = {WITHOUT: {"DIODE_LUT_POLICY": "off"}, WITH: dict[str, str]()}

KINDS = (WITHOUT, WITH)

_OWN = "user: left out: "
"""How a receipt's reason begins why one of the user's own tables could not answer."""

_LEAST_PAIRS = 2
"""Fewer pairs have no spread."""

_TRACED_PAIRS = 3
"""How many pairs of runs are traced."""

_INTERRUPTED = 130
_TAIL_LINES, _TAIL_BYTES = 20, 1 << 16
"""How much of the output of a program that fails is shown."""


class ComparisonPlan(NamedTuple):
    """What to compare: a program, its environment, how many pairs of runs, and the seconds until it is interrupted."""

    command: Sequence[str]
    environment: Mapping[str, str]
    pairs: int
    limit_s: float | None


class RunTimes(NamedTuple):
    """What one run took, in seconds: all of it, compiling in the process that compiled longest, and a step.

    None is not known. A step is the median of the process whose steps take longest; without marks, of printed times.
    """

    wall: float | None
    compile: float | None
    step: float | None


class ComparisonEnded(Exception):  # noqa: N818 (what ended is the program)
    """A run failed or was interrupted, so the comparison ends; ``code`` is the exit code."""

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
    """The kinds of runs, in alternating order, so that a drift of the machine hits both alike."""
    for number in range(pairs):
        yield from (WITH, WITHOUT) if number % 2 == 0 else (WITHOUT, WITH)


def require_answers(receipt: Receipt, command: Sequence[str]) -> None:
    """ProgramError, with what to do, if nothing was answered in a run with tables."""
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


class _Result(NamedTuple):
    """What came of one run."""

    sample: RunTimes
    receipt: Receipt
    times: GraphTimes | None


def _run(plan: ComparisonPlan, kind: str, tell: Callable[[str], None], *, traced: bool = False) -> _Result:
    """One run; Ended if it was interrupted, or failed although it was not traced."""
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
        return _Result(_sample(run, said, output, plan), run.receipt, times)


def _tell_end(run: Run, kind: str, output: IO[bytes], tell: Callable[[str], None]) -> None:
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
    """What the processes wrote at their ends."""
    found = []
    for path in sorted(directory.glob("*[0-9].json")):
        with suppress(OSError, orjson.JSONDecodeError):
            found.append(orjson.loads(path.read_bytes()))
    return found


def _sample(run: Run, said: Iterable[Mapping[str, Any]], output: IO[bytes], plan: ComparisonPlan) -> RunTimes:
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
    """The times of steps, in seconds, that a program has printed; without the first half, which warms up."""
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
    """By name, the times that are known of enough pairs of runs."""
    times = {name: [[getattr(each, name) for each in samples[kind]] for kind in KINDS] for name in RunTimes._fields}
    times["graph"] = [[each.call_ns / 1e9 for each in graphs[kind]] for kind in KINDS]
    times["gemms"] = [[each.gemms_ns / 1e9 for each in graphs[kind]] for kind in KINDS]
    known = {name: [pair for pair in zip(*each, strict=True) if all(pair)] for name, each in times.items()}
    return {name: change_of(*zip(*pairs, strict=True)) for name, pairs in known.items() if len(pairs) >= _LEAST_PAIRS}


def _traces(plan: ComparisonPlan, tell: Callable[[str], None]) -> dict[str, list[GraphTimes]]:
    """The times in traces of some pairs of runs; none if one could not be traced."""
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
