"""Verdicts on times with and without tables: differences that are larger than the noise.

A comparison looks at its times several times, and at several times at once. Each look may err half as often as the one
before it, and its share is divided among the times and GEMMs (Bonferroni, Holm), so all verdicts together keep to
``TIMES_ERR`` and ``GEMMS_ERR``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import fmean, median, stdev
from typing import NamedTuple

from diode_lut.programs.trace import GemmTime

TIMES_ERR, GEMMS_ERR = 0.01, 0.05
"""The chance that any time, and any GEMM, is called faster or slower where nothing differs."""

LEAST_GEMM_RUNS = 5
"""No GEMM is called faster or slower with fewer traced runs of each kind."""

_SAME = 1.03
"""Ratios within this factor need no further runs."""

_GEMM_INTERVAL_ERR = 0.05
"""The chance that the interval of a single GEMM does not contain its ratio."""

_TEMPLATE = "triton_tem_"
"""The beginning of the name of a Triton template's kernel."""


class Speedup(NamedTuple):
    """Times in seconds without and with tables, a pair for each repetition, and the speed-up.

    ``gain`` is the geometric mean of the ratios without / with. ``low`` and ``high`` are the ends of its confidence
    interval, for normally distributed logarithms of the ratios.
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
    def is_told(self) -> bool:
        """Whether more runs would say little more: the difference is clear, or none of 3 % is possible."""
        return self.is_clear or (self.low > 1 / _SAME and self.high < _SAME)

    @property
    def verdict(self) -> str:
        """The verdict as text."""
        if not self.is_clear:
            return "no difference beyond noise"
        return f"{'faster' if self.gain > 1 else 'slower'}, {ratio_text(self.gain)}"

    @property
    def interval(self) -> str:
        """The confidence interval, for people."""
        return f"{ratio_text(self.low)} to {ratio_text(self.high)}"


def change_of(without: Sequence[float], tuned: Sequence[float], *, error: float = TIMES_ERR) -> Speedup:
    """The change from at least two pairs of positive times, with an interval that errs with this chance."""
    ratios = [math.log(one / other) for one, other in zip(without, tuned, strict=True)]
    middle, margin = fmean(ratios), student(error, len(ratios) - 1) * stdev(ratios) / math.sqrt(len(ratios))
    logarithms = (min(max(middle + each, -700.0), 700.0) for each in (0.0, -margin, margin))  # finite for two pairs
    return Speedup(without, tuned, *map(math.exp, logarithms))


def ratio_text(ratio: float) -> str:
    """Return a ratio such as ``1.23x``."""
    if ratio >= 100:
        return "over 100x"
    return f"{ratio:.2f}x" if ratio >= 0.01 else "under 0.01x"


def error_of(look: int, error: float) -> float:
    """The share of this look, from 1 on, in the chance of an error. A comparison of one look only has look 0."""
    return error * 0.5**look


@cache
def student(error: float, freedom: int) -> float:
    """Return Student's t that is exceeded, on either side, with this chance."""
    low, high = 0.0, 1e12
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _beyond(middle, freedom) > error else (low, middle)
    return high


def _beyond(t: float, freedom: int) -> float:
    """Return the chance that Student's t is farther from 0 (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    square = math.cos(angle) * math.cos(angle)
    odd = freedom % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for number in range(odd, freedom - odd, 2):
        total += term
        term *= square * (number + 1) / (number + 2)
    if not odd:
        return 1 - math.sin(angle) * total
    return 1 - 2 / math.pi * (angle + math.sin(angle) * total)


class GemmChange(NamedTuple):
    """The times of a GEMM in traced runs with and without tables, empty if it was in none of them.

    ``is_clear`` is whether the difference is beyond noise, among all GEMMs (``judge``).
    """

    name: str
    without: Sequence[GemmTime]
    tuned: Sequence[GemmTime]
    is_clear: bool = False

    @property
    def saved_ns(self) -> float:
        """The time saved in a traced run, 0 without a comparison."""
        if not self.without or not self.tuned:
            return 0.0
        calls = min(time.calls for time in (*self.without, *self.tuned))
        return calls * (middle_ns(self.without) - middle_ns(self.tuned))

    @property
    def ratios(self) -> tuple[float, float, float] | None:
        """The median ratio without / with, and the ends of its rank-based 95 % interval, None without a comparison.

        Below four runs of each kind, the ends are the extremes.
        """
        ratios = sorted(one.ns / other.ns for one in self.without for other in self.tuned)
        if not ratios:
            return None
        chances = _chances(len(self.without), len(self.tuned))
        cut = max(sum(2 * chance <= _GEMM_INTERVAL_ERR for chance in chances) - 1, 0)
        return median(ratios), ratios[cut], ratios[-1 - cut]

    @property
    def is_comparable(self) -> bool:
        """Whether there are enough runs, and the kernels differ, as Triton's of the same name may."""
        if min(len(self.without), len(self.tuned)) < LEAST_GEMM_RUNS:
            return False
        kernels = {time.kernel for time in (*self.without, *self.tuned)}
        return len(kernels) > 1 or kernels.pop().startswith(_TEMPLATE)

    @property
    def is_apart(self) -> bool:
        """Whether every run of one kind is faster than every run of the other."""
        return self._crossing == 0

    @property
    def chance(self) -> float:
        """The chance of a difference like this where there is none, by the exact rank-sum test. Ties count against."""
        return min(2 * _chances(len(self.without), len(self.tuned))[self._crossing], 1.0)

    @property
    def _crossing(self) -> int:
        """The pairs of runs that contradict the others."""
        pairs = [(one.ns, other.ns) for one in self.without for other in self.tuned]
        return min(sum(one <= other for one, other in pairs), sum(one >= other for one, other in pairs))


@cache
def _chances(one: int, other: int) -> tuple[float, ...]:
    """The chances that at most 0, 1, ... pairs of two samples of the same distribution are in one given order.

    The numbers of orders are the coefficients of a Gaussian binomial.
    """
    counts = [1] + [0] * (one * other)
    for number in range(1, one + 1):
        for place in range(len(counts) - 1, other + number - 1, -1):
            counts[place] -= counts[place - other - number]
        for place in range(number, len(counts)):
            counts[place] += counts[place - number]
    orders, total, found = math.comb(one + other, one), 0, []
    for count in counts:
        total += count
        found.append(total / orders)
    return tuple(found)


def judge(changes: Sequence[GemmChange], error: float = GEMMS_ERR) -> list[GemmChange]:
    """Return the changes in the same order, with those clear that Holm's correction leaves."""
    compared = sorted((change.chance, number) for number, change in enumerate(changes) if change.is_comparable)
    clear = set[int]()
    for place, (chance, number) in enumerate(compared):
        if chance > error / (len(compared) - place):
            break
        clear.add(number)
    return [change._replace(is_clear=number in clear) for number, change in enumerate(changes)]


def middle_ns(times: Sequence[GemmTime]) -> float:
    """The median over runs."""
    return median(time.ns for time in times)


def is_all_told(changes: Sequence[Speedup], gemms: Sequence[GemmChange]) -> bool:
    """Whether more runs would say little more: of each time, and of each GEMM whose runs do not overlap."""
    return all(change.is_told for change in changes) and not any(
        gemm.is_comparable and gemm.is_apart and not gemm.is_clear for gemm in gemms
    )
