"""What a change of tables does to time, on problems that were measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from statistics import fmean
from typing import NamedTuple

from diode_lut.build.measurements import Measurements, measurements_of
from diode_lut.dataset import Record
from diode_lut.evaluate import MISS, answers_of
from diode_lut.kernels.config import ATEN, Config
from diode_lut.problem import Problem
from diode_lut.table import Table


class Switch(NamedTuple):
    """A problem that gets another config; the times are nanoseconds, None where the config has none on it."""

    problem: Problem
    old: Config
    new: Config
    old_ns: float | None
    new_ns: float | None

    @property
    def change(self) -> float | None:
        """New time over old time, minus one: negative is faster. None where one of them was not measured."""
        return None if self.old_ns is None or self.new_ns is None else self.new_ns / self.old_ns - 1


class Effect:
    """Of ``problems`` measured ones, the old table covers ``old_covered`` and the new one ``new_covered``.

    ``switches`` are the problems whose first config changes, that with the largest loss first, those whose change is
    unknown last.
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
    """What the new table does to the measured problems. A miss counts as ``aten``, as in evaluating.

    DatasetError is raised if nothing was measured successfully.
    """
    measurements = measurements_of(records)
    answers = [_first_choices(table, measurements) for table in (old, new)]
    old_covered, new_covered = (sum(choice is not None for choice in choices) for choices in answers)
    choices = enumerate(zip(*([choice or ATEN for choice in choices] for choices in answers), strict=True))
    switches = (_switch(measurements, number, was, now) for number, (was, now) in choices if was != now)
    return Effect(len(measurements.problems), old_covered, new_covered, switches)


def _first_choices(table: Table, measurements: Measurements) -> list[Config | None]:
    """The first config for each problem; None for a miss."""
    select = answers_of(table)
    answers = map(select, measurements.problems)
    return [None if answer.source == MISS else answer.configs[0] for answer in answers]


def _switch(measurements: Measurements, number: int, old: Config, new: Config) -> Switch:
    times = measurements.times_on(number)
    return Switch(measurements.problems[number], old, new, times.get(old), times.get(new))


def _by_loss(switch: Switch) -> tuple[bool, float, Problem]:
    return switch.change is None, -(switch.change or 0.0), switch.problem
