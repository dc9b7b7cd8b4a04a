"""Verify a table: measure gains of its rows again, find the rows that drifted, and conclude on all rows."""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from statistics import NormalDist, fmean, median, stdev
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

from diode_lut.build.rows import WIDE
from diode_lut.dataset import Dataset
from diode_lut.evaluate import geometric_mean
from diode_lut.measure.collector import Executor, InProcess, collect
from diode_lut.measure.problems import RecordedKernel, ends
from diode_lut.problem import GENERATED, TOGETHER, Problem
from diode_lut.table import Entry, Table
from diode_lut.table.row import is_point
from diode_lut.templates.config import BASELINES, baseline

TOLERANCE = 0.1
"""A row has drifted if each measured gain differs from the recorded gain by more than this fraction.

tools/score_verify.py computes its consequences. In later runs on other H200 at most 1 of 48 rows drifted, and with the
configs of 30 % of the rows swapped 4 to 18.
"""

NOISE_FACTOR = 4.0  # the tolerance is this many times the typical difference of two measurements, if that is much
MAX_NOISE = 0.05  # maximum typical difference between two measurements of a gain, as a fraction, for a verdict

HEALTHY, SICK = 0.15, 0.02
"""A table holds if surely fewer than the first fraction of rows drifted, and fails if surely more than the second."""

MIN_ROWS = 8  # minimum number of rows for a verdict

_Z = NormalDist().inv_cdf(0.975)

Verdict = Literal["holds", "does not hold", "undecided", "too noisy"]


class RemeasuredRow(NamedTuple):
    """A row with its recorded gain over aten, and the gains measured here (geometric means), 0 if the config failed."""

    problems: tuple[Problem, ...]
    recorded: float
    measured: tuple[float, ...]

    @property
    def shifts(self) -> list[float]:
        """The logarithms of measured over recorded gain, for each measurement."""
        return [math.log(gain / self.recorded) if gain > 0 else -math.inf for gain in self.measured]

    def drifted(self, tolerance: float) -> bool:
        """Return whether every measurement is off by more than the tolerance, all in the same direction."""
        limit = math.log1p(tolerance)
        return all(shift > limit for shift in self.shifts) or all(shift < -limit for shift in self.shifts)


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


class Drift(NamedTuple):
    """The result for all measured rows. ``noise`` is the median difference between two measurements of a gain."""

    rows: Sequence[RemeasuredRow]
    noise: float | None

    @property
    def tolerance(self) -> float:
        """By how much a gain may differ, a fraction."""
        return max(TOLERANCE, NOISE_FACTOR * (self.noise or 0.0))

    @property
    def drifted(self) -> list[RemeasuredRow]:
        """The rows that drifted, the largest loss first."""
        found = [row for row in self.rows if row.drifted(self.tolerance)]
        return sorted(found, key=lambda row: max(row.shifts))

    @property
    def share(self) -> Interval:
        """The fraction of rows that drifted, with Wilson's interval."""
        return wilson(len(self.drifted), len(self.rows))

    @property
    def kept(self) -> Interval | None:
        """The geometric mean of measured over recorded gain, of the rows whose configs ran. None for fewer than two."""
        shifts = [row.shifts[-1] for row in self.rows if row.measured[-1] > 0]
        if len(shifts) < 2:
            return None
        mean, error = fmean(shifts), _Z * stdev(shifts) / math.sqrt(len(shifts))
        return Interval(math.exp(mean), math.exp(mean - error), math.exp(mean + error))

    @property
    def verdict(self) -> Verdict:
        """The verdict on the whole table."""
        if self.noise is not None and self.noise > MAX_NOISE:
            return "too noisy"
        if len(self.rows) < MIN_ROWS:
            return "undecided"
        if self.share.low > SICK:
            return "does not hold"
        return "holds" if self.share.high < HEALTHY else "undecided"


def noise_of(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the median difference, a fraction, between two measurements of the same gains."""
    both = [abs(math.log(one / other)) for one, other in pairs if one > 0 and other > 0]
    return math.expm1(median(both)) if both else None


def wilson(hits: int, count: int) -> Interval:
    """Return the fraction ``hits / count`` with its 95 % interval by Wilson, from 0 to 1 without a count."""
    if not count:
        return Interval(0.0, 0.0, 1.0)
    fraction, z2 = hits / count, _Z * _Z
    middle = (fraction + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z * math.sqrt(fraction * (1 - fraction) / count + z2 / (4 * count * count)) / (1 + z2 / count)
    return Interval(fraction, max(0.0, middle - half), min(1.0, middle + half))


SAMPLE = 48  # default number of rows to measure
_REPEATED = 8  # number of rows without drift to measure twice all the same, for the noise
_LEAST = 1 / 3  # share of the budget for measuring, however long the start takes
_FIRST = 0.75  # share of that time after which the first measurement begins no row, to leave time for the second
Report = Callable[[str], None]  # a function that gets a line of text about the progress
Problems = tuple[Problem, ...]  # the problems that a row was built from
Gains = dict[Problems, float]  # rows as their problems, with the recorded gains
MAX_PROBLEMS = 4  # maximum number of problems of a measured row


def sample_of(gains: Gains, count: int, seed: int = 0) -> Gains:
    """Draw at most ``count`` of these rows: half of them gain most, the others are drawn from the rest."""
    ranked = sorted(gains, key=lambda problems: (-gains[problems], problems))
    top, rest = ranked[: count // 2], ranked[count // 2 :]
    drawn = random.Random(seed).sample(rest, min(count - len(top), len(rest)))  # noqa: S311 - no secret depends on it
    return {problems: gains[problems] for problems in (*top, *drawn)}


def comparable(table: Table, datasets: Iterable[Dataset] = (), kernels: Iterable[RecordedKernel] = ()) -> Gains:
    """Return all rows with a recorded gain to compare.

    ``datasets`` are the available datasets of the table, and ``kernels`` the generated kernels that can be measured.
    Rows whose first config is ``aten`` record no gain, and are left out, as are rows with more than MAX_PROBLEMS
    problems, rows for joined matmuls, whose gain depends on the columns of each B, and rows for generated kernels that
    are not the recorded ones.
    """
    measured: defaultdict[Entry, Problems] = defaultdict(tuple)
    of_gemms = {record.problem for dataset in datasets for record in dataset if record.problem.op not in GENERATED}
    for problem in sorted({*of_gemms, *(kernel.problem for kernel in kernels)}):
        row = table.lookup(problem)
        if row is not None:
            measured[row] += (problem,)
    found = {}
    for entry in table.entries:
        if entry.best.config not in BASELINES and entry.best.gain_permille and entry.op not in TOGETHER:
            problems = measured[entry]
            if not of_gemms and entry.op not in GENERATED:  # as far as ranges tell; rows of WIDE ops may hold none
                ranges = [size for size in entry.sizes if size is not None and not is_point(size)]
                problems = ends(entry) if len(ranges) < (1 if entry.op in WIDE else 2) else ()
            known = len(problems) == (entry.problems or 1) <= MAX_PROBLEMS
            if known and all(table.lookup(each) == entry for each in problems):
                found[problems] = entry.best.gain_permille / 1000
    return found


def verify(
    table: Table,
    gains: Gains,
    executor: Executor | None = None,
    *,
    device: str | None = None,
    method: str | None = None,
    budget_s: float = 60.0,
    begun: float | None = None,
    kernels: Sequence[RecordedKernel] = (),
    report: Report = lambda _: None,
) -> Drift:
    """Measure these rows of the table against the baseline, and compare their gains with the recorded gains.

    Rows that seem to have drifted, and some others, are measured twice. ``executor`` is open. Without it, this process
    measures, and a hanging kernel ends it. ``device``, ``method``, ``kernels`` and the errors are those of ``collect``.
    No row is begun after ``budget_s`` seconds, from now or from ``begun``, in seconds of ``time.monotonic``. The first
    kernel may take a minute to compile if nothing is in memory yet. A third of the budget is for the time after that in
    any case.
    """
    begin = time.monotonic() if begun is None else begun
    started = math.inf

    def is_over(share: float) -> bool:
        left = max(begin + budget_s - started, _LEAST * budget_s)
        return time.monotonic() >= started + share * left

    with TemporaryDirectory(prefix="diode-lut-") as directory:

        def measure(rows: Sequence[Problems], name: str, share: float) -> dict[Problems, float]:
            nonlocal started
            problems = [problem for row in rows for problem in row]
            found: dict[Problem, float] = {}
            passes = collect(
                [problem for problem in problems if problem.op not in GENERATED],
                Path(directory) / f"{name}.msgpack",
                device=device,
                method=method,
                table=table,
                executor=executor or InProcess(),
                kernels=[kernel for kernel in kernels if kernel.problem in set(problems)],
            )
            with closing(passes):
                for outcome in chain.from_iterable(each.outcomes for each in (() if is_over(share) else passes)):
                    started = min(started, time.monotonic())
                    times = outcome.record.times if outcome.record else {}
                    entry, aten = table.lookup(outcome.problem), times.get(baseline(outcome.problem.op))
                    if entry is not None and aten is not None:
                        ns = times.get(entry.best.config)
                        found[outcome.problem] = aten / ns if ns else 0.0  # it failed
                    if is_over(share):
                        break
            known = {row: [found[each] for each in row] for row in rows if found.keys() >= set(row)}
            # The geometric mean is 0 if a config failed on any of a row's problems.
            return {row: (geometric_mean(own) or 0.0) if all(own) else 0.0 for row, own in known.items()}

        first = measure(list(gains), "first", _FIRST)
        report(f"{len(first)} of {len(gains)} rows measured once")
        once = [RemeasuredRow(problems, gains[problems], (gain,)) for problems, gain in first.items()]
        suspects = Drift(once, None).drifted
        steady = [row for row in once if row not in suspects]
        repeated = [row.problems for row in (*steady[:_REPEATED], *suspects)]
        second = measure(repeated, "second", 1.0)
        report(f"{len(second)} of {len(repeated)} rows measured twice")
    rows = [
        RemeasuredRow(problems, gains[problems], (gain, second[problems]) if problems in second else (gain,))
        for problems, gain in first.items()
    ]
    return Drift(rows, noise_of([row.measured for row in rows if len(row.measured) == 2]))
