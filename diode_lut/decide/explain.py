"""Explain a decision: the next rows, the expectations of models, and the parts of a range.

The hook needs none of this, and does not pay for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from diode_lut.decide.decide import NOT_AS_TIMED, Axis, Piece, Sources, decide
from diode_lut.decide.sources import ABSTAIN, THRESHOLD, Answer, Decision, Source, Threshold
from diode_lut.errors import as_lines
from diode_lut.problem import NO_EPILOGUE, Problem
from diode_lut.settings import MODEL
from diode_lut.table import Entry
from diode_lut.table.format import winner_text
from diode_lut.templates.config import ATEN, Config, baseline

_SHOWN = 10
"""Number of next rows shown. To find the line of each, the table is read again."""


class Rival(NamedTuple):
    """A row for the problem behind the answering row."""

    tier: str
    source: Source
    entry: Entry


class Explanation(NamedTuple):
    """A decision and its alternatives, if a row or a chooser answers.

    ``rivals`` are the other rows for the problem, in the order of answering. ``models`` is the models' decision, or
    None if they were asked anyway. ``times`` are measured times of the problem in nanoseconds, if there are any.
    """

    decision: Decision
    rivals: tuple[Rival, ...]
    models: Decision | None
    times: Mapping[Config, float] = {}

    def __str__(self) -> str:
        """Return the explanation for people, in several lines."""
        lines = self.decision.lines()
        if self.times:
            usual, best = baseline(self.decision.problem.op), min(self.times, key=self.times.__getitem__)
            named = list(dict.fromkeys((usual, *self.decision.configs)))[: _SHOWN + 1]
            shown = [f"{each} {self.times[each] / 1000:.2f} us" for each in named if each in self.times]
            if best not in named:
                shown.append(f"and the fastest of {len(self.times)}, {best} {self.times[best] / 1000:.2f} us")
            lines.append(f"    measured: {', '.join(shown)}")
        answering = self.decision.entry
        if answering is not None and not self.rivals:
            lines.append("  runner-up: none, for no other row covers it")
        for number, (tier, source, entry) in enumerate(self.rivals[:_SHOWN]):
            if answering is None or source is not self.decision.source:
                why = f"{tier}: its table is asked later"
            elif entry.volume == answering.volume:
                why = "covers as many problems as the row that answers, which contradicts it (check finds such rows)"
            else:
                times = entry.volume / answering.volume
                factor = f"{times:,.3f}".rstrip("0").rstrip(".") if times < 10**7 else f"{times:.1e}"
                why = f"covers {factor} times as many problems as the row that answers"
            place = source.name(Answer(entry.configs, entry=entry))
            lines.append(f"  {'then' if number else 'runner-up'}: {place}: {winner_text(entry)}; {why}")
        if len(self.rivals) > _SHOWN:
            lines.append(f"  and {len(self.rivals) - _SHOWN} more rows")
        if self.models is not None:
            lines += (f"  {step.describe(self.decision.problem)}" for step in self.models.tried)
            if self.models.configs:
                confidence = self.models.confidence
                sure = "" if confidence is None else f", with confidence {confidence:.3f}"
                lines.append(f"  {self.models.tier}: {self.models.where} would answer{sure}")
            lines += self.models.details()
        return as_lines(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return the decision, and the rows that would answer next, for programs."""
        rivals = [
            {
                "tier": tier,
                "where": source.name(Answer(entry.configs, entry=entry)),
                "configs": [each.to_json() for each in entry.candidates],
            }
            for tier, source, entry in self.rivals[:_SHOWN]
        ]
        times = [{"config": config.to_json(), "ns": round(ns, 1)} for config, ns in self.times.items()]
        return {**_as_dict(self.decision), "steps": self.decision.steps, "runners_up": rivals, "times": times}


def explain(
    sources: Sources, problem: Problem, threshold: Threshold = THRESHOLD, *, padding: bool = True
) -> Explanation:
    """Explain the decision about a problem. ``padding`` says whether operands may be padded."""
    decision = decide(sources, problem, threshold, padding=padding).decision
    if decision.tier in (ABSTAIN, MODEL):
        return Explanation(decision, (), None)
    rivals = (
        Rival(tier.name, source, entry)
        for tier in sources.tiers
        for source in tier.sources
        for entry in source.covering(problem)
        if entry is not decision.entry
    )
    models = Sources(sources.hardware, (tier for tier in sources.tiers if tier.name == MODEL))
    return Explanation(decision, tuple(rivals), decide(models, problem, threshold, padding=padding).decision)


class OverSizes(NamedTuple):
    """The decisions about a problem whose size may change: for parts of the range, and for all of it.

    There are no parts if a single config is as good.
    """

    problem: Problem
    parts: tuple[Piece, ...]
    whole: Decision

    def as_dict(self) -> dict[str, Any]:
        """Return the decisions for programs."""
        parts = [
            {"over": decision.over, "config": config.to_json(), "where": decision.where}
            for _, decision, config in self.parts
        ]
        left_out = [config.to_json() for config in self.whole.left_out]
        return {**_as_dict(self.whole), "over": self.whole.over, "left_out": left_out, "parts": parts}

    def __str__(self) -> str:
        """Return the decisions for people, in several lines."""
        lines = [f"{self.problem} on {self.whole.hardware}, {self.whole.over}"]
        lines += [f"  {config} is left out: {NOT_AS_TIMED}" for config in self.whole.left_out]
        for _, decision, config in self.parts:
            if decision.configs:
                lines.append(f"  {_who(decision, config)}")
            else:
                lines.append(f"  {decision.over}: {config}, because no table and no model answers")
        name = "where there can be one kernel only: " if self.parts else ""
        return as_lines([*lines, f"  {name}{_who(self.whole, next(iter(self.whole.configs), ATEN))}"])


def _as_dict(decision: Decision) -> dict[str, Any]:
    entry = decision.entry if decision.configs else None
    gains = {} if entry is None else {each.config: each.to_json() for each in entry.candidates}
    return {
        "problem": decision.problem.to_json(),
        "hardware": str(decision.hardware),
        "tier": decision.tier,
        "where": decision.where,
        "configs": [gains.get(config, config.to_json()) for config in decision.configs],
        "expected_time": decision.expected_time,
        "confidence": decision.confidence,
    }


def explain_over(
    sources: Sources, problem: Problem, axis: Axis, threshold: Threshold, most: int, *, padding: bool
) -> OverSizes:
    """Explain the decisions about a problem whose sizes along the axis may change, with at most ``most`` kernels.

    No part of the range is the library's if an epilogue is fused into the kernels.
    """
    answers = decide(sources, problem, threshold, axes=(axis,), padding=padding)
    return OverSizes(problem, answers.pieces(most, library=problem.epilogue == NO_EPILOGUE), answers.decision)


def _who(decision: Decision, config: Config) -> str:
    if not decision.configs:
        return f"{decision.over}: Inductor decides as it would without diode_lut, because no table and no model answers"
    return f"{decision.over}: {config}, as {decision.where} has it for {decision.problem}"
