"""Why a problem gets what it gets: the decision, the rows that would have answered next, and what the models say.

The hook needs none of this, and does not pay for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from diode_lut.domain.printable import as_lines
from diode_lut.domain.problem import Problem
from diode_lut.selection.selector import DEMAND, Decision, Demand, Selector, Step, ranking_in_words, row_name
from diode_lut.settings import TIERS
from diode_lut.table import Entry, Table
from diode_lut.table.canonical import winner_in_words

_SHOWN = 10
"""How many of the rows that would have answered next are shown; to find the line of each, the table is read again."""


class Rival(NamedTuple):
    """A row that covers the problem too, but does not answer."""

    tier: str
    table: Table
    entry: Entry


class Explanation(NamedTuple):
    """A decision, and what stands behind it where a table answers.

    ``rivals`` are the other rows that cover the problem, in the order in which they would answer. ``models`` is what
    the models would decide; None where they were asked anyway.
    """

    decision: Decision
    rivals: tuple[Rival, ...]
    models: Decision | None

    def __str__(self) -> str:
        """For people, in several lines."""
        return as_lines([*self.decision.lines(), *self._rivals(), *self._models()])

    def _rivals(self) -> Iterator[str]:
        if self.decision.entry is not None and not self.rivals:
            yield "  runner-up: none, for no other row covers it"
        for number, rival in enumerate(self.rivals[:_SHOWN]):
            yield f"  {'then' if number else 'runner-up'}: {self._in_words(rival)}"
        if len(self.rivals) > _SHOWN:
            yield f"  and {len(self.rivals) - _SHOWN} more rows"

    def _in_words(self, rival: Rival) -> str:
        return f"{row_name(rival.table, rival.entry)}: {winner_in_words(rival.entry)}; {self._why_behind(rival)}"

    def _why_behind(self, rival: Rival) -> str:
        """Why the row that answers comes before this one."""
        answering = self.decision.entry
        assert answering is not None
        if rival.table is not self.decision.table:
            return f"{rival.tier}: its table is asked later"
        if rival.entry.volume == answering.volume:
            return "covers as many problems as the row that answers, which contradicts it (check finds such rows)"
        return f"covers {_number(rival.entry.volume)} problems, the row that answers {_number(answering.volume)}"

    def _models(self) -> Iterator[str]:
        if self.models is None:
            return
        yield from (f"  {step.describe(self.decision.problem)}" for step in self.models.tried)
        if self.models.configs:
            sure = f"with confidence {self.models.confidence:.3f}"
            yield f"  {self.models.tier}: {self.models.where} would answer, {sure}"
        if self.models.opinion is not None:
            yield from ranking_in_words(self.models.opinion.ranking)


def explain(selector: Selector, problem: Problem, demand: Demand = DEMAND) -> Explanation:
    """The decision of the selector for the problem, and what stands behind it."""
    decision = selector.select(problem, demand)
    if decision.entry is None:
        return Explanation(decision, (), None)
    rivals = (
        Rival(tier.name, table, entry)
        for tier in selector.tiers
        for table in tier.tables
        for entry in table.covering(problem)
        if entry is not decision.entry
    )
    reasons = {tier.name: tier.left_out for tier in selector.tiers}.get(TIERS[-1], ())
    left_out = (Step(TIERS[-1], None, reason) for reason in reasons)
    return Explanation(decision, tuple(rivals), selector.ask_models(problem, demand, left_out))


def _number(volume: int) -> str:
    """Large counts of problems are told apart by their magnitude."""
    return f"{volume:,}" if volume < 10**7 else f"{volume:.1e}"
