"""A report for a comment on a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from diode_lut.diff.report import Report, details_of, effect_in_words, key_of, summary, switch_in_words, winner_of
from diode_lut.domain.printable import printable

if TYPE_CHECKING:
    from diode_lut.diff.report import Effect

_LINKS = re.compile(r"[@#:]|\bwww\b|\bGH\b", re.IGNORECASE)
"""After these GitHub sees people, issues and pages."""

ROWS = 150
"""So many changes are listed; comments on GitHub end after 65,536 characters."""

WORST = 5
"""So many affected problems are named, those that lose most."""


def as_markdown(report: Report) -> str:
    """What it does to time first, then the rows, folded."""
    diff = report.diff
    lines = [f"**{_plain(report.old)} → {_plain(report.new)}**", ""]
    lines += [f"- {summary(diff)}" if diff else "- no differences"]
    lines += [f"- {_plain(field)}: {_plain(str(was))} → {_plain(str(now))}" for field, was, now in diff.header]
    lines += _effect(report.effect) if report.effect else []
    if diff.changes:
        rows = [
            (change.kind, key_of(change), "; ".join([winner_of(change), *details_of(change)]))
            for change in diff.changes
        ]
        lines += ["", "<details><summary>Rows</summary>", "", *_table(rows[:ROWS])]
        lines += ["", f"and {len(rows) - ROWS} more"] if len(rows) > ROWS else []
        lines += ["", "</details>"]
    return "\n".join(lines)


def _effect(effect: Effect) -> list[str]:
    named = [f"  - {_plain(switch_in_words(switch))}" for switch in effect.switches[:WORST]]
    return [
        *(f"- {_plain(line)}" for line in effect_in_words(effect)),
        *(["- largest losses:", *named] if named else []),
    ]


def _table(rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [f"| {' | '.join(map(_plain, row))} |" for row in rows]
    return ["| | covers | kernel |", "|---|---|---|", *cells]


def _plain(text: str) -> str:
    """The text, without a meaning for Markdown, HTML or GitHub, where an empty comment keeps a link from being one."""
    escaped = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace("->", "→")
    plain = "".join(f"\\{letter}" if letter in "\\`*_[]|~#@$" else letter for letter in escaped)
    return _LINKS.sub(lambda found: f"{found[0]}<!-- -->", plain)
