"""A report for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diode_lut.diff.compare import Change
from diode_lut.diff.report import Report
from diode_lut.domain.printable import as_json as printable_as_json
from diode_lut.table import Entry

if TYPE_CHECKING:
    from diode_lut.diff.report import Effect, Switch

_DIGITS = 6


def as_json(report: Report) -> str:
    """All changes with the rows as tables have them; changes of time are fractions, times nanoseconds.

    ``unpaired`` says that narrowed and widened rows may be listed as removed and added.
    """
    document = {
        "old": report.old,
        "new": report.new,
        "same": not report.diff,
        "header": [change._asdict() for change in report.diff.header],
        "unpaired": report.diff.unpaired,
        "rows": [_change(change) for change in report.diff.changes],
        "effect": None if report.effect is None else _effect(report.effect),
    }
    return printable_as_json(document)


def _change(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "new_winner": change.new_winner,
        "old": _row(change.old),
        "new": _row(change.new),
    }


def _row(entry: Entry | None) -> dict[str, Any] | None:
    return None if entry is None else entry.to_json()


def _effect(effect: Effect) -> dict[str, Any]:
    return {
        "problems": effect.problems,
        "old_coverage": round(effect.old_covered / effect.problems, _DIGITS),
        "new_coverage": round(effect.new_covered / effect.problems, _DIGITS),
        "affected": len(effect.switches),
        "known": len(effect.changes),
        "mean_change": _rounded(effect.mean_change),
        "worst_change": _rounded(max(effect.changes, default=None)),
        "switches": [_switch(switch) for switch in effect.switches],
    }


def _switch(switch: Switch) -> dict[str, Any]:
    return {
        "problem": switch.problem._asdict(),
        "old": switch.old.to_json(),
        "new": switch.new.to_json(),
        "old_ns": switch.old_ns,
        "new_ns": switch.new_ns,
        "change": _rounded(switch.change),
    }


def _rounded(fraction: float | None) -> float | None:
    return None if fraction is None else round(fraction, _DIGITS)
