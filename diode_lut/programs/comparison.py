"""What a comparison found: as JSON, and in a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from diode_lut.domain.printable import printable
from diode_lut.programs.noise import Change, spread_text
from diode_lut.programs.trace import GemmTime, GraphTimes
from diode_lut.receipt.receipt import Receipt

WITHOUT, WITH = "without", "with"
"""The two kinds of runs."""

WORDS = {"wall": "wall time", "compile": "compile time", "step": "step time"}
"""What the times of a run are called."""


class GemmChange(NamedTuple):
    """A GEMM in the two traced runs; None if it was not in one of them."""

    name: str
    without: GemmTime | None
    tuned: GemmTime | None

    @property
    def saved_ns(self) -> float:
        """What all traced executions save; 0 if there is nothing to compare with."""
        if self.without is None or self.tuned is None:
            return 0.0
        return min(self.without.calls, self.tuned.calls) * (self.without.ns.median - self.tuned.ns.median)

    @property
    def is_clear(self) -> bool:
        """Whether there are enough times in both runs, and their middle halves do not overlap."""
        one, other = self.without, self.tuned
        if one is None or other is None or not (one.is_enough and other.is_enough):
            return False
        return one.ns.low > other.ns.high or other.ns.low > one.ns.high


class Comparison(NamedTuple):
    """All that was found. ``changes`` are of WORDS, as far as they are known; ``receipt`` is of one run "with".

    ``graphs`` are by the kind of run, and empty if no graph was traced. ``gemms`` begin with what gained most.
    """

    command: Sequence[str]
    settings: Mapping[str, str]
    receipt: Receipt
    changes: Mapping[str, Change]
    graphs: Mapping[str, GraphTimes]
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
        "graphs": {
            kind: {name: value for name, value in times._asdict().items() if name != "gemms"}
            for kind, times in comparison.graphs.items()
        },
        "gemms": [
            {
                "gemm": change.name,
                "saved_ns": change.saved_ns,
                "is_clear": change.is_clear,
                WITHOUT: _gemm_to_json(change.without),
                WITH: _gemm_to_json(change.tuned),
            }
            for change in comparison.gemms
        ],
    }


def _gemm_to_json(time: GemmTime | None) -> dict[str, Any] | None:
    return None if time is None else {"calls": time.calls, "ns": time.ns._asdict(), "kernel": printable(time.kernel)}


def summary(comparison: Comparison) -> list[str]:
    """The verdicts, for a terminal."""
    lines = []
    for name, change in comparison.changes.items():
        times = f"{spread_text(change.without)} without tables, {spread_text(change.tuned)} with"
        lines.append(f"{WORDS[name]}: {change.verdict} ({change.interval}); {times}")
    if comparison.graphs:
        without, tuned = comparison.graphs[WITHOUT], comparison.graphs[WITH]
        where = "on the GPU" if tuned.on_gpu else "on the CPU"
        lines.append(
            f"a call of a compiled graph {where}: {spread_text([without.call_ns / 1e9])} without tables, "
            f"{spread_text([tuned.call_ns / 1e9])} with, of which GEMMs {spread_text([without.gemms_ns / 1e9])} and "
            f"{spread_text([tuned.gemms_ns / 1e9])} (one traced run of each)"
        )
        clear = [change for change in comparison.gemms if change.is_clear]
        gained = sum(change.saved_ns > 0 for change in clear)
        lines.append(
            f"GEMMs: {gained} faster, {len(clear) - gained} slower, "
            f"{len(comparison.gemms) - len(clear)} without a difference beyond noise"
        )
    return lines
