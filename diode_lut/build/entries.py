"""From measurements to the entries of a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from diode_lut.build.measurements import Measurements
from diode_lut.build.rows import BuiltRow, Group, few_rows
from diode_lut.build.wide import WIDE, wide_rows
from diode_lut.domain.ops import ATTENTION, MAX_SIZE, NO_EPILOGUE, OF_BYTES, OP_SIZES, SIZE_FIELDS
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import BASELINES, baseline
from diode_lut.table import Candidate, Entry, Table
from diode_lut.table.wire import MAX_GAIN_PERMILLE

RUNNERS_UP = 2
"""Maximum number of configs that are listed after the winner."""
NEAR = 1.1
"""Time over the best time up to which a config may be a runner-up."""
CLEAR = 1.1
"""Least gain over the baseline, on each of its problems, of a config of a row for several problems.

A smaller gain may be none between them. Where a fifth of 3,856 problems of real models on an H200 was left out in turn,
rows for Triton kernels answered for 166 of these, and one was slower than ``aten`` by over 3 %. Without this it was 18
of 308, by up to 50 %; and with half the reach instead, 4 of 186, by up to 21 %.
"""

_Times = Sequence[Mapping[int, float]]
"""For each problem, by its number, some configs, by theirs, with their times over the best time."""


def entries_of(
    measurements: Measurements, previous: Table | None, epsilon: float, noise: float
) -> tuple[list[Entry], list[Entry]]:
    """Few rows that keep the promise of ``build``, and wide ones for what was not measured, in no particular order.

    GEMMs with aligned results and others have no row in common. Rows in float8 and int8 are for one problem each:
    between problems, a model's answers are better, also for a layer that was measured.
    """
    problems = measurements.problems
    allowed = measurements.within(epsilon, noise)
    pads = np.array([config.pad > 1 for config in measurements.configs])[measurements.config_numbers]
    near = _times(measurements, allowed | (measurements.relative <= NEAR))
    padded = _times(measurements, pads)
    times = _times(measurements, allowed)
    costs = _costs(measurements, times, previous, noise)
    shared = _shared(measurements, times)
    sizes = [problem.sizes for problem in problems]
    fused = {_plain_kind(problem) for problem in problems if problem.epilogue != NO_EPILOGUE}
    numbers_of: dict[tuple[tuple[object, ...], bool], list[int]] = defaultdict(list)
    for number, problem in enumerate(problems):
        numbers_of[problem.kind, problem.has_aligned_result].append(number)
    are_wide = np.array([problem.op in WIDE for problem in problems])
    everything = _times(measurements, are_wide[measurements.problem_numbers])
    narrow, wide = [], []
    for (kind, _), numbers in numbers_of.items():
        op, epilogue = problems[numbers[0]].op, problems[numbers[0]].epilogue
        group = Group(numbers, sizes, times, shared)
        parts = [group._replace(problems=[each]) for each in numbers] if op in OF_BYTES else [group]
        rows = [row for part in parts for row in few_rows(part, costs)]
        answers = epilogue if epilogue != NO_EPILOGUE or kind in fused else None
        narrow += [_entry(row, measurements, near, padded)._replace(epilogue=answers) for row in rows]
        if op in WIDE and baseline(op) in measurements.configs:
            library = measurements.configs.index(baseline(op))
            found = wide_rows(op, group, everything, library)
            more = (each for each in found if not any(row.holds(each.box) for row in rows))
            named = near if op in ATTENTION else everything
            wide += [_entry(row, measurements, named, padded)._replace(epilogue=answers) for row in more]
    return narrow, wide


def _shared(measurements: Measurements, allowed: _Times) -> list[set[int]]:
    """For each problem, which of the allowed configs a row of several may have; without a time of the baseline, all."""
    plain = {number for number, config in enumerate(measurements.configs) if config in BASELINES}
    return [
        {number for number, time in times.items() if number in plain or not baseline < CLEAR * time}
        for times, baseline in zip(allowed, measurements.aten.tolist(), strict=True)
    ]


def _plain_kind(problem: Problem) -> tuple[object, ...]:
    """The kind of the GEMM without an epilogue. Its rows hold for any epilogue where no other was measured."""
    return problem.alone.kind


def _costs(measurements: Measurements, allowed: _Times, previous: Table | None, noise: float) -> _Times:
    """The times, less the noise for what the previous table has first, less half of it for aten."""
    names = measurements.configs
    bonuses = {number: noise / 2 for number, config in enumerate(names) if config in BASELINES}
    costs = []
    for problem, times in zip(measurements.problems, allowed, strict=True):
        entry = previous.lookup(problem) if previous else None
        first = entry.best.config if entry else None
        costs.append(
            {
                number: time - (noise if names[number] == first else bonuses.get(number, 0))
                for number, time in times.items()
            }
        )
    return costs


def _entry(row: BuiltRow, measurements: Measurements, near: _Times, padded: _Times) -> Entry:
    """The row's config and its runners-up; with a padded one behind them, if none pads but such were measured.

    That tells the hook that padding has been compared, so that Inductor need not.
    """
    problem = measurements.problems[row.problems[0]]
    ranges = {name: span for name, span in zip(SIZE_FIELDS, row.box, strict=False) if span != (1, MAX_SIZE)}
    b, m, n, k, h, g, v = (ranges.get(name) if name in OP_SIZES[problem.op] else None for name in SIZE_FIELDS)
    candidates = []
    for number in _ranking(row, near):
        config = measurements.configs[number]
        candidates.append(Candidate(config, _gain(row.problems, number, measurements, near)))
        if config in BASELINES:
            break  # it always works, so that nothing after it would ever be used
    if all(candidate.config.pad == 1 for candidate in candidates):
        candidates += _best_padded(row, measurements, padded)
    return Entry(
        problem.op,
        problem.dtype,
        problem.layout,
        problem.align,
        b,
        m,
        n,
        k,
        tuple(candidates),
        problems=len(row.problems),
        epilogue=problem.epilogue,
        variant=problem.variant or None,
        h=h,
        g=g,
        v=v,
    )


def _ranking(row: BuiltRow, near: _Times) -> list[int]:
    """The row's config, then the runners-up: those near the best on all its problems, the least summed time first."""
    common = set.intersection(*(set(near[problem]) for problem in row.problems)) - {row.config}
    sums = {config: sum(near[problem][config] for problem in row.problems) for config in common}
    return [row.config, *sorted(sums, key=lambda config: (sums[config], config))[:RUNNERS_UP]]


def _best_padded(row: BuiltRow, measurements: Measurements, padded: _Times) -> list[Candidate]:
    """The best padded config, if each of the row's problems was timed with some; of those timed at most problems.

    The last stage of a collection times only the best padded one of each problem, and these may differ.
    """
    if not all(padded[problem] for problem in row.problems):
        return []
    timed = defaultdict(list)
    for problem in row.problems:
        for number in padded[problem]:
            timed[number].append(problem)

    def rank(number: int) -> tuple[int, float, int]:
        problems = timed[number]
        return -len(problems), sum(padded[problem][number] for problem in problems), number

    best = min(timed, key=rank)
    return [Candidate(measurements.configs[best], _gain(timed[best], best, measurements, padded))]


def _gain(problems: list[int], number: int, measurements: Measurements, times: _Times) -> int | None:
    """Geometric mean of aten's time over the config's, as tables say it; None if aten was not measured, or meant."""
    aten = measurements.aten[problems]
    if np.isnan(aten).any() or measurements.configs[number] in BASELINES:
        return None
    relative = np.array([times[problem][number] for problem in problems])
    return min(round(1000 * float(np.exp(np.mean(np.log(aten / relative))))), MAX_GAIN_PERMILLE)


def _times(measurements: Measurements, mask: npt.NDArray[np.bool_]) -> list[dict[int, float]]:
    times: list[dict[int, float]] = [{} for _ in measurements.problems]
    columns = (measurements.problem_numbers, measurements.config_numbers, measurements.relative)
    for problem, number, relative in zip(*(column[mask].tolist() for column in columns), strict=True):
        times[problem][number] = relative
    return times
