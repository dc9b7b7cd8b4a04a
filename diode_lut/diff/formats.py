"""The formats of a report: text for a terminal, JSON for programs, Markdown for a comment on a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from diode_lut.diff.compare import Change
from diode_lut.diff.report import (
    Effect,
    Report,
    Switch,
    change_details,
    change_key,
    change_winner,
    effect_lines,
    summary,
    switch_text,
)
from diode_lut.domain.printable import as_json as printable_as_json
from diode_lut.domain.printable import as_lines, printable
from diode_lut.table import Entry

_TEXT_SWITCHES = 10
"""Most affected problems in text, those with the largest losses."""


def as_text(report: Report) -> str:
    """Two lines for each changed row, with what it covers and its first config; then the effect on time."""
    diff = report.diff
    if not diff:
        body = ["no differences"]
    else:
        body = [
            *(f"{change.field}: {change.old} -> {change.new}" for change in diff.header),
            *(line for change in diff.changes for line in _change_lines(change)),
            summary(diff),
        ]
    return as_lines([f"{report.old} -> {report.new}", *body, *_text_effect(report.effect)])


def _change_lines(change: Change) -> Iterator[str]:
    yield f"{change.kind:<8}  {change_key(change)}"
    yield f"{'':<8}  {change_winner(change)}"
    yield from (f"{'':<8}  {detail}" for detail in change_details(change))


def _text_effect(effect: Effect | None) -> list[str]:
    if effect is None:
        return []
    switches = [f"  {switch_text(switch)}" for switch in effect.switches[:_TEXT_SWITCHES]]
    return [*effect_lines(effect), *(["largest losses:", *switches] if switches else [])]


_DIGITS = 6


def as_json(report: Report) -> str:
    """All changes, with rows as in tables; changes of time are fractions, times nanoseconds.

    ``unpaired`` says that narrowed and widened rows may be listed as removed and added.
    """
    document = {
        "old": report.old,
        "new": report.new,
        "same": not report.diff,
        "header": [change._asdict() for change in report.diff.header],
        "unpaired": report.diff.unpaired,
        "rows": [_change_object(change) for change in report.diff.changes],
        "effect": None if report.effect is None else _effect_object(report.effect),
    }
    return printable_as_json(document)


def _change_object(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "new_winner": change.new_winner,
        "old": _row(change.old),
        "new": _row(change.new),
    }


def _row(entry: Entry | None) -> dict[str, Any] | None:
    return None if entry is None else entry.to_json()


def _effect_object(effect: Effect) -> dict[str, Any]:
    return {
        "problems": effect.problems,
        "old_coverage": round(effect.old_covered / effect.problems, _DIGITS),
        "new_coverage": round(effect.new_covered / effect.problems, _DIGITS),
        "affected": len(effect.switches),
        "known": len(effect.changes),
        "mean_change": _rounded(effect.mean_change),
        "worst_change": _rounded(max(effect.changes, default=None)),
        "switches": [_switch_object(switch) for switch in effect.switches],
    }


def _switch_object(switch: Switch) -> dict[str, Any]:
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


MAX_MARKDOWN_ROWS = 150
"""Most changes in Markdown; a comment on GitHub ends after 65,536 characters."""

_MARKDOWN_SWITCHES = 5
"""Most affected problems in Markdown, those with the largest losses."""

_LINKS = re.compile(r"[@#:]|\bwww\b|\bGH\b", re.IGNORECASE)
"""After these GitHub recognizes people, issues and pages."""


def as_markdown(report: Report) -> str:
    """The effect on time first, then the rows, folded."""
    diff = report.diff
    lines = [f"**{_plain(report.old)} → {_plain(report.new)}**", ""]
    lines += [f"- {summary(diff)}" if diff else "- no differences"]
    lines += [
        f"- {_plain(change.field)}: {_plain(str(change.old))} → {_plain(str(change.new))}" for change in diff.header
    ]
    lines += _markdown_effect(report.effect)
    if diff.changes:
        rows = [
            (change.kind, change_key(change), "; ".join([change_winner(change), *change_details(change)]))
            for change in diff.changes
        ]
        lines += ["", "<details><summary>Rows</summary>", "", *_markdown_table(rows[:MAX_MARKDOWN_ROWS])]
        lines += ["", f"and {len(rows) - MAX_MARKDOWN_ROWS} more"] if len(rows) > MAX_MARKDOWN_ROWS else []
        lines += ["", "</details>"]
    return "\n".join(lines)


def _markdown_effect(effect: Effect | None) -> list[str]:
    if effect is None:
        return []
    switches = [f"  - {_plain(switch_text(switch))}" for switch in effect.switches[:_MARKDOWN_SWITCHES]]
    return [
        *(f"- {_plain(line)}" for line in effect_lines(effect)),
        *(["- largest losses:", *switches] if switches else []),
    ]


def _markdown_table(rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [f"| {' | '.join(map(_plain, row))} |" for row in rows]
    return ["| | covers | kernel |", "|---|---|---|", *cells]


def _plain(text: str) -> str:
    """The text, without a meaning for Markdown, HTML or GitHub; an empty comment keeps GitHub from making a link."""
    escaped = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace("->", "→")
    plain = "".join(f"\\{letter}" if letter in "\\`*_[]|~#@$" else letter for letter in escaped)
    return _LINKS.sub(lambda found: f"{found[0]}<!-- -->", plain)
