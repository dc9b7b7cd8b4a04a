"""Times on a CPU, which other processes disturb: what is no clear gain, and what cannot be true."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from statistics import median
from typing import NamedTuple

from diode_lut.dataset import Record, Timing
from diode_lut.domain.errors import DatasetError
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import BASELINES, Config, baseline

MAX_GAIN = 30.0
"""A larger gain over aten is a mistake of the measurement: aten was interrupted, or the kernel did nothing."""

_ENOUGH = 3
"""Number of times of a config from which on their spread is known."""

_MAX_SHARE, _MANY = 0.5, 3
"""No table is built if at least _MANY problems, and more than this share of all, are too noisy to decide."""


class Judged(NamedTuple):
    """The records with the times that may be believed; and what was wrong with the others.

    Of problems on which a config only seemed faster than aten, the times of aten are left. They are ``too_noisy``,
    where the times of both overlap, or ``implausible``, which has the reasons as text.
    """

    records: list[Record]
    too_noisy: list[Problem]
    implausible: list[str]


class _Times(NamedTuple):
    """Sorted times of a config on a problem, in nanoseconds."""

    config: Config
    ns: list[float]

    @property
    def middle(self) -> float:
        return median(self.ns)

    @property
    def spread(self) -> float:
        """The largest time over the median, minus one."""
        return self.ns[-1] / self.middle - 1

    def is_clearly_below(self, other: _Times) -> bool:
        """Whether three quarters of the times are below three quarters of the others."""
        return self.ns[-1 - len(self.ns) // 4] < other.ns[len(other.ns) // 4]


def judged(records: Iterable[Record], noise: float) -> Judged:
    """The records, without what is noise; DatasetError if most problems are too noisy to decide.

    A config that seems faster than aten by more than the fraction ``noise`` must be so in three quarters of its times,
    where it has at least three.
    """
    by_problem: dict[Problem, list[Record]] = defaultdict(list)
    for record in records:
        by_problem[record.problem].append(record)
    kept: list[Record] = []
    too_noisy: dict[Problem, float] = {}
    implausible: list[str] = []
    for problem, own in by_problem.items():
        times = _times(own)
        aten = times.pop(baseline(problem.op), None)
        best = min(times.values(), key=lambda each: each.middle, default=None)
        if aten is None or best is None or not _is_doubtful(best, aten, noise):
            kept += own
            continue
        kept += [record._replace(timings=tuple(_of_aten(record))) for record in own]
        if aten.middle > MAX_GAIN * best.middle:
            implausible.append(
                f"{problem}: {best.config} would be {aten.middle / best.middle:.0f} times as fast as aten"
            )
        else:
            too_noisy[problem] = max(aten.spread, best.spread)
    if len(too_noisy) >= _MANY and len(too_noisy) > _MAX_SHARE * len(by_problem):
        raise DatasetError(_refusal(too_noisy, len(by_problem)))
    return Judged(kept, list(too_noisy), implausible)


def _times(records: Iterable[Record]) -> dict[Config, _Times]:
    found: dict[Config, list[float]] = defaultdict(list)
    for record in records:
        for config, ns, _ in record.timings:
            if ns is not None:
                found[config].append(ns)
    return {config: _Times(config, sorted(ns)) for config, ns in found.items()}


def _is_doubtful(best: _Times, aten: _Times, noise: float) -> bool:
    """Whether a config seems faster than aten, and that cannot be true, or is not clear."""
    if best.middle * (1 + noise) >= aten.middle:
        return False
    enough = min(len(best.ns), len(aten.ns)) >= _ENOUGH
    return aten.middle > MAX_GAIN * best.middle or (enough and not best.is_clearly_below(aten))


def _of_aten(record: Record) -> Iterator[Timing]:
    return (timing for timing in record.timings if timing.config in BASELINES)


def _refusal(too_noisy: dict[Problem, float], problems: int) -> str:
    worst = max(too_noisy.values())
    spread = f"times of the same kernel are up to {1 + worst:.1f} times their median"
    return f"too noisy to decide: {len(too_noisy)} of {problems} problems ({spread}): measure while nothing else runs"
