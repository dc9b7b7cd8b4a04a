"""Makes an Evaluation from a source and timings."""

from __future__ import annotations

from collections.abc import Iterable

from diode_lut.build.measurements import Measurements, measurements_of
from diode_lut.dataset import Record
from diode_lut.domain.errors import DatasetError
from diode_lut.domain.problem import Problem
from diode_lut.evaluate.evaluation import MISS, Case, Evaluation, Outcome
from diode_lut.kernels.config import ATEN, Config
from diode_lut.selection.sources import THRESHOLD, Source, Threshold


def evaluate(
    source: Source, records: Iterable[Record], against: str = str(ATEN), threshold: Threshold = THRESHOLD
) -> Evaluation:
    """Evaluate the source's first config on every problem of the records.

    Timings are combined as ``build`` combines them. A miss counts as ``aten``, which Inductor uses then. ``against`` is
    the baseline of gains, written like ``str(config)``. DatasetError is raised if no timing was successful, or if the
    baseline was measured on no problem.
    """
    measurements = measurements_of(records)
    baseline = next((config for config in measurements.configs if str(config) == against), None)
    if baseline is None:
        raise DatasetError(f"{against!r} was measured on none of the problems, so there is nothing to compare with")
    cases = [
        _case(source, threshold, problem, number, measurements, baseline)
        for number, problem in enumerate(measurements.problems)
    ]
    return Evaluation(cases, len(measurements.unsolved), baseline)


def _case(
    source: Source, threshold: Threshold, problem: Problem, number: int, measurements: Measurements, baseline: Config
) -> Case:
    times = measurements.times_on(number)
    answer = source.ask(problem, threshold)
    origin = source.origin(answer) if answer is not None and answer.configs else MISS
    choice = answer.configs[0] if answer is not None and answer.configs else ATEN
    ns = times.get(choice)
    best = min(times, key=times.__getitem__)
    return Case(
        problem=problem,
        origin=origin,
        choice=choice,
        outcome=_outcome(ns, problem, choice, measurements),
        ns=ns,
        best=best,
        best_ns=times[best],
        baseline_ns=times.get(baseline),
    )


def _outcome(ns: float | None, problem: Problem, choice: Config, measurements: Measurements) -> Outcome:
    if ns is not None:
        return "measured"
    return "failed" if (problem, choice) in measurements.failed else "not measured"
