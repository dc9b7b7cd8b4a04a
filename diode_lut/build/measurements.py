"""All timings of all datasets, combined to a time for each config on each problem. CPU records are judged first."""

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
from diode_lut.hardware import Hardware, roofline_ns
from diode_lut.problem import ATTENTION, GENERATED, GROUPED, INTEGER, SCALED, Problem
from diode_lut.templates.config import ATEN, BASELINES, TEMPLATES, Config, baseline

Array = npt.NDArray[Any]
_TEMPLATES = list(TEMPLATES)
_ONE_KERNEL = (*ATTENTION, *GROUPED, *SCALED, *INTEGER)


def config_order(config: Config) -> tuple[int, tuple[int, ...]]:
    """Return a config's place in the fixed order, which decides between equally good configs. ``aten`` comes first."""
    return _TEMPLATES.index(config.template), config.params


_StageTimes = defaultdict[Config, list[float]]

_STATIC_GAIN = 1.012
"""Time of a Triton kernel with sizes as arguments, relative to the same kernel compiled for these sizes.

The median over all configs with both times on an H200. It is used for problems without such configs.
"""


def combined(records: Iterable[Record]) -> Iterator[Record]:
    """Yield a record for each problem, in order, as if all configs had been timed in the final stage.

    Final times count as they are. Others are scaled by the median ratio of the configs with both times on the problem,
    so a config without a chance in the sweep still has its place after the finalists. Several times of a config in a
    stage become their median. A config that failed once has failed.
    """
    times: defaultdict[Problem, tuple[_StageTimes, _StageTimes]] = defaultdict(
        lambda: (defaultdict(list), defaultdict(list))
    )
    failed: defaultdict[Problem, dict[Config, Timing]] = defaultdict(dict)
    for record in records:
        stage = times[record.problem][record.stage == "final"]
        for timing in record.timings:
            if timing.ns is None:
                failed[record.problem].setdefault(timing.config, timing)
            else:
                stage[timing.config].append(timing.ns)
    for problem in sorted(times):
        sweep, final = ({config: median(ns) for config, ns in stage.items()} for stage in times[problem])
        scales = {}
        for pad in {config.pad for config in sweep}:
            both = [each for each in final.keys() & sweep.keys() if each.pad == pad and each.template != ATEN.template]
            scales[pad] = 1.0
            if both:
                scales[pad] = median(final[config] / sweep[config] for config in both)
            elif ATEN in final and ATEN in sweep:
                scales[pad] = final[ATEN] / sweep[ATEN] / _STATIC_GAIN
        together = {config: ns * scales[config.pad] for config, ns in sweep.items()} | final
        timings = {config: Timing(config, ns) for config, ns in together.items()} | failed[problem]
        yield Record(problem, tuple(timings[config] for config in sorted(timings)), "final")


MAX_TIMINGS = 5_000_000
MAX_PROBLEMS = 500_000  # maximum numbers that are combined, in less than a gigabyte


class Columns:
    """Collects records in a few bytes a timing. DatasetError for more than MAX_TIMINGS, or ``most`` problems."""

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
        """Return the timings that count, in an order that depends on nothing else.

        If a problem has a record of the final stage, only its final timings count, else all. For attention and for
        grouped, float8 and int8 matmuls, both stages time nearly the same kernels, because no row is unaligned. There
        the first stage's times of configs left out in the final stage count, too. Machines of the same kind differ, and
        so do their runs: the times of each record are scaled such that aten takes its median time in all records.
        """
        has_final, one_kernel = np.zeros((2, len(self._problems)), np.bool_)
        has_final[list(self._final_problems)] = True
        one_kernel[:] = [problem.op in _ONE_KERNEL for problem in self._problems]
        numbers = np.frombuffer(self._problem_numbers, np.int32)
        final = np.frombuffer(self._final, np.bool_)
        counting: npt.NDArray[np.bool_] = final == has_final[numbers]
        both = np.flatnonzero(one_kernel[numbers])
        pairs = numbers[both] * np.int64(len(self._configs)) + np.frombuffer(self._config_numbers, np.int32)[both]
        counting[both] |= ~np.isin(pairs, pairs[final[both]])

        problems, problem_ranks = _sorted_with_ranks(self._problems, key=None)
        configs, config_ranks = _sorted_with_ranks(self._configs, key=config_order)
        problem_numbers = problem_ranks[numbers[counting]]
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


def _are_baselines(config_numbers: Array, configs: list[Config]) -> Array:
    """Return a mask of the numbers of baselines. A problem has one."""
    return np.isin(config_numbers, [number for number, config in enumerate(configs) if config in BASELINES])


def _sorted_with_ranks(numbers: dict[Any, int], key: Any) -> tuple[list[Any], Array]:
    """Return the keys in order, and for each number the place of its key."""
    ordered = sorted(numbers, key=key)
    ranks = np.empty(len(ordered), np.int64)
    ranks[[numbers[value] for value in ordered]] = np.arange(len(ordered))
    return ordered, ranks


def _medians(pairs: Array, times: Array) -> tuple[Array, Array]:
    """Return the distinct pairs, sorted, and the median time of each, infinite if any run failed."""
    order = np.lexsort((times, pairs))
    pairs, times = pairs[order], times[order]
    starts = np.flatnonzero(np.diff(pairs, prepend=-1))
    ends = np.append(starts, len(pairs))[1:]
    medians = (times[(starts + ends - 1) // 2] + times[(starts + ends) // 2]) / 2
    return pairs[starts], np.where(np.isinf(times[ends - 1]), np.inf, medians)


class Measurements:
    """``configs[config_numbers[i]]`` takes ``times[i]`` nanoseconds on ``problems[problem_numbers[i]]``.

    Each pair occurs at most once. Pairs are sorted, problems by their fields, configs in the fixed order. Problems on
    which nothing succeeded are in ``unsolved``, not in ``problems``. ``relative`` are times over the best time on the
    same problem, ``aten`` those of the baseline for each problem, or NaN if it was not measured. ``timings`` counts all
    timings, ``counting`` those combined here. The constructor takes each pair as a number, ``problem * len(configs) +
    config``, and the times of the pairs, infinite for failures.
    """

    def __init__(
        self, problems: list[Problem], configs: list[Config], pairs: Array, times: Array, timings: int, counting: int
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

    def within(self, epsilon: float, noise: float) -> Array:
        """Return a mask of times near the best on their problem and either aten's or clearly below aten's."""
        ahead = np.where(self._are_aten, np.inf, self.aten[self.problem_numbers] / (1 + min(noise, epsilon)))
        mask: Array = self.relative <= np.fmin(1 + epsilon, ahead)
        return mask

    @cached_property
    def failed(self) -> frozenset[tuple[Problem, Config]]:
        """Pairs of a problem and a config that failed in any run that counts."""
        problems, pairs = self._failed
        split = np.divmod(pairs, max(len(self.configs), 1))
        numbers = zip(*(part.tolist() for part in split), strict=True)
        return frozenset((problems[problem], self.configs[config]) for problem, config in numbers)

    @property
    def without_aten(self) -> int:
        """Number of problems without a time of aten."""
        return int(np.isnan(self.aten).sum())

    def times_on(self, problem: int) -> dict[Config, float]:
        """Return the nanoseconds of all successful configs on a problem, given by its number, in the fixed order."""
        rows = slice(self.starts[problem], self.starts[problem + 1])
        numbers, times = self.config_numbers[rows].tolist(), self.times[rows].tolist()
        return {self.configs[number]: ns for number, ns in zip(numbers, times, strict=True)}


def measurements_of(records: Iterable[Record]) -> Measurements:
    """Return the timings of all records that count. DatasetError if nothing was measured successfully."""
    columns = Columns()
    for record in records:
        columns.add(record)
    measurements = columns.combined()
    if not measurements.problems:
        raise DatasetError("no usable timing: nothing to compare with")
    return measurements


MAX_GAIN = 30.0  # largest gain over aten that is believed: beyond, aten was interrupted, or the kernel did nothing
MAX_SPREAD = 5.0  # if the middle half of a kernel's times differs by this factor, it did not have the device alone

MAX_ROOFLINES = 100.0
START_NS, START_ON_CPU_NS = 1e6, 1e7
"""With the baseline or the best kernel, a GEMM takes at most this many times the least possible time, and this much
more to start. Of 25,000 GEMMs on H100 and H200 a single GEMM took more, and it had been disturbed."""

_ENOUGH = 3  # number of times of a config that show its spread
_MAX_SHARE, _MANY = 0.5, 3  # too noisy for a table: at least _MANY problems, and more than this share of all


class _Spread(NamedTuple):
    """Sorted times of a config on a problem, in nanoseconds."""

    config: Config
    ns: list[float]

    @property
    def middle(self) -> float:
        return median(self.ns)


def _spreads(records: Iterable[Record]) -> dict[Config, _Spread]:
    found: dict[Config, list[float]] = defaultdict(list)
    for record in records:
        for config, ns, _ in record.timings:
            if ns is not None:
                found[config].append(ns)
    return {config: _Spread(config, sorted(ns)) for config, ns in found.items()}


def doubt(record: Record, hardware: Hardware) -> str:
    """Return why the times of a record's baseline and best config cannot be true, or an empty text."""
    spreads = _spreads([record])
    best = min(spreads.values(), key=lambda each: each.middle, default=None)
    least = None if record.problem.op in (*ATTENTION, *GENERATED) else roofline_ns(record.problem, hardware)
    start = START_ON_CPU_NS if hardware.is_cpu else START_NS
    for each in filter(None, (spreads.get(baseline(record.problem.op)), best)):
        if least is not None and each.middle > MAX_ROOFLINES * least + start:
            took = f"{each.config} took {each.middle / 1e6:.1f} ms, where {least / 1e6:.3g} ms are possible"
            return f"{took}: {_REMEDY}"
        cut = len(each.ns) // 4  # at each end of the times
        if each.ns[-1 - cut] >= MAX_SPREAD * each.ns[cut]:
            return f"times of {each.config} are from {each.ns[0] / 1e6:.3g} to {each.ns[-1] / 1e6:.3g} ms: {_REMEDY}"
    return ""


_REMEDY = "measure while nothing else runs"


def judged(
    records: Iterable[Record], noise: float, hardware: Hardware
) -> tuple[list[Record], list[Problem], list[str], list[str]]:
    """Return the records with credible times, too noisy problems, and reasons against gains and against records.

    A record whose times cannot be true counts as if it had none. A config that seems faster than aten by more than the
    fraction ``noise`` must be so in three quarters of its times, if it has at least three. If it is not, or if its gain
    is implausible, the times of aten alone are left. DatasetError if most problems are too noisy to decide.
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
        spreads = _spreads(own)
        aten = spreads.pop(baseline(problem.op), None)
        best = min(spreads.values(), key=lambda each: each.middle, default=None)
        if aten is None or best is None or best.middle * (1 + noise) >= aten.middle:
            kept += own
            continue
        impossible = aten.middle > MAX_GAIN * best.middle
        enough = min(len(best.ns), len(aten.ns)) >= _ENOUGH
        are_below = best.ns[-1 - len(best.ns) // 4] < aten.ns[len(aten.ns) // 4]  # three quarters of each
        if not impossible and (not enough or are_below):
            kept += own
            continue
        for record in own:
            of_aten = (timing for timing in record.timings if timing.config in BASELINES)
            kept.append(record._replace(timings=tuple(of_aten)))
        if impossible:
            times = f"{aten.middle / best.middle:.0f} times as fast as aten"
            implausible.append(f"{problem}: {best.config} would be {times}")
        else:
            too_noisy[problem] = max(each.ns[-1] / each.middle for each in (aten, best))
    if len(too_noisy) >= _MANY and len(too_noisy) > _MAX_SHARE * len(by_problem):
        spread = f"times of the same kernel are up to {max(too_noisy.values()):.1f} times their median"
        raise DatasetError(f"too noisy to decide: {len(too_noisy)} of {len(by_problem)} problems ({spread}): {_REMEDY}")
    return kept, list(too_noisy), implausible, doubted
