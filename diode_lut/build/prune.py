"""Rows that a table can do without, because a model answers as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from diode_lut.build.measurements import Measurements
from diode_lut.problem import Config, Problem
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
    good = measurements.within(epsilon, noise)

    def left_to_the_model(row: Entry, number: int) -> bool:
        problem = measurements.problems[number]
        if any(other.covers(problem) for other in others if other is not row):
            return False
        return choose(problem) in measurements.configs_on(number, good)

    return [row for row, numbers in answered.items() if all(left_to_the_model(row, number) for number in numbers)]
