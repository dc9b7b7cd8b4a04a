"""Rows that a table can do without, because a model answers as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from diode_lut.build.measurements import Measurements
from diode_lut.problem import ATEN, Config, Problem
from diode_lut.table import Entry

Choose = Callable[[Problem], Config | None]
"""A model's first choice for a problem; None if it is not sure enough."""


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
    others = [*answered, *kept]

    def left_to_the_model(row: Entry, number: int) -> bool:
        problem = measurements.problems[number]
        if any(other.covers(problem) for other in others if other is not row):
            return False
        return _keeps_promise(choose(problem), measurements.times_on(number), epsilon, noise)

    return [row for row, numbers in answered.items() if all(left_to_the_model(row, number) for number in numbers)]


def _keeps_promise(choice: Config | None, times: Mapping[Config, float], epsilon: float, noise: float) -> bool:
    limit = min(min(times.values()) * (1 + epsilon), times.get(ATEN, inf) * (1 + noise))
    return choice is not None and times.get(choice, inf) <= limit
