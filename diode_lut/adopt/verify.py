"""Verifying: rows of a table measured again on this machine, a sample with the largest gains and any others.

A row records one gain: the geometric mean over the problems that it was built from. It can be compared only where these
are known. The datasets tell, where they are beside the table. Where they are not, a row for one problem says which that
is, and so does one with two problems that differ in one size, if it is not for what lies between measured problems.
"""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from diode_lut.adopt.drift import Drift, RemeasuredRow, noise_of
from diode_lut.build.wide import WIDE
from diode_lut.collect.collector import Executor, InProcess, collect
from diode_lut.collect.problems import ends
from diode_lut.dataset import Dataset
from diode_lut.domain.problem import Problem
from diode_lut.evaluate.evaluation import geometric_mean
from diode_lut.kernels.config import BASELINES, baseline
from diode_lut.table import Entry, Table
from diode_lut.table.entry import is_point

SAMPLE = 48
"""Number of rows that are measured, by default."""

_REPEATED = 8
"""Rows that did not drift and are measured twice all the same, to know the noise."""

_LEAST = 1 / 3
"""Share of the budget that is there for measuring, however long it takes to start."""

_FIRST = 0.75
"""Share of that time after which the first measurement begins no row, so that there is time for the second."""

Report = Callable[[str], None]
"""Is called with a line of text about what happens."""

Problems = tuple[Problem, ...]
"""Those that a row was built from."""

Sample = dict[Problems, float]
"""Rows, as their problems, with the gains that a table records for its answers."""

MAX_PROBLEMS = 4
"""Most problems of a row that is measured."""


def sample_of(gains: Sample, count: int, seed: int = 0) -> Sample:
    """At most ``count`` of these rows: half of them gain most, the others are drawn from the rest."""
    ranked = sorted(gains, key=lambda problems: (-gains[problems], problems))
    top, rest = ranked[: count // 2], ranked[count // 2 :]
    drawn = random.Random(seed).sample(rest, min(count - len(top), len(rest)))  # noqa: S311 - no secret depends on it
    return {problems: gains[problems] for problems in (*top, *drawn)}


def comparable(table: Table, datasets: Iterable[Dataset] = ()) -> Sample:
    """All rows whose recorded gain can be compared.

    ``datasets`` are those that the table was built from, as far as they are at hand. A row whose first config is
    ``aten`` records no gain, and is left out, as are rows with more than MAX_PROBLEMS problems.
    """
    measured = _problems_of_rows(table, datasets)
    found = {}
    for entry in table.entries:
        if entry.best.config not in BASELINES and entry.best.gain_permille:
            problems = measured.get(entry, ()) if measured else _told(entry)
            known = len(problems) == (entry.problems or 1) <= MAX_PROBLEMS
            if known and all(table.lookup(each) == entry for each in problems):
                found[problems] = entry.best.gain_permille / 1000
    return found


def _problems_of_rows(table: Table, datasets: Iterable[Dataset]) -> Mapping[Entry, Problems]:
    """The measured problems that each row answers for."""
    found = defaultdict(list)
    for problem in sorted({record.problem for dataset in datasets for record in dataset}):
        entry = table.lookup(problem)
        if entry is not None:
            found[entry].append(problem)
    return {entry: tuple(problems) for entry, problems in found.items()}


def _told(entry: Entry) -> Problems:
    """The problems that a row was built from, as far as its ranges tell; those of WIDE ops may hold none of them."""
    ranges = [size for size in entry.sizes if size is not None and not is_point(size)]
    return ends(entry) if len(ranges) < (1 if entry.op in WIDE else 2) else ()


def verify(
    table: Table,
    *,
    device: str | None = None,
    method: str | None = None,
    budget_s: float = 60.0,
    begun: float | None = None,
    sample: Sample | None = None,
    report: Report = lambda _: None,
) -> Drift:
    """Measure rows of the table against ``aten``, and compare their gains with those that the table records.

    Rows that seem to have drifted, and some others, are measured twice. ``device`` and ``method`` are those of
    ``collect``, and so are the errors. It measures in this process, which a kernel that hangs ends. No row is begun
    after ``budget_s`` seconds, as ``measure_drift`` counts them; they begin now, or at ``begun``.
    """
    begun = time.monotonic() if begun is None else begun
    gains = sample_of(comparable(table), SAMPLE) if sample is None else sample
    return measure_drift(table, gains, InProcess(), budget_s, begun, device=device, method=method, report=report)


def measure_drift(
    table: Table,
    gains: Sample,
    executor: Executor,
    budget_s: float,
    begun: float,
    *,
    device: str | None = None,
    method: str | None = None,
    report: Report = lambda _: None,
) -> Drift:
    """What ``verify`` does, with an executor that is open.

    The budget began at ``begun``, as ``time.monotonic`` counts. Until the first kernel is compiled, it takes up to a
    minute where nothing is in memory yet; a third of the budget is for what comes after that in any case.
    """
    started = math.inf

    def is_over(share: float) -> bool:
        left = max(begun + budget_s - started, _LEAST * budget_s)
        return time.monotonic() >= started + share * left

    with TemporaryDirectory(prefix="diode-lut-") as directory:

        def measure(rows: Sequence[Problems], name: str, share: float) -> dict[Problems, float]:
            nonlocal started
            path = Path(directory) / f"{name}.msgpack"
            problems = [problem for row in rows for problem in row]
            found: dict[Problem, float] = {}
            if not is_over(share):
                with closing(again(table, problems, path, executor, device=device, method=method)) as measured:
                    for problem, gain in measured:
                        started = min(started, time.monotonic())
                        found |= {} if gain is None else {problem: gain}
                        if is_over(share):
                            break
            return {row: _mean([found[each] for each in row]) for row in rows if found.keys() >= set(row)}

        first = measure(list(gains), "first", _FIRST)
        report(f"{len(first)} of {len(gains)} rows measured once")
        repeated = _to_repeat(gains, first)
        second = measure(repeated, "second", 1.0)
        report(f"{len(second)} of {len(repeated)} rows measured twice")
    rows = [
        RemeasuredRow(problems, gains[problems], (gain, second[problems]) if problems in second else (gain,))
        for problems, gain in first.items()
    ]
    return Drift(rows, noise_of([row.measured for row in rows if len(row.measured) == 2]))


def _mean(gains: Sequence[float]) -> float:
    """The geometric mean; 0 if one of them failed."""
    return (geometric_mean(gains) or 0.0) if all(gains) else 0.0


def _to_repeat(gains: Sample, first: dict[Problems, float]) -> list[Problems]:
    """Those that seem to have drifted, and others."""
    rows = [RemeasuredRow(problems, gains[problems], (gain,)) for problems, gain in first.items()]
    suspects = Drift(rows, None).drifted
    others = [row for row in rows if row not in suspects]
    return [row.problems for row in (*others[:_REPEATED], *suspects)]


def again(
    table: Table,
    problems: Sequence[Problem],
    path: Path,
    executor: Executor,
    *,
    device: str | None,
    method: str | None,
) -> Generator[tuple[Problem, float | None]]:
    """Time the table's answers and ``aten``, with the records in a new dataset, and yield each problem's gain.

    A gain is 0 where the answer failed; where ``aten`` failed there is none.
    """
    with closing(collect(problems, path, device=device, method=method, table=table, executor=executor)) as passes:
        for outcome in chain.from_iterable(each.outcomes for each in passes):
            times = {timing.config: timing.ns for timing in outcome.record.timings} if outcome.record else {}
            entry, aten = table.lookup(outcome.problem), times.get(baseline(outcome.problem.op))
            if entry is None or aten is None:
                yield outcome.problem, None
            else:
                ns = times.get(entry.best.config)
                yield outcome.problem, aten / ns if ns else 0.0
