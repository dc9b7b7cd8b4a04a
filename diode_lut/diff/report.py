"""The effect of a change on time, for all problems of datasets, and a report as pieces of text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from diode_lut.diff.compare import Change, Diff
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import ATEN, Config
from diode_lut.table import Table
from diode_lut.table.canonical import key_text, winner_text

if TYPE_CHECKING:
    from diode_lut.build.measurements import Measurements
    from diode_lut.dataset import Record


class Switch(NamedTuple):
    """A problem that gets another config, with both times in nanoseconds; None for a config that was not measured."""

    problem: Problem
    old: Config
    new: Config
    old_ns: float | None
    new_ns: float | None

    @property
    def change(self) -> float | None:
        """New time over old time, minus one: negative is faster. None if one of them was not measured."""
        return None if self.old_ns is None or self.new_ns is None else self.new_ns / self.old_ns - 1


class Effect:
    """What the new table changes on measured problems.

    ``problems`` is their number, of which the old table covers ``old_covered`` and the new one ``new_covered``.
    ``switches`` are the problems whose first config changes: the largest loss first, unknown changes last.
    """

    def __init__(self, problems: int, old_covered: int, new_covered: int, switches: Iterable[Switch]) -> None:
        self.problems = problems
        self.old_covered = old_covered
        self.new_covered = new_covered
        self.switches: Sequence[Switch] = sorted(switches, key=_by_loss)

    @cached_property
    def changes(self) -> list[float]:
        """The changes of time that are known, the largest loss first."""
        return [each.change for each in self.switches if each.change is not None]

    @property
    def mean_change(self) -> float | None:
        """Geometric mean of new over old time, minus one, over the problems with known changes; None without any."""
        return math.expm1(fmean(map(math.log1p, self.changes))) if self.changes else None


def effect_of(old: Table, new: Table, records: Iterable[Record]) -> Effect:
    """The effect of the new table on the measured problems. A miss counts as ``aten``, as in ``evaluate``.

    DatasetError is raised if nothing was measured successfully.
    """
    from diode_lut.build.measurements import measurements_of  # with NumPy, which a diff alone needs not

    measurements = measurements_of(records)
    answers = [_first_choices(table, measurements) for table in (old, new)]
    old_covered, new_covered = (sum(choice is not None for choice in choices) for choices in answers)
    choices = enumerate(zip(*([choice or ATEN for choice in choices] for choices in answers), strict=True))
    switches = (_switch(measurements, number, was, now) for number, (was, now) in choices if was != now)
    return Effect(len(measurements.problems), old_covered, new_covered, switches)


def _first_choices(table: Table, measurements: Measurements) -> list[Config | None]:
    """The first config for each problem; None for a miss."""
    entries = map(table.lookup, measurements.problems)
    return [None if entry is None else entry.best.config for entry in entries]


def _switch(measurements: Measurements, number: int, old: Config, new: Config) -> Switch:
    times = measurements.times_on(number)
    return Switch(measurements.problems[number], old, new, times.get(old), times.get(new))


def _by_loss(switch: Switch) -> tuple[bool, float, Problem]:
    return switch.change is None, -(switch.change or 0.0), switch.problem


class Report(NamedTuple):
    """The difference between the tables with the names ``old`` and ``new``, and its effect on time, if requested."""

    old: str
    new: str
    diff: Diff
    effect: Effect | None = None


def change_key(change: Change) -> str:
    """What the row covers, after what it covered before if that is different."""
    now = key_text(change.row)
    return f"{key_text(change.old)} -> {now}" if change.old and change.kind in ("narrowed", "widened") else now


def change_winner(change: Change) -> str:
    """The row's first config, after the one before if that is different."""
    now = winner_text(change.row)
    return f"{winner_text(change.old)} -> {now}" if change.old and change.new_winner else now


def change_details(change: Change) -> list[str]:
    """The other differences of a row whose key and winner are the same."""
    old, new = change.old, change.new
    if old is None or new is None or change.kind != "details":
        return []
    fields = {
        "gain": (_gain(old.best.gain_permille), _gain(new.best.gain_permille)),
        "after it": (_others(old.configs), _others(new.configs)),
        "problems": (str(old.problems), str(new.problems)),
        "note": (json.dumps(old.note, ensure_ascii=False), json.dumps(new.note, ensure_ascii=False)),
    }
    found = [f"{name} {was} -> {now}" for name, (was, now) in fields.items() if was != now]
    return found or ["gains of configs that are not the first"]


def summary(diff: Diff) -> str:
    """The number of changes of each kind."""
    words = {"winner": "with another winner", "details": "changed in details"}
    rows = ", ".join(f"{count} {words.get(kind, kind)}" for kind, count in diff.counts.items())
    unpaired = "; not all that were narrowed or widened were looked for" if diff.unpaired else ""
    return f"rows: {rows}{unpaired}" if rows else "rows: no changes"


def effect_lines(effect: Effect) -> list[str]:
    """Coverage, the number of affected problems, and how much faster or slower these are."""
    was, now = (f"{covered / effect.problems:.1%}" for covered in (effect.old_covered, effect.new_covered))
    lines = [
        f"coverage: {was} -> {now} of {effect.problems} measured problems",
        f"problems affected: {len(effect.switches)}, of which {len(effect.changes)} with both times known",
    ]
    if effect.mean_change is not None:
        worst, best = effect.changes[0], effect.changes[-1]
        lines.append(
            f"time: {effect.mean_change:+.2%} in the geometric mean, {worst:+.2%} at worst, {best:+.2%} at best"
        )
    return lines


def switch_text(switch: Switch) -> str:
    """One problem that gets another config."""
    change = "unknown" if switch.change is None else f"{switch.change:+.2%}"
    return f"{change} on {switch.problem}: {switch.old} -> {switch.new}"


def _gain(gain_permille: int | None) -> str:
    return "none" if gain_permille is None else f"{gain_permille / 1000:.3f}"


def _others(configs: tuple[object, ...]) -> str:
    return ", ".join(map(str, configs[1:])) or "nothing"
