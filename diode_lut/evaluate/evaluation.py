"""What a selector's answers cost on problems where many configs were timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import Config

MISS = "miss"
"""The origin of a choice that no source made."""

Outcome = Literal["measured", "not measured", "failed"]
"""What the timings say about a choice on its problem: a time, nothing, or that it does not work there."""

SLOWER = 0.03
"""A choice that is slower than the baseline by more than this fraction is counted."""

WORST = 10
"""So many problems with the largest regret are named."""


class Case(NamedTuple):
    """One problem: the ``choice`` for it, what that comes from (``origin``: a Source's, or MISS), and its times.

    ``ns`` are nanoseconds of the choice, None unless ``outcome`` is ``measured``; ``best`` is the fastest config
    measured, ``baseline_ns`` what the choice is compared with, None where that was not measured.
    """

    problem: Problem
    origin: str
    choice: Config
    outcome: Outcome
    ns: float | None
    best: Config
    best_ns: float
    baseline_ns: float | None

    @property
    def regret(self) -> float:
        """Time of the choice over the best time, minus one; only where the choice was measured."""
        assert self.ns is not None
        return self.ns / self.best_ns - 1

    @property
    def gain(self) -> float | None:
        """Time of the baseline over that of the choice; None where one of them was not measured."""
        return self.baseline_ns / self.ns if self.baseline_ns is not None and self.ns is not None else None

    @property
    def best_gain(self) -> float | None:
        """What ``gain`` would be with the best config."""
        return self.baseline_ns / self.best_ns if self.baseline_ns is not None and self.ns is not None else None


class Summary(NamedTuple):
    """Figures of some cases; fractions and factors, None where there is nothing to take them of.

    ``coverage`` is the share of problems that are no misses. ``not_measured`` and ``failed`` count choices without a
    time; the other figures leave those out. ``gain`` and ``best_gain`` are geometric means over the same problems,
    those where the baseline was measured too. ``regret`` is one, too. ``within_2`` and ``within_5`` are shares of
    problems with a regret of at most so many hundredths, ``slower`` counts those slower than the baseline by over
    SLOWER.
    """

    problems: int
    coverage: float | None
    not_measured: int
    failed: int
    gain: float | None
    best_gain: float | None
    regret: float | None
    worst_regret: float | None
    within_2: float | None
    within_5: float | None
    slower: int


class Evaluation(NamedTuple):
    """``cases``, one for each problem on which anything succeeded, sorted; ``unsolved`` counts the other problems.

    ``against`` is the baseline.
    """

    cases: Sequence[Case]
    unsolved: int
    against: Config

    @property
    def summary(self) -> Summary:
        """The figures of all cases."""
        return _summary(self.cases)

    @property
    def groups(self) -> dict[str, dict[str, Summary]]:
        """The figures by op, by dtype and by who answered."""
        keys: dict[str, Callable[[Case], str]] = {
            "op": lambda case: case.problem.op,
            "dtype": lambda case: case.problem.dtype,
            "source": lambda case: case.origin,
        }
        return {name: self._by(key) for name, key in keys.items()}

    @property
    def worst(self) -> list[Case]:
        """The cases with the largest regret, that first."""
        measured = (case for case in self.cases if case.ns is not None)
        return sorted(measured, key=lambda case: (-case.regret, case.problem))[:WORST]

    def _by(self, key: Callable[[Case], str]) -> dict[str, Summary]:
        names = sorted(set(map(key, self.cases)))
        return {name: _summary([case for case in self.cases if key(case) == name]) for name in names}


def _summary(cases: Sequence[Case]) -> Summary:
    regrets = [case.regret for case in cases if case.ns is not None]
    gains = [case.gain for case in cases if case.gain is not None]
    mean_ratio = geometric_mean(regret + 1 for regret in regrets)
    return Summary(
        problems=len(cases),
        coverage=_share([case.origin != MISS for case in cases]),
        not_measured=sum(case.outcome == "not measured" for case in cases),
        failed=sum(case.outcome == "failed" for case in cases),
        gain=geometric_mean(gains),
        best_gain=geometric_mean(case.best_gain for case in cases if case.best_gain is not None),
        regret=None if mean_ratio is None else mean_ratio - 1,
        worst_regret=max(regrets, default=None),
        within_2=_share([regret <= 0.02 for regret in regrets]),
        within_5=_share([regret <= 0.05 for regret in regrets]),
        slower=sum(gain * (1 + SLOWER) < 1 for gain in gains),
    )


def geometric_mean(factors: Iterable[float]) -> float | None:
    """None where there are no factors, which must be positive."""
    logarithms = list(map(math.log, factors))
    return math.exp(fmean(logarithms)) if logarithms else None


def _share(flags: Sequence[bool]) -> float | None:
    return fmean(flags) if flags else None
