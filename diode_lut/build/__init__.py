"""Building tables from datasets: which measured configs become rows, and which problems each row answers for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diode_lut.build.generated import rows_of_kernels
from diode_lut.build.measurements import Columns, Measurements, judged
from diode_lut.build.rows import WIDE, BuiltRow, Costs, RowGroup, few_rows, wide_rows
from diode_lut.dataset import SOFTWARE, Dataset, Record, current_records
from diode_lut.errors import DatasetError
from diode_lut.hardware import Hardware
from diode_lut.problem import (
    ATTENTION,
    GEMMS,
    GENERATED,
    MAX_SIZE,
    NO_EPILOGUE,
    OF_BYTES,
    OP_SIZES,
    SIZE_FIELDS,
    TOGETHER,
    Problem,
)
from diode_lut.process import __version__
from diode_lut.table import Candidate, Entry, Table
from diode_lut.table.format import MAX_GAIN_PERMILLE
from diode_lut.table.lookup import Neighbours
from diode_lut.table.row import coverage, is_point
from diode_lut.templates.config import BASELINES, Config, baseline

EPSILON = 0.02  # fraction by which a table's choice may be slower than the best measured config
NOISE = 0.01  # times that differ by no more than this fraction count as equal
MAX_PROBLEMS = 100_000  # maximum number of problems of a table: the time to build it grows with their square
RUNNERS_UP = 2  # maximum number of configs after the winner of a row
NEAR = 1.1  # time over the best time up to which a config may be a runner-up

CLEAR = 1.1
"""Least gain over the baseline, on each of its problems, of a config of a row for several problems.

A smaller gain may be none between them. Where a fifth of 3,856 problems of real models on an H200 was left out in turn,
rows for Triton kernels answered for 166 of these, and one was slower than ``aten`` by over 3 %. Without this it was 18
of 308, by up to 50 %. With half the reach instead, it was 4 of 186, by up to 21 %.
"""

BY_RANGES = (*GENERATED, *TOGETHER)  # the ops with rows that are good on average for ranges of sizes


class Pruning(NamedTuple):
    """The model to which rows are left: ``choose`` returns its sure first choice or None, ``name`` is its name."""

    choose: Callable[[Problem], Config | None]
    model: str


class BuildResult(NamedTuple):
    """A table and the counts of its build.

    ``timings`` counts all timings, ``outdone`` those superseded by timings of the final stage, ``failures`` those
    without a time, and ``skipped`` those without a place in our format, the last two by reason. ``problems`` counts the
    problems with an answer, ``unsolved`` those on which nothing succeeded, and ``without_aten`` those whose answer was
    not compared with aten. On a CPU, ``too_noisy`` are problems with the answer aten because no other config is clearly
    faster. ``implausible`` are gains too large to be true, as text; the answer is aten there, too. ``doubted`` has the
    reasons for leaving out records. ``kept`` are the rows with a note, taken over from the previous table, and
    ``pruned`` those left to a model. ``regrets``, for each problem of a built row, are the times of the table's choices
    over the best times, minus 1.
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
        """Number of built rows for a single problem."""
        return sum(entry.is_exact for entry in self.table.entries if entry.note is None)

    @property
    def range_rows(self) -> int:
        """Number of built rows for ranges of sizes."""
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
    """Build a small table with a config that is good enough for every measured problem.

    A config is good enough if it is within ``epsilon`` of the best time of the problem, and is aten or faster than aten
    by ``noise`` (or ``epsilon``, if smaller): a config equal to aten would be slower in half of later measurements. If
    a problem has timings of the final stage, its others do not count. The times of each record are scaled such that
    aten takes the same in all records of a problem. Several times of a config become their median, and a failure rules
    the config out. A row's range of sizes ends with its measurements, and its config is good enough for all measured
    problems in it, except those of narrower rows. Attention gets wide rows after these, for at least as many batches
    and heads as were measured, with a config not slower than Inductor's own at the neighbouring lengths. Grouped
    matmuls get such rows for numbers of rows between measured numbers. Rows for generated kernels have the config with
    the least mean loss in ranges of measured sizes. Rows in float8 and int8 are for a single problem. Among equally
    good configs (within ``noise``), the choice of ``previous`` wins, then aten, then a fixed order. Rows of
    ``previous`` with a note were written by people and stay. The order of files, records and timings has no influence.

    On a CPU, a config must be faster than aten in three quarters of its times, if it has three or more.

    With ``prune_with``, rows are left out if the model serves their problems as well. ``hardware`` is the hardware of
    the table, by default the hardware of ``previous`` or else the datasets'. ``progress`` passes on the records of a
    dataset. DatasetError is raised if datasets are from different hardware or have no usable timing, or if on a CPU
    most problems are too noisy to decide.
    """
    if not datasets:
        raise DatasetError("no dataset was given")
    origins = sorted((dataset.header.hardware, str(dataset.path)) for dataset in datasets)
    if previous is not None:
        origins.insert(0, (previous.hardware, str(previous.path or "the previous table")))
    if hardware is not None:
        origins.insert(0, (hardware, "the hardware asked for"))
    device, whose = origins[0]
    for other, origin in origins:
        if not device.same_device(other):
            raise DatasetError(f"{origin}: {other}, but {whose}: {device} (a table is for one kind of hardware)")
    records: Iterable[Record] = current_records(datasets, progress)
    if device.is_cpu:
        records, too_noisy, implausible, doubted = judged(records, noise, device)
    else:
        too_noisy, implausible, doubted = [], [], []
    columns, kernels = Columns(MAX_PROBLEMS), list[Record]()
    for record in records:
        columns.add(record)
        if record.problem.op in BY_RANGES and record.times:
            kernels.append(record)
    measurements = columns.combined()
    if not measurements.problems:
        lost = [f"failed, {reason}: {count}" for reason, count in columns.failures.items()]
        lost += [f"skipped, {reason}: {count}" for dataset in datasets for reason, count in dataset.skipped.items()]
        files = ", ".join(str(dataset.path) for dataset in datasets)
        raise DatasetError(f"{files}: no usable timing ({'; '.join([*lost, *doubted[:1]]) or 'it holds none'})")
    kept = [entry for entry in previous.entries if entry.note is not None] if previous else []
    built, wide = _entries(measurements, previous, epsilon, noise)
    wide += rows_of_kernels([(each.problem, each.times) for each in kernels], device)
    # The built rows with the numbers of their problems, except for rows that answer none or are averages
    answered: dict[Entry, list[int]] = defaultdict(list)
    table = Table(device, [*kept, *_without(built, kept)])
    for number, problem in enumerate(measurements.problems):
        if problem.op not in BY_RANGES:
            entry = table.lookup(problem)
            assert entry is not None, f"no row for {problem}"
            if entry.note is None:
                answered[entry].append(number)
    pruned = needless(answered, kept, measurements, prune_with.choose, epsilon, noise) if prune_with else []
    gone = set(pruned)
    left = {row: numbers for row, numbers in answered.items() if row not in gone}
    entries = [row._replace(problems=len(numbers)) for row, numbers in left.items()]
    served = [(measurements.times_on(each), row.best.config) for row, numbers in left.items() for each in numbers]
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
        regrets=[times[config] / min(times.values()) - 1 for times, config in served],
    )


def _without(built: Iterable[Entry], kept: Iterable[Entry]) -> list[Entry]:
    """Return the built rows whose problems have no kept row."""
    taken = set(map(coverage, kept))
    return [entry for entry in built if coverage(entry) not in taken]


def _provenance(datasets: Sequence[Dataset], pruning: Pruning | None) -> dict[str, str | list[str]]:
    """Return all values in the headers, the digests of the datasets, and the model to which rows were left."""
    headers = [dataset.header for dataset in datasets]
    provenance: dict[str, str | list[str]] = {
        name: ", ".join(sorted({getattr(each, name) for each in headers} - {""})) for name in (*SOFTWARE, "measured_by")
    }
    provenance["measured_on"] = max(header.measured_on for header in headers)
    provenance["datasets"] = sorted({f"sha256:{dataset.digest}" for dataset in datasets})
    provenance["pruned_with"] = pruning.model if pruning else ""
    provenance["diode_lut"] = __version__
    return {name: value for name, value in provenance.items() if value}


def needless(
    answered: Mapping[Entry, Sequence[int]],
    kept: Iterable[Entry],
    measurements: Measurements,
    choose: Callable[[Problem], Config | None],
    epsilon: float,
    noise: float,
) -> list[Entry]:
    """Return the rows whose problems (``answered`` has their numbers) all go to the model without them, and are safe.

    A choice is safe if it keeps the promise of ``build`` in the measurements. A problem covered by another row would go
    to that row, not to the model.
    """
    rows = [*answered, *kept]
    neighbours = Neighbours(rows)
    good = _times(measurements, measurements.within(epsilon, noise))
    found = []
    for row, numbers in answered.items():
        others = [rows[place] for place in neighbours.of(row, len(rows)) if rows[place] is not row]
        problems = [measurements.problems[number] for number in numbers]
        if not any(other.covers(problem) for other in others for problem in problems):
            safe = ({measurements.configs[each] for each in good[number]} for number in numbers)
            if all(choose(problem) in configs for problem, configs in zip(problems, safe, strict=True)):
                found.append(row)
    return found


def _entries(
    measurements: Measurements, previous: Table | None, epsilon: float, noise: float
) -> tuple[list[Entry], list[Entry]]:
    """Return few rows that keep the promise of ``build``, and wide rows for sizes not measured, in no particular order.

    GEMMs with aligned results and others have no row in common. Rows in float8 and int8 are for a single problem:
    between problems, a model's answers are better, also for a measured layer.
    """
    problems, configs = measurements.problems, measurements.configs
    allowed = measurements.within(epsilon, noise)
    pads = np.array([config.pad > 1 for config in configs])[measurements.config_numbers]
    near = _times(measurements, allowed | (measurements.relative <= NEAR))
    padded = _times(measurements, pads)
    constant = np.array([config.kernel.few_rows for config in configs])[measurements.config_numbers]
    others = np.isin(measurements.problem_numbers, measurements.problem_numbers[constant])
    changing = _times(measurements, others & ~constant & ~pads)
    times = _times(measurements, allowed)
    are_wide = np.array([problem.op in WIDE for problem in problems])
    everything = _times(measurements, are_wide[measurements.problem_numbers])
    plain = {number for number, config in enumerate(configs) if config in BASELINES}
    # A row of several problems may have baselines, and configs that clearly gain; without a time of the baseline, all.
    shared = [
        {number for number, time in of_problem.items() if number in plain or not aten < CLEAR * time}
        for of_problem, aten in zip(times, measurements.aten.tolist(), strict=True)
    ]
    # A config costs its time, less the noise if the previous table has it first, less half of the noise if it is aten.
    costs = []
    for problem, of_problem in zip(problems, times, strict=True):
        entry = previous.lookup(problem) if previous else None
        first = entry.best.config if entry else None
        costs.append(
            {
                number: time - (noise if configs[number] == first else noise / 2 if number in plain else 0)
                for number, time in of_problem.items()
            }
        )
    sizes = [problem.sizes for problem in problems]
    # A GEMM's row holds for any epilogue unless an epilogue of the same kind was measured.
    fused = {problem.alone.kind for problem in problems if problem.epilogue != NO_EPILOGUE}
    numbers_of: dict[tuple[tuple[object, ...], int], list[int]] = defaultdict(list)
    for number, problem in enumerate(problems):
        numbers_of[problem.kind, problem.n_align].append(number)
    narrow, wide = [], []
    for (kind, _), numbers in numbers_of.items():
        op, epilogue = problems[numbers[0]].op, problems[numbers[0]].epilogue
        if op in BY_RANGES:
            continue
        group = RowGroup(numbers, sizes, times, shared)
        parts = [group._replace(problems=[each]) for each in numbers] if op in OF_BYTES else [group]
        rows = [row for part in parts for row in few_rows(part, costs)]
        answers = epilogue if epilogue != NO_EPILOGUE or kind in fused else None
        narrow += [_entry(row, measurements, near, padded, changing)._replace(epilogue=answers) for row in rows]
        if op in WIDE and baseline(op) in configs:
            found = wide_rows(op, group, everything, configs.index(baseline(op)))
            more = (each for each in found if not any(row.holds(each.box) for row in rows))
            named = near if op in ATTENTION else everything
            wide += [_entry(row, measurements, named, padded, changing)._replace(epilogue=answers) for row in more]
    return narrow, wide


def _times(measurements: Measurements, mask: npt.NDArray[np.bool_]) -> list[dict[int, float]]:
    """Return for each problem the configs in the mask, by number, with their times over the best time."""
    times: list[dict[int, float]] = [{} for _ in measurements.problems]
    columns = (measurements.problem_numbers, measurements.config_numbers, measurements.relative)
    for problem, number, relative in zip(*(column[mask].tolist() for column in columns), strict=True):
        times[problem][number] = relative
    return times


def _entry(row: BuiltRow, measurements: Measurements, near: Costs, padded: Costs, changing: Costs) -> Entry:
    """Return the entry of a row: its config, its runners-up, and perhaps two more.

    Runners-up are near the best on all problems of the row, the least summed time first. The best padded config is
    added if no other config pads and each problem was timed with padding: the hook then knows that padding has been
    compared, so Inductor need not compare it again. If all are kernels for few rows, which need constant sizes, the
    best of the others is added, for sizes that may change.
    """
    problem = measurements.problems[row.problems[0]]
    ranges = {name: span for name, span in zip(SIZE_FIELDS, row.box, strict=False) if span != (1, MAX_SIZE)}
    spans: dict[str, Any] = {name: ranges.get(name) if name in OP_SIZES[problem.op] else None for name in SIZE_FIELDS}
    common = set.intersection(*(set(near[each]) for each in row.problems)) - {row.config}
    sums = {config: sum(near[each][config] for each in row.problems) for config in common}
    runners_up = sorted(sums, key=lambda config: (sums[config], config))[:RUNNERS_UP]
    candidates = []
    for number in (row.config, *runners_up):
        config = measurements.configs[number]
        candidates.append(Candidate(config, _gain(row.problems, number, measurements, near)))
        if config in BASELINES:
            break  # it always works, so nothing after it would ever be used
    if all(candidate.config.kernel.few_rows for candidate in candidates):
        common = set.intersection(*(set(changing[each]) for each in row.problems))
        if common:
            best = min(common, key=lambda config: (sum(changing[each][config] for each in row.problems), config))
            candidates.append(Candidate(measurements.configs[best], _gain(row.problems, best, measurements, changing)))
    if all(candidate.config.pad == 1 for candidate in candidates) and all(padded[each] for each in row.problems):
        # The best of those timed at most problems of the row, which may have different ones
        timed = defaultdict(list)
        for each in row.problems:
            for number in padded[each]:
                timed[number].append(each)
        ranks = [(-len(own), sum(padded[each][number] for each in own), number) for number, own in timed.items()]
        *_, best = min(ranks)
        candidates.append(Candidate(measurements.configs[best], _gain(timed[best], best, measurements, padded)))
    n = spans["n"]
    return Entry(
        *(problem.op, problem.dtype, problem.layout, problem.align),
        candidates=tuple(candidates),
        problems=len(row.problems),
        epilogue=problem.epilogue,
        variant=problem.variant or None,
        n_align=problem.n_align if problem.op in GEMMS and n is not None and not is_point(n) else None,
        **spans,
    )


def _gain(problems: list[int], number: int, measurements: Measurements, times: Costs) -> int | None:
    """Return the geometric mean of aten's time over the config's, in permille. None without aten, and for aten."""
    aten = measurements.aten[problems]
    if np.isnan(aten).any() or measurements.configs[number] in BASELINES:
        return None
    relative = np.array([times[problem][number] for problem in problems])
    return min(round(1000 * float(np.exp(np.mean(np.log(aten / relative))))), MAX_GAIN_PERMILLE)
