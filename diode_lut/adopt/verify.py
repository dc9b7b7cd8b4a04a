"""Verifying: rows of a table measured again on this machine, a sample with the largest gains and any others."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from diode_lut.adopt.drift import Drift, Row, noise_of
from diode_lut.collect.collector import Executor, collect, open_executor
from diode_lut.collect.problems import ends
from diode_lut.collect.tasks import Outcome
from diode_lut.domain.problem import NO_EPILOGUE, Problem
from diode_lut.kernels.config import ATEN
from diode_lut.table import Entry, Table

SAMPLE = 48
"""Number of rows that are measured, by default."""

_REPEATED = 8
"""Rows that did not drift and are measured twice all the same, to know the noise."""

_FIRST = 0.75
"""Share of the time after which the first measurement begins no row, so that there is time for the second."""

Report = Callable[[str], None]
"""Is called with a line of text about what happens."""

Sample = dict[Problem, float]
"""Problems, with the gains that a table records for its answers."""


def sample_of(table: Table, count: int, seed: int = 0) -> Sample:
    """Rows to measure, as problems with recorded gains: half of them gain most, the others are drawn from the rest.

    These are rows for one problem without an epilogue whose first config is another than ``aten``, because only for
    them the table says what was measured for it.
    """
    gains = {
        problem: entry.best.gain_permille / 1000
        for entry in table.entries
        if _tells(entry) and entry.best.gain_permille
        for problem in ends(entry)
        if table.lookup(problem) == entry
    }
    ranked = sorted(gains, key=lambda problem: (-gains[problem], problem))
    top, rest = ranked[: count // 2], ranked[count // 2 :]
    drawn = random.Random(seed).sample(rest, min(count - len(top), len(rest)))  # noqa: S311 - no secret depends on it
    return {problem: gains[problem] for problem in (*top, *drawn)}


def _tells(entry: Entry) -> bool:
    plain = entry.epilogue in (None, NO_EPILOGUE)
    return plain and entry.is_exact and entry.best.config != ATEN and bool(entry.best.gain_permille)


def verify(
    table: Table,
    *,
    device: str | None = None,
    method: str | None = None,
    budget_s: float = 60.0,
    sample: Sample | None = None,
    report: Report = lambda _: None,
) -> Drift:
    """Measure rows of the table against ``aten``, and compare their gains with those that the table records.

    Rows that seem to have drifted, and some others, are measured twice. ``device`` and ``method`` are those of
    ``collect``, and so are the errors. No row is begun after ``budget_s`` seconds, in which starting counts.
    """
    deadline = time.monotonic() + budget_s
    gains = sample_of(table, SAMPLE) if sample is None else sample
    with open_executor(device, None) as executor:
        return measure_drift(table, gains, executor, deadline, device=device, method=method, report=report)


def measure_drift(
    table: Table,
    gains: Sample,
    executor: Executor,
    deadline: float,
    *,
    device: str | None = None,
    method: str | None = None,
    report: Report = lambda _: None,
) -> Drift:
    """What ``verify`` does, with an executor that is open, until ``time.monotonic()`` passes the deadline."""
    begin = time.monotonic()
    with TemporaryDirectory(prefix="diode-lut-") as directory:

        def measure(problems: Iterable[Problem], name: str, until: float) -> dict[Problem, float]:
            path = Path(directory) / f"{name}.msgpack"
            seconds = max(0.0, until - time.monotonic())
            return again(table, list(problems), path, executor, device=device, method=method, budget_s=seconds)

        first = measure(gains, "first", begin + _FIRST * (deadline - begin))
        report(f"{len(first)} of {len(gains)} rows measured once")
        repeated = _to_repeat(gains, first)
        second = measure(repeated, "second", deadline)
        report(f"{len(second)} of {len(repeated)} rows measured twice")
    rows = [
        Row(problem, gains[problem], (gain, second[problem]) if problem in second else (gain,))
        for problem, gain in first.items()
    ]
    return Drift(rows, noise_of([row.measured for row in rows if len(row.measured) == 2]))


def _to_repeat(gains: Sample, first: dict[Problem, float]) -> list[Problem]:
    """Those that seem to have drifted, and others."""
    rows = [Row(problem, gains[problem], (gain,)) for problem, gain in first.items()]
    suspects = Drift(rows, None).drifted
    others = [row for row in rows if row not in suspects]
    return [row.problem for row in (*others[:_REPEATED], *suspects)]


def again(
    table: Table,
    problems: Sequence[Problem],
    path: Path,
    executor: Executor,
    *,
    device: str | None,
    method: str | None,
    budget_s: float,
) -> dict[Problem, float]:
    """Time the table's answers and ``aten``, with the records in a new dataset, and return the gains.

    A gain is 0 where the answer failed; where ``aten`` failed there is none.
    """
    outcomes: list[Outcome] = []
    passes = collect(problems, path, device=device, method=method, budget_s=budget_s, table=table, executor=executor)
    for each in passes:
        outcomes += each.outcomes
    found = {}
    for outcome in outcomes:
        times = {timing.config: timing.ns for timing in outcome.record.timings} if outcome.record else {}
        entry, aten = table.lookup(outcome.problem), times.get(ATEN)
        if entry is not None and aten is not None:
            ns = times.get(entry.best.config)
            found[outcome.problem] = aten / ns if ns else 0.0
    return found
