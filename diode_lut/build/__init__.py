"""From measurements to the entries of a table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diode_lut.build.measurements import Columns, Measurements, judged
from diode_lut.build.rows import WIDE, BuiltRow, Group, few_rows, wide_rows
from diode_lut.dataset import SOFTWARE, Dataset, Record
from diode_lut.errors import DatasetError
from diode_lut.hardware import Hardware
from diode_lut.problem import ATTENTION, GEMMS, MAX_SIZE, NO_EPILOGUE, OF_BYTES, OP_SIZES, SIZE_FIELDS, Problem
from diode_lut.process import __version__
from diode_lut.table import Candidate, Entry, Table
from diode_lut.table.format import MAX_GAIN_PERMILLE
from diode_lut.table.lookup import Neighbours
from diode_lut.table.row import coverage, is_point
from diode_lut.templates.config import BASELINES, Config, baseline

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
    numbers_of: dict[tuple[tuple[object, ...], int], list[int]] = defaultdict(list)
    for number, problem in enumerate(problems):
        numbers_of[problem.kind, problem.n_align].append(number)
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
        n_align=problem.n_align if problem.op in GEMMS and n is not None and not is_point(n) else None,
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


EPSILON = 0.02
"""By what fraction a table's choice may be slower than the best config measured."""
NOISE = 0.01
"""Times that differ by no more than this fraction are taken to be the same."""


MAX_PROBLEMS = 100_000
"""Most problems that a table is built from: the time that takes grows with their square."""


class BuildResult(NamedTuple):
    """A table, and what it was made from.

    ``timings`` counts all of them, ``outdone`` those that did not count because their problem has timings of the final
    stage, ``failures`` those that are no time and ``skipped`` those that could not be represented, by reason.
    ``problems`` counts those that have an answer, ``unsolved`` those on which nothing succeeded, ``without_aten`` those
    that have an answer which nobody compared with aten. On a CPU, ``too_noisy`` are problems whose answer is aten,
    because no other config is clearly faster, and ``implausible`` are gains that cannot be true, as text; there the
    answer is aten, too. ``doubted`` has the reasons why records were left out there. ``kept`` are the rows with a note,
    which were taken over from the previous table, ``pruned`` those that were left to a model. ``regrets``, one for each
    problem that a built row answers for, are the times of what the table says over the best times, minus one.
    """

    table: Table
    timings: int
    outdone: int
    failures: Counter[str]
    skipped: Counter[str]
    problems: int
    unsolved: int
    without_aten: int
    too_noisy: Sequence[Problem]
    implausible: Sequence[str]
    doubted: Sequence[str]
    kept: Sequence[Entry]
    pruned: Sequence[Entry]
    regrets: Sequence[float]

    @property
    def exact_rows(self) -> int:
        """How many of the built rows are for a single problem."""
        return sum(entry.is_exact for entry in self.table.entries if entry.note is None)

    @property
    def range_rows(self) -> int:
        """How many of the built rows are for ranges of sizes."""
        return len(self.table.entries) - len(self.kept) - self.exact_rows

    @property
    def worst_regret(self) -> float:
        """The largest of the regrets, a fraction."""
        return max(self.regrets)

    @property
    def mean_regret(self) -> float:
        """The mean of the regrets, a fraction."""
        return fmean(self.regrets)


def build(
    datasets: Sequence[Dataset],
    *,
    hardware: Hardware | None = None,
    previous: Table | None = None,
    epsilon: float = EPSILON,
    noise: float = NOISE,
    prune_with: Pruning | None = None,
    progress: Callable[[Dataset], Iterable[Record]] = iter,
) -> BuildResult:
    """A small table with which every measured problem gets a config that is good enough.

    Good enough means: within ``epsilon`` of the best time measured for the problem, and aten, or faster than aten by
    ``noise`` (by ``epsilon``, if that is less), where aten was measured: in the next measurement what only equals aten
    would be slower as often as not. Where a problem has timings of the final stage, no others of it count.
    Times of the same config on the same problem are combined by their median, after those of each record are scaled so
    that aten takes the same in all records of the problem; one failure among them rules the config out there. A row
    holds for a range of sizes in which it is good enough wherever something was measured that no narrower row answers
    for, and its range ends where the measurements end. Attention gets wide rows behind these, for at least as many
    batches and heads as were measured, with a config that was not slower than Inductor's own at the neighbouring
    lengths; grouped matmuls get such rows for numbers of rows between measured ones. Rows in float8 and int8 are for
    one problem each. Equally good configs (within ``noise``) are told apart by what ``previous`` says, then aten wins,
    then a fixed order decides. Rows of ``previous`` with a note are a person's own, and stay. The order of files,
    records and timings has no influence.

    On a CPU, a config must be faster than aten in three quarters of its times, where there are three or more.

    With ``prune_with`` rows are left out whose problems this model serves as well.
    ``hardware`` says what the table is for, by default the hardware of ``previous``, and without that the datasets'.
    ``progress`` passes on the records of a dataset. DatasetError is raised if datasets are from different hardware,
    or hold not one usable timing, or if on a CPU most problems are too noisy to decide.
    """
    if not datasets:
        raise DatasetError("no dataset was given")
    device = _common_hardware(datasets, hardware, previous)
    records: Iterable[Record] = (record for dataset in datasets for record in progress(dataset))
    if device.is_cpu:
        records, too_noisy, implausible, doubted = judged(records, noise, device)
    else:
        too_noisy, implausible, doubted = [], [], []
    columns = Columns(MAX_PROBLEMS)
    for record in records:
        columns.add(record)
    measurements = columns.combined()
    if not measurements.problems:
        raise DatasetError(_nothing_usable(datasets, columns.failures, doubted))
    kept = [entry for entry in previous.entries if entry.note is not None] if previous else []
    built, wide = entries_of(measurements, previous, epsilon, noise)
    answered = _answering(built, kept, measurements, device)
    pruned = needless(answered, kept, measurements, prune_with.choose, epsilon, noise) if prune_with else []
    gone = set(pruned)
    left = {row: numbers for row, numbers in answered.items() if row not in gone}
    entries = [row._replace(problems=len(numbers)) for row, numbers in left.items()]
    return BuildResult(
        table=Table(device, [*entries, *_without(wide, kept), *kept], _provenance(datasets, prune_with)),
        timings=measurements.timings,
        outdone=measurements.timings - measurements.counting,
        failures=columns.failures,
        skipped=sum((dataset.skipped for dataset in datasets), Counter()),
        problems=len(measurements.problems),
        unsolved=len(measurements.unsolved),
        without_aten=measurements.without_aten,
        too_noisy=too_noisy,
        implausible=implausible,
        doubted=doubted,
        kept=kept,
        pruned=[row._replace(problems=len(answered[row])) for row in pruned],
        regrets=[
            measurements.relative_time(number, entry.best.config) - 1
            for entry, numbers in left.items()
            for number in numbers
        ],
    )


def _nothing_usable(datasets: Iterable[Dataset], failures: Counter[str], doubted: Sequence[str]) -> str:
    """The message for datasets in which nothing succeeded: their names, and what became of the timings."""
    skipped = (f"skipped, {reason}: {count}" for dataset in datasets for reason, count in dataset.skipped.items())
    failed = (f"failed, {reason}: {count}" for reason, count in failures.items())
    files = ", ".join(str(dataset.path) for dataset in datasets)
    return f"{files}: no usable timing ({'; '.join([*failed, *skipped, *doubted[:1]]) or 'it holds none'})"


def _common_hardware(datasets: Iterable[Dataset], hardware: Hardware | None, previous: Table | None) -> Hardware:
    """What the table is for, or DatasetError if not everything is from the same hardware."""
    origins = sorted((dataset.header.hardware, str(dataset.path)) for dataset in datasets)
    if previous is not None:
        origins.insert(0, (previous.hardware, str(previous.path or "the previous table")))
    if hardware is not None:
        origins.insert(0, (hardware, "the hardware asked for"))
    common, whose = origins[0]
    for other, origin in origins:
        if not common.same_device(other):
            raise DatasetError(f"{origin}: {other}, but {whose}: {common} (a table is for one kind of hardware)")
    return common


def _answering(
    built: Iterable[Entry], kept: Sequence[Entry], measurements: Measurements, hardware: Hardware
) -> dict[Entry, list[int]]:
    """The built rows with the numbers of the problems that each answers for in the table.

    A row to which the kept ones leave no problem is left out.
    """
    table = Table(hardware, [*kept, *_without(built, kept)])
    answered: defaultdict[Entry, list[int]] = defaultdict(list)
    for number, problem in enumerate(measurements.problems):
        entry = table.lookup(problem)
        assert entry is not None, f"no row for {problem}"
        if entry.note is None:
            answered[entry].append(number)
    return dict(answered)


def _without(built: Iterable[Entry], kept: Iterable[Entry]) -> list[Entry]:
    """The built rows for which no row of the same problems is kept."""
    taken = set(map(coverage, kept))
    return [entry for entry in built if coverage(entry) not in taken]


def _provenance(datasets: Sequence[Dataset], pruning: Pruning | None) -> dict[str, str | list[str]]:
    """What the headers say; where they differ, all of it. And the model that rows were left to."""
    headers = [dataset.header for dataset in datasets]
    provenance: dict[str, str | list[str]] = {
        name: ", ".join(sorted({getattr(header, name) for header in headers} - {""}))
        for name in (*SOFTWARE, "measured_by")
    }
    provenance["measured_on"] = max(header.measured_on for header in headers)
    provenance["datasets"] = sorted({f"sha256:{dataset.digest}" for dataset in datasets})
    provenance["pruned_with"] = pruning.model if pruning else ""
    provenance["diode_lut"] = __version__
    return {name: value for name, value in provenance.items() if value}


Choose = Callable[[Problem], Config | None]
"""A model's first choice for a problem; None if it is not sure enough."""


class Pruning(NamedTuple):
    """What rows are left to: the choices of a model, and which model that is, for the table's provenance."""

    choose: Choose
    model: str


def needless(
    answered: Mapping[Entry, Sequence[int]],
    kept: Iterable[Entry],
    measurements: Measurements,
    choose: Choose,
    epsilon: float,
    noise: float,
) -> list[Entry]:
    """The rows whose problems (``answered`` has their numbers) all go to the model without them, and are safe there.

    Safe is a choice that keeps the promise of ``build`` by what was measured. A problem that another row covers, which
    would then answer for it, goes to that row.
    """
    rows = [*answered, *kept]
    neighbours = Neighbours(rows)
    good = measurements.within(epsilon, noise)

    def left_to_the_model(row: Entry, numbers: Sequence[int]) -> bool:
        others = [rows[place] for place in neighbours.of(row, len(rows)) if rows[place] is not row]
        problems = [measurements.problems[number] for number in numbers]
        if any(other.covers(problem) for other in others for problem in problems):
            return False
        safe = (measurements.configs_on(number, good) for number in numbers)
        return all(choose(problem) in configs for problem, configs in zip(problems, safe, strict=True))

    return [row for row, numbers in answered.items() if left_to_the_model(row, numbers)]
