"""Why a problem gets what it gets: the decision, the rows that would have answered next, and what the models say.

The hook needs none of this, and does not pay for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from diode_lut.decide.dynamic import Axis, Piece, decide_over, pieces_over
from diode_lut.decide.selector import ABSTAIN, NOT_AS_TIMED, Decision, Selector
from diode_lut.decide.sources import THRESHOLD, Answer, Source, Threshold
from diode_lut.errors import as_lines
from diode_lut.problem import NO_EPILOGUE, Problem
from diode_lut.settings import MODEL
from diode_lut.table import Entry
from diode_lut.table.format import winner_text
from diode_lut.templates.config import ATEN, Config

_SHOWN = 10
"""Number of the rows that would have answered next which are shown; for the line of each, the table is read again."""


class Rival(NamedTuple):
    """A row that covers the problem too, but does not answer."""

    tier: str
    source: Source
    entry: Entry


class Explanation(NamedTuple):
    """A decision, and what stands behind it where a row or a chooser answers.

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
            yield f"  {'then' if number else 'runner-up'}: {self._rival(rival)}"
        if len(self.rivals) > _SHOWN:
            yield f"  and {len(self.rivals) - _SHOWN} more rows"

    def _rival(self, rival: Rival) -> str:
        place = rival.source.name(Answer(rival.entry.configs, entry=rival.entry))
        return f"{place}: {winner_text(rival.entry)}; {self._why_behind(rival)}"

    def _why_behind(self, rival: Rival) -> str:
        """Why the row that answers comes before this one."""
        answering = self.decision.entry
        if answering is None or rival.source is not self.decision.source:
            return f"{rival.tier}: its table is asked later"
        if rival.entry.volume == answering.volume:
            return "covers as many problems as the row that answers, which contradicts it (check finds such rows)"
        times = _number(rival.entry.volume / answering.volume)
        return f"covers {times} times as many problems as the row that answers"

    def _models(self) -> Iterator[str]:
        if self.models is None:
            return
        yield from (f"  {step.describe(self.decision.problem)}" for step in self.models.tried)
        if self.models.configs:
            sure = f"with confidence {self.models.confidence:.3f}"
            yield f"  {self.models.tier}: {self.models.where} would answer, {sure}"
        yield from self.models.details()


def explain(
    selector: Selector, problem: Problem, threshold: Threshold = THRESHOLD, *, padding: bool = True
) -> Explanation:
    """The decision of the selector for the problem, and what stands behind it.

    ``padding`` says whether operands may be padded.
    """
    decision = selector.select(problem, threshold, padding=padding)
    if decision.tier in (ABSTAIN, MODEL):
        return Explanation(decision, (), None)
    rivals = (
        Rival(tier.name, source, entry)
        for tier in selector.tiers
        for source in tier.sources
        for entry in source.covering(problem)
        if entry is not decision.entry
    )
    models = Selector(selector.hardware, (tier for tier in selector.tiers if tier.name == MODEL))
    return Explanation(decision, tuple(rivals), models.select(problem, threshold, padding=padding))


class OverSizes(NamedTuple):
    """What a problem gets if a size may change: the parts of the range, each with its decision, and one for all of it.

    There are no parts if one config is as good.
    """

    problem: Problem
    parts: tuple[Piece, ...]
    whole: Decision

    def __str__(self) -> str:
        """For people, in several lines."""
        lines = [f"{self.problem} on {self.whole.hardware}, {self.whole.over}"]
        lines += [f"  {config} is left out: {NOT_AS_TIMED}" for config in self.whole.left_out]
        lines += [f"  {_part(piece)}" for piece in self.parts]
        name = "where there can be one kernel only: " if self.parts else ""
        return as_lines([*lines, f"  {name}{_who(self.whole, next(iter(self.whole.configs), ATEN))}"])


def explain_over(
    selector: Selector, problem: Problem, axis: Axis, threshold: Threshold, most: int, *, padding: bool
) -> OverSizes:
    """What a problem gets if its sizes along the axis may change, with at most ``most`` kernels.

    The library has no part of the range where an epilogue is fused into the kernels.
    """
    library = problem.epilogue == NO_EPILOGUE
    parts = pieces_over(selector, problem, axis, threshold, most, library=library) if most > 1 else ()
    return OverSizes(problem, parts, decide_over(selector, problem, (axis,), threshold, padding=padding))


def _part(piece: Piece) -> str:
    if not piece.decision.configs:
        return f"{piece.decision.over}: {piece.config}, because no table and no model answers"
    return _who(piece.decision, piece.config)


def _who(decision: Decision, config: Config) -> str:
    """The range of a decision, its config, and what answers."""
    if not decision.configs:
        return f"{decision.over}: Inductor decides as it would without diode_lut, because no table and no model answers"
    return f"{decision.over}: {config}, as {decision.where} has it for {decision.problem}"


def _number(factor: float) -> str:
    """Large factors are told apart by their magnitude."""
    return f"{factor:,.3f}".rstrip("0").rstrip(".") if factor < 10**7 else f"{factor:.1e}"
