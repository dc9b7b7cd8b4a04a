"""What a comparison found: as JSON, and in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from diode_lut.domain.errors import DiodeLutError
from diode_lut.domain.ops import SIZE_FIELDS
from diode_lut.domain.printable import as_command, printable
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import BASELINES, baseline
from diode_lut.programs.noise import Speedup, spread_text
from diode_lut.programs.trace import GemmTime
from diode_lut.receipt.receipt import Receipt
from diode_lut.settings import USER
from diode_lut.table import Entry, read_table

WITHOUT, WITH = "without", "with"
"""The two kinds of runs."""

WORDS = {
    "wall": "wall time",
    "compile": "compile time",
    "step": "step time",
    "graph": "a call of a compiled graph",
    "gemms": "the GEMMs in a call of a graph",
}
"""What the times are called. Those of graphs are from traced runs."""


_LEAST_RUNS = 2
"""Fewer traced runs of each kind say nothing of noise."""

_TEMPLATE = "triton_tem_"
"""The beginning of the name of a Triton template's kernel."""


class GemmChange(NamedTuple):
    """A GEMM in the traced runs, by kind of run; empty where it was in none of them."""

    name: str
    without: Sequence[GemmTime]
    tuned: Sequence[GemmTime]

    @property
    def saved_ns(self) -> float:
        """What the executions of a traced run save; 0 if there is nothing to compare with."""
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
    """All that was found. ``changes`` are of WORDS, as far as they are known; ``receipt`` is of one run "with".

    ``on_gpu`` says whether traced times are those of GPU kernels. ``gemms`` begin with what gained most.
    """

    command: Sequence[str]
    settings: Mapping[str, str]
    receipt: Receipt
    changes: Mapping[str, Speedup]
    on_gpu: bool
    gemms: Sequence[GemmChange]


def as_json(comparison: Comparison) -> dict[str, Any]:
    """All figures, for programs; times are in nanoseconds or, where the name says it, in seconds."""
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
    """For each row of the user's own tables whose GEMM lost, the command after which it has the library's kernel.

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
