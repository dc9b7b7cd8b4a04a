"""A report for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from diode_lut.diff.compare import Change
from diode_lut.diff.report import (
    Report,
    details_of,
    effect_in_words,
    key_of,
    summary,
    switch_in_words,
    winner_of,
)
from diode_lut.domain.printable import as_lines

if TYPE_CHECKING:
    from diode_lut.diff.report import Effect

WORST = 10
"""So many affected problems are named, those that lose most."""


def as_text(report: Report) -> str:
    """Two lines for each row that changed: what it covers, and which kernel it names."""
    diff = report.diff
    if not diff:
        body = ["no differences"]
    else:
        body = [
            *(f"{field}: {was} -> {now}" for field, was, now in diff.header),
            *(line for change in diff.changes for line in _lines(change)),
            summary(diff),
        ]
    effect = [] if report.effect is None else _effect(report.effect)
    return as_lines([f"{report.old} -> {report.new}", *body, *effect])


def _lines(change: Change) -> Iterator[str]:
    yield f"{change.kind:<8}  {key_of(change)}"
    yield f"{'':<8}  {winner_of(change)}"
    yield from (f"{'':<8}  {detail}" for detail in details_of(change))


def _effect(effect: Effect) -> list[str]:
    named = [f"  {switch_in_words(switch)}" for switch in effect.switches[:WORST]]
    return [*effect_in_words(effect), *(["largest losses:", *named] if named else [])]
