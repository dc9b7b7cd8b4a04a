"""Whether paired measurements differ by more than they scatter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev
from typing import NamedTuple

_STUDENT = (12.71, 4.31, 3.19, 2.78, 2.58, 2.45, 2.37, 2.31, 2.27, 2.23)
"""Student's t for 95 %, by degrees of freedom from 1 on."""


class Speedup(NamedTuple):
    """Times in seconds without and with tables, a pair for each repetition, and how much faster "with" is.

    ``gain`` is the geometric mean of the ratios without / with; ``low`` and ``high`` are the ends of its 95 %
    confidence interval, which supposes that the ratios' logarithms are normally distributed.
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
        """What to say of it, for people."""
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
    """The median and the extremes of times in seconds, in a unit that suits them."""
    scale, unit = next((scale, unit) for scale, unit in _UNITS if median(times) >= scale or unit == "us")
    middle, low, high = (f"{time / scale:.3g}" for time in (median(times), min(times), max(times)))
    return f"{middle} {unit}" if len(times) == 1 else f"{middle} {unit} ({low} to {high})"


_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


_MOST = 9
"""A larger increase, as a fraction, is not given in percent: of two pairs, an interval may end at a million."""


def _percent(gain: float) -> str:
    """A gain as text, by which part of the time "without" the time is less or more."""
    change = 1 / gain - 1
    if change > _MOST:
        return f"over {_MOST + 1} times the time"
    return f"{abs(change):.1%} {'less' if change <= 0 else 'more'} time"
