"""Rows that a table can do without, because a model answers as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from diode_lut.build.measurements import Measurements
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import Config
from diode_lut.table import Entry
from diode_lut.table.overlap import Neighbours

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
