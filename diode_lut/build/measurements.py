"""All timings of all datasets, combined: one time for each config on each problem."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import count
from math import inf, nan
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diode_lut.dataset import Record, Timing
from diode_lut.errors import DatasetError
from diode_lut.hardware import Hardware
from diode_lut.problem import ATTENTION, GROUPED, INTEGER, SCALED, Problem
from diode_lut.templates.architecture import roofline_ns
from diode_lut.templates.config import BASELINES, TEMPLATES, Config, baseline

_Array = npt.NDArray[Any]
_TEMPLATES = list(TEMPLATES)
_ONE_KERNEL = (*ATTENTION, *GROUPED, *SCALED, *INTEGER)


def config_order(config: Config) -> tuple[int, tuple[int, ...]]:
    """The fixed order of configs, in which equally good ones are chosen: ``aten`` comes first."""
    return _TEMPLATES.index(config.template), config.params


MAX_TIMINGS = 5_000_000
MAX_PROBLEMS = 500_000
"""The most that are combined, in less than a gigabyte."""


class Columns:
    """Collects records, a few bytes for each timing: numbers of problem and config, stage, nanoseconds, and aten's.

    DatasetError if there are more than MAX_TIMINGS, or records of more than ``most`` problems.
    """

    def __init__(self, most: int = MAX_PROBLEMS) -> None:
        self._most = most
        self.failures: Counter[str] = Counter()
        self._problems: defaultdict[Problem, int] = defaultdict(count().__next__)
        self._configs: defaultdict[Config, int] = defaultdict(count().__next__)
        self._problem_numbers = array("i")
        self._config_numbers = array("i")
        self._final = array("b")
        self._final_problems: set[int] = set()
        self._times = array("d")
        self._atens = array("d")

    def add(self, record: Record) -> None:
        """Append the record's timings. A failure is an infinite time."""
        problem = self._problems[record.problem]
        if problem >= self._most:
            raise DatasetError(f"more than {self._most} problems: leave out datasets, or divide them")
        if len(self._times) > MAX_TIMINGS:
            raise DatasetError(f"more than {MAX_TIMINGS} timings: leave out datasets, or divide them")
        final = record.stage == "final"
        if final:
            self._final_problems.add(problem)
        if not record.timings:
            return
        configs, times, reasons = zip(*record.timings, strict=True)
        self._problem_numbers.extend([problem] * len(times))
        self._final.extend([final] * len(times))
        self._config_numbers.extend(map(self._configs.__getitem__, configs))
        self._times.extend([inf if ns is None else ns for ns in times])
        atens = [ns for config, ns in zip(configs, times, strict=True) if config in BASELINES and ns is not None]
        self._atens.extend([median(atens) if atens else nan] * len(times))
        self.failures.update(filter(None, reasons))

    def combined(self) -> Measurements:
        """The measurements that count, in an order that depends on nothing but what was measured.

        Where a problem has a record of the final stage, only its final timings count, else all others. Of attention and
        of grouped, float8 and int8 matmuls both stages time nearly the same kernels, because no row is unaligned: the
        first stage's times of configs that the final one left out count, too. Machines of the same kind differ, and so
        do their runs: the times of each record are scaled so that aten takes in all records of a problem what it takes
        in their median.
        """
        counting = self._counting()
        problems, problem_ranks = _sorted_with_ranks(self._problems, key=None)
        configs, config_ranks = _sorted_with_ranks(self._configs, key=config_order)
        problem_numbers = problem_ranks[np.frombuffer(self._problem_numbers, np.int32)[counting]]
        config_numbers = config_ranks[np.frombuffer(self._config_numbers, np.int32)[counting]]
        pairs = problem_numbers * max(len(configs), 1) + config_numbers
        times = np.frombuffer(self._times, np.float64)[counting]
        are_aten = _are_baselines(config_numbers, configs)
        aten_of = np.full(len(problems), np.nan)
        solved, medians = _medians(problem_numbers[are_aten], times[are_aten])
        aten_of[solved] = medians
        scale = aten_of[problem_numbers] / np.frombuffer(self._atens, np.float64)[counting]
        pairs, times = _medians(pairs, times * np.where(np.isfinite(scale), scale, 1.0))
        return Measurements(problems, configs, pairs, times, len(counting), int(counting.sum()))

    def _counting(self) -> npt.NDArray[np.bool_]:
        """Which timings count."""
        has_final, one_kernel = np.zeros((2, len(self._problems)), np.bool_)
        has_final[list(self._final_problems)] = True
        one_kernel[:] = [problem.op in _ONE_KERNEL for problem in self._problems]
        numbers = np.frombuffer(self._problem_numbers, np.int32)
        final = np.frombuffer(self._final, np.bool_)
        counting: npt.NDArray[np.bool_] = final == has_final[numbers]
        both = np.flatnonzero(one_kernel[numbers])
        pairs = numbers[both] * np.int64(len(self._configs)) + np.frombuffer(self._config_numbers, np.int32)[both]
        counting[both] |= ~np.isin(pairs, pairs[final[both]])
        return counting


def _are_baselines(config_numbers: _Array, configs: list[Config]) -> _Array:
    """Which of the numbers are those of baselines; a problem has one."""
    return np.isin(config_numbers, [number for number, config in enumerate(configs) if config in BASELINES])


class Measurements:
    """``times[i]`` nanoseconds is what ``configs[config_numbers[i]]`` takes on ``problems[problem_numbers[i]]``.

    Each pair occurs at most once; pairs are sorted, problems by their fields, configs in the fixed order. Problems on
    which nothing succeeded are not among ``problems`` but in ``unsolved``. ``relative`` are times over the best time
    on the same problem, ``aten`` (one a problem) those of the baseline, NaN where it was not measured. ``timings``
    counts all that there were, ``counting`` those that this was combined from. It is made of pairs, as numbers
    ``problem * len(configs) + config``, and their times, infinite for failures.
    """

    def __init__(
        self,
        problems: list[Problem],
        configs: list[Config],
        pairs: _Array,
        times: _Array,
        timings: int,
        counting: int,
    ) -> None:
        succeeded = np.isfinite(times)
        self._failed = problems, pairs[~succeeded]
        pairs, times = pairs[succeeded], times[succeeded]
        problem_numbers, self.config_numbers = np.divmod(pairs, max(len(configs), 1))
        solved, self.problem_numbers, counts = np.unique(problem_numbers, return_inverse=True, return_counts=True)
        self.problems = [problems[number] for number in solved]
        self.unsolved = sorted(set(problems) - set(self.problems))
        self.configs = configs
        self.times = times
        self.timings = timings
        self.counting = counting
        self.starts = np.concatenate(([0], np.cumsum(counts)))
        best = np.minimum.reduceat(times, self.starts[:-1]) if len(times) else times
        self.relative = times / best[self.problem_numbers]
        self._are_aten = _are_baselines(self.config_numbers, configs)
        self.aten = np.full(len(self.problems), np.nan)
        self.aten[self.problem_numbers[self._are_aten]] = self.relative[self._are_aten]

    def within(self, epsilon: float, noise: float) -> _Array:
        """Which times keep the promise: near the best on their problem, and aten's own or clearly under aten's."""
        ahead = np.where(self._are_aten, np.inf, self.aten[self.problem_numbers] / (1 + min(noise, epsilon)))
        mask: _Array = self.relative <= np.fmin(1 + epsilon, ahead)
        return mask

    @cached_property
    def failed(self) -> frozenset[tuple[Problem, Config]]:
        """Which configs failed on which problems, in any run that counts."""
        problems, pairs = self._failed
        split = np.divmod(pairs, max(len(self.configs), 1))
        numbers = zip(*(part.tolist() for part in split), strict=True)
        return frozenset((problems[problem], self.configs[config]) for problem, config in numbers)

    @property
    def without_aten(self) -> int:
        """On how many problems aten was not measured."""
        return int(np.isnan(self.aten).sum())

    def relative_time(self, problem: int, config: Config) -> float:
        """Time of the config over the best time on the problem (given by its number), where it was measured."""
        first, last = self.starts[problem], self.starts[problem + 1]
        place = np.searchsorted(self.config_numbers[first:last], self.configs.index(config))
        return float(self.relative[first + place])

    def configs_on(self, problem: int, mask: _Array) -> set[Config]:
        """The configs whose times on the problem (given by its number) the mask lets through."""
        rows = slice(self.starts[problem], self.starts[problem + 1])
        return {self.configs[number] for number in self.config_numbers[rows][mask[rows]].tolist()}

    def times_on(self, problem: int) -> dict[Config, float]:
        """The nanoseconds of all configs that succeeded on the problem (given by its number), in the fixed order."""
        rows = slice(self.starts[problem], self.starts[problem + 1])
        numbers, times = self.config_numbers[rows].tolist(), self.times[rows].tolist()
        return {self.configs[number]: ns for number, ns in zip(numbers, times, strict=True)}


def measurements_of(records: Iterable[Record]) -> Measurements:
    """The measurements that count, of all records; DatasetError if nothing was measured successfully."""
    columns = Columns()
    for record in records:
        columns.add(record)
    measurements = columns.combined()
    if not measurements.problems:
        raise DatasetError("no usable timing: nothing to compare with")
    return measurements


def _medians(pairs: _Array, times: _Array) -> tuple[_Array, _Array]:
    """The distinct pairs, sorted, and the median time of each; infinite for those that failed in any run."""
    order = np.lexsort((times, pairs))
    pairs, times = pairs[order], times[order]
    starts = np.flatnonzero(np.diff(pairs, prepend=-1))
    ends = np.append(starts, len(pairs))[1:]
    medians = (times[(starts + ends - 1) // 2] + times[(starts + ends) // 2]) / 2
    return pairs[starts], np.where(np.isinf(times[ends - 1]), np.inf, medians)


def _sorted_with_ranks(numbers: dict[Any, int], key: Any) -> tuple[list[Any], _Array]:
    """The keys in order, and for each number the place of its key."""
    ordered = sorted(numbers, key=key)
    ranks = np.empty(len(ordered), np.int64)
    ranks[[numbers[value] for value in ordered]] = np.arange(len(ordered))
    return ordered, ranks


MAX_GAIN = 30.0
"""A larger gain over aten is a mistake of the measurement: aten was interrupted, or the kernel did nothing."""

MAX_SPREAD = 5.0
"""The kernel did not have the device to itself if times of it differ by this factor, without a quarter at each end."""

MAX_ROOFLINES = 100.0
START_NS, START_ON_CPU_NS = 1e6, 1e7
"""A GEMM takes at most this many times the least possible time, and this much more to start, with the baseline or the
best kernel. Of 25,000 GEMMs on H100 and H200 one took more: it had been disturbed."""

_ENOUGH = 3
"""Number of times of a config from which on their spread is known."""

_MAX_SHARE, _MANY = 0.5, 3
"""No table is built if at least _MANY problems, and more than this share of all, are too noisy to decide."""


class Judged(NamedTuple):
    """The records with the times that may be believed; and what was wrong with the others.

    Of problems on which a config only seemed faster than aten, the times of aten are left. They are ``too_noisy``,
    where the times of both overlap, or ``implausible``, which has the reasons as text. Of records whose times cannot be
    true no times are left; ``doubted`` has the reasons.
    """

    records: list[Record]
    too_noisy: list[Problem]
    implausible: list[str]
    doubted: list[str]


class _Times(NamedTuple):
    """Sorted times of a config on a problem, in nanoseconds."""

    config: Config
    ns: list[float]

    @property
    def middle(self) -> float:
        return median(self.ns)

    @property
    def are_steady(self) -> bool:
        """Whether times differ by less than MAX_SPREAD, without a quarter at each end."""
        cut = len(self.ns) // 4
        return self.ns[-1 - cut] < MAX_SPREAD * self.ns[cut]

    @property
    def spread(self) -> float:
        """The largest time over the median, minus one."""
        return self.ns[-1] / self.middle - 1

    def is_clearly_below(self, other: _Times) -> bool:
        """Whether three quarters of the times are below three quarters of the others."""
        return self.ns[-1 - len(self.ns) // 4] < other.ns[len(other.ns) // 4]


def doubt(record: Record, hardware: Hardware) -> str:
    """Why the times of a record cannot be those of its kernels, as text; empty if they can be.

    Only the baseline and the best config are looked at: others may be as slow as they like.
    """
    times = _times([record])
    usual, best = (
        times.get(baseline(record.problem.op)),
        min(times.values(), key=lambda each: each.middle, default=None),
    )
    least = None if record.problem.op in ATTENTION else roofline_ns(record.problem, hardware)
    start = START_ON_CPU_NS if hardware.is_cpu else START_NS
    for each in filter(None, (usual, best)):
        if least is not None and each.middle > MAX_ROOFLINES * least + start:
            took = f"{each.config} took {each.middle / 1e6:.1f} ms, where {least / 1e6:.3g} ms are possible"
            return f"{took}: {_REMEDY}"
        if not each.are_steady:
            return f"times of {each.config} are from {each.ns[0] / 1e6:.3g} to {each.ns[-1] / 1e6:.3g} ms: {_REMEDY}"
    return ""


_REMEDY = "measure while nothing else runs"


def judged(records: Iterable[Record], noise: float, hardware: Hardware) -> Judged:
    """The records, without what is noise; DatasetError if most problems are too noisy to decide.

    A record whose times cannot be true counts as if it had none. A config that seems faster than aten by more than the
    fraction ``noise`` must be so in three quarters of its times, where it has at least three.
    """
    by_problem: dict[Problem, list[Record]] = defaultdict(list)
    doubted: list[str] = []
    for record in records:
        reason = doubt(record, hardware)
        if reason:
            doubted.append(f"{record.problem}: {reason}")
        by_problem[record.problem].append(record._replace(timings=()) if reason else record)
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
    return Judged(kept, list(too_noisy), implausible, doubted)


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
