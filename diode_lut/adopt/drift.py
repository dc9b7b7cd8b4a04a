"""Whether the gains that a table records are measured again: which rows drifted, and what that says of all rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, median, stdev
from typing import Literal, NamedTuple

from diode_lut.domain.problem import Problem

TOLERANCE = 0.1
"""A row has drifted if its gain, each time it is measured, differs from the recorded one by more than this fraction.

tools/score_verify.py computes what follows from it: in later runs on other H200 at most 1 of 48 rows drifted, and with
the configs of 30 % of the rows swapped 4 to 18."""

NOISE_FACTOR = 4.0
"""Where two measurements of a gain differ much, the tolerance is this many times their typical difference."""

MAX_NOISE = 0.05
"""Typical difference between two measurements of a gain, as a fraction, above which nothing can be said."""

HEALTHY, SICK = 0.15, 0.02
"""A table holds if surely fewer than the first fraction of its rows drifted; it does not if surely more than the
second did."""

MIN_ROWS = 8
"""Least number of rows that a verdict needs."""

_Z = NormalDist().inv_cdf(0.975)

Verdict = Literal["holds", "does not hold", "undecided", "too noisy"]


class RemeasuredRow(NamedTuple):
    """A row at its problems: the recorded gain over aten, and those measured here, 0 where the config failed.

    The gain of several problems is their geometric mean.
    """

    problems: tuple[Problem, ...]
    recorded: float
    measured: tuple[float, ...]

    @property
    def shifts(self) -> list[float]:
        """Logarithms of measured over recorded gain, one for each measurement."""
        return [math.log(gain / self.recorded) if gain > 0 else -math.inf for gain in self.measured]

    def drifted(self, tolerance: float) -> bool:
        """Whether every measurement is off by more than the tolerance, all in the same direction."""
        limit = math.log1p(tolerance)
        return all(shift > limit for shift in self.shifts) or all(shift < -limit for shift in self.shifts)


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


class Drift(NamedTuple):
    """What the rows say together.

    ``noise`` is the median difference, a fraction, between two measurements of one gain; None if no row has two.
    """

    rows: Sequence[RemeasuredRow]
    noise: float | None

    @property
    def tolerance(self) -> float:
        """By how much a gain may differ, a fraction."""
        return max(TOLERANCE, NOISE_FACTOR * (self.noise or 0.0))

    @property
    def drifted(self) -> list[RemeasuredRow]:
        """The rows that drifted, the largest loss first."""
        found = [row for row in self.rows if row.drifted(self.tolerance)]
        return sorted(found, key=lambda row: max(row.shifts))

    @property
    def share(self) -> Interval:
        """The fraction of rows that drifted, with Wilson's interval."""
        return wilson(len(self.drifted), len(self.rows))

    @property
    def kept(self) -> Interval | None:
        """Measured over recorded gain as a geometric mean, of the rows whose configs ran; None if not two did."""
        shifts = [row.shifts[-1] for row in self.rows if row.measured[-1] > 0]
        if len(shifts) < 2:
            return None
        mean, error = fmean(shifts), _Z * stdev(shifts) / math.sqrt(len(shifts))
        return Interval(math.exp(mean), math.exp(mean - error), math.exp(mean + error))

    @property
    def verdict(self) -> Verdict:
        """What can be said of the whole table."""
        if self.noise is not None and self.noise > MAX_NOISE:
            return "too noisy"
        if len(self.rows) < MIN_ROWS:
            return "undecided"
        if self.share.low > SICK:
            return "does not hold"
        return "holds" if self.share.high < HEALTHY else "undecided"


def noise_of(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The median difference, a fraction, between two measurements of the same gains."""
    both = [abs(math.log(one / other)) for one, other in pairs if one > 0 and other > 0]
    return math.expm1(median(both)) if both else None


def wilson(hits: int, count: int) -> Interval:
    """The fraction ``hits / count`` with its 95 % interval, by Wilson's method; from 0 to 1 if nothing was counted."""
    if not count:
        return Interval(0.0, 0.0, 1.0)
    fraction, z2 = hits / count, _Z * _Z
    middle = (fraction + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z * math.sqrt(fraction * (1 - fraction) / count + z2 / (4 * count * count)) / (1 + z2 / count)
    return Interval(fraction, max(0.0, middle - half), min(1.0, middle + half))
