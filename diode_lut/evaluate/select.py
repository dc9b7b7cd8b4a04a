"""What is evaluated: anything that answers problems with configs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from diode_lut.kernels.config import Config
from diode_lut.problem import Problem
from diode_lut.selector import Demand, Selector, Tier
from diode_lut.table import Table

if TYPE_CHECKING:
    from diode_lut.model.ranking import Model

EXACT, RANGE, MODEL, MISS = "exact", "range", "model", "miss"
"""Who answered: a row for this one problem, a row for ranges of sizes, a model, or nobody."""


class Answer(NamedTuple):
    """The configs for a problem, best first, and who gave them, in a word; no configs means a miss."""

    configs: tuple[Config, ...]
    source: str


Select = Callable[[Problem], Answer]
"""Answers one problem; the same every time."""


def answers_of(table: Table) -> Select:
    """What compiling gets from the table, asked through the same selector."""
    selector = Selector(table.hardware, [Tier("user", (table,))])

    def select(problem: Problem) -> Answer:
        decision = selector.select(problem)
        if decision.entry is None:
            return Answer((), MISS)
        return Answer(decision.configs, EXACT if decision.entry.volume == 1 else RANGE)

    return select


def answers_of_model(model: Model, demand: Demand) -> Select:
    """What compiling gets from the model alone, where it says what is demanded."""
    selector = Selector(model.hardware, [Tier("model", (), models=(model,))])

    def select(problem: Problem) -> Answer:
        decision = selector.select(problem, demand)
        return Answer(decision.configs, MODEL if decision.configs else MISS)

    return select
