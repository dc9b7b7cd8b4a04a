"""All timings of all datasets, combined: one time for each config on each problem."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cached_property
from itertools import count
from math import inf, nan
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from diode_lut.dataset import Record
from diode_lut.domain.errors import DatasetError
from diode_lut.domain.ops import ATTENTION, GROUPED, INTEGER, SCALED
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import BASELINES, Config
from diode_lut.kernels.registry import TEMPLATES

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
