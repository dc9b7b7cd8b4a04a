"""Compare two tables: the rows that differ, the effect on measured problems, and a report as text, JSON or Markdown."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_lut.errors import as_json as printable_json
from diode_lut.errors import as_lines, printable
from diode_lut.problem import Problem
from diode_lut.table import Entry, Table
from diode_lut.table.format import key_text, winner_text
from diode_lut.table.lookup import Effort, ExhaustedError, Neighbours
from diode_lut.table.row import canonical_order, coverage
from diode_lut.templates.config import ATEN, Config

if TYPE_CHECKING:
    from diode_lut.dataset import Record

CHANGES = ("winner", "added", "removed", "narrowed", "widened", "details")
"""The changes of a row, in the order in which reports count them.

The first config differs, the row is new or gone, it covers fewer or more problems, or only details differ: gains,
further configs, the number of problems, the note.
"""


@dataclass(frozen=True)
class Change:
    """A row before and after the change. None if the row is missing."""

    old: Entry | None
    new: Entry | None

    @cached_property
    def kind(self) -> str:
        """The kind in CHANGES. A narrowed or widened row may have another winner as well."""
        if self.old is None:
            return "added"
        if self.new is None:
            return "removed"
        before, after = coverage(self.old), coverage(self.new)
        if before != after:
            return "narrowed" if after.lies_inside(before) else "widened"
        return "winner" if self.new_winner else "details"

    @property
    def new_winner(self) -> bool:
        """Whether both tables have the row, with different first configs."""
        return self.old is not None and self.new is not None and self.old.best.config != self.new.best.config

    @property
    def row(self) -> Entry:
        """The new row, or the old row if the new table has none."""
        row = self.new or self.old
        assert row is not None
        return row


class HeaderChange(NamedTuple):
    """A field of the header, such as ``provenance.torch``, before and after. None if the field is missing."""

    field: str
    old: object
    new: object


class Diff(NamedTuple):
    """All differences between two tables. ``changes`` are in the canonical order of rows.

    ``unpaired`` is true if too many rows cover some of the same sizes to find all pairs. Some narrowed and widened rows
    are then listed as removed and added.
    """

    header: tuple[HeaderChange, ...]
    changes: tuple[Change, ...]
    unpaired: bool = False

    @property
    def counts(self) -> dict[str, int]:
        """The number of changes of each kind, without kinds that have none."""
        counts = Counter(change.kind for change in self.changes)
        return {kind: counts[kind] for kind in CHANGES if counts[kind]}

    def __bool__(self) -> bool:
        return bool(self.header or self.changes)


_STEPS_OF_PAIR = 8  # steps of effort for a pair, which is kept in memory and sorted


def compare(old: Table, new: Table) -> Diff:
    """Return the differences, which are false if both tables have the same rows in any order.

    Rows are compared by their problems. Of the rows left over, a removed and an added row are a single change if either
    lies inside the other. Of several such pairs, the same winner counts first, then the most similar size.
    """
    changes: list[Change] = []
    removed: list[Entry] = []
    added: list[Entry] = []
    before, after = defaultdict[object, list[Entry]](list), defaultdict[object, list[Entry]](list)
    for table, groups in ((old, before), (new, after)):
        for entry in table.entries:  # in a valid table each group has a single row
            groups[coverage(entry)].append(entry)
    for covered in dict.fromkeys((*before, *after)):
        both = (sorted(groups.get(covered, ()), key=canonical_order) for groups in (before, after))
        for was, row in zip_longest(*both):
            if was is None:
                added.append(row)
            elif row is None:
                removed.append(was)
            elif was != row:
                changes.append(Change(was, row))

    # Pairs with either inside the other: a sort key, the least for the most similar rows, and the numbers of both rows
    pairs: list[tuple[tuple[bool, float], int, int]] = []
    effort, inner, unpaired = Effort(), [coverage(row) for row in removed], False
    try:
        neighbours = Neighbours(removed, effort)
        for place, row in enumerate(added):
            outer = coverage(row)
            for number in neighbours.of(row, len(removed), effort):
                if inner[number].lies_inside(outer) or outer.lies_inside(inner[number]):
                    effort.spend(_STEPS_OF_PAIR)
                    small, large = sorted((removed[number].volume, row.volume))
                    likeness = removed[number].best.config != row.best.config, -small / max(large, 1)
                    pairs.append((likeness, number, place))
    except ExhaustedError:
        unpaired = True  # pairs may be missing, because the effort is bounded
    partners: dict[int, int] = {}
    taken: set[int] = set()
    for _, number, place in sorted(pairs):
        if number not in partners and place not in taken:
            partners[number] = place
            taken.add(place)
    for number, row in enumerate(removed):
        changes.append(Change(row, added[partners[number]] if number in partners else None))
    changes += [Change(None, row) for place, row in enumerate(added) if place not in taken]
    fields = [
        {
            **{f"hardware.{name}": value for name, value in table.hardware._asdict().items()},
            **{f"provenance.{name}": value for name, value in table.provenance.items()},
        }
        for table in (old, new)
    ]
    was, now = fields
    header = (HeaderChange(field, was.get(field), now.get(field)) for field in {**was, **now})
    changes.sort(key=lambda each: canonical_order(each.row))
    return Diff(tuple(each for each in header if each.old != each.new), tuple(changes), unpaired)


class Switch(NamedTuple):
    """A problem that gets another config, with both times in nanoseconds. None for a config without a time."""

    problem: Problem
    old: Config
    new: Config
    old_ns: float | None
    new_ns: float | None

    @property
    def change(self) -> float | None:
        """New time over old time, minus one: negative is faster. None if one of them was not measured."""
        return None if self.old_ns is None or self.new_ns is None else self.new_ns / self.old_ns - 1


class Effect(NamedTuple):
    """The effect on ``problems`` measured problems. ``switches`` get another first config, the largest loss first."""

    problems: int
    old_covered: int
    new_covered: int
    switches: Sequence[Switch]

    @property
    def changes(self) -> list[float]:
        """The changes of time that are known, the largest loss first."""
        return [each.change for each in self.switches if each.change is not None]

    @property
    def mean_change(self) -> float | None:
        """Geometric mean of new over old time, minus one, over the problems with known changes. None without any."""
        return math.expm1(fmean(map(math.log1p, self.changes))) if self.changes else None


def effect_of(old: Table, new: Table, records: Iterable[Record]) -> Effect:
    """Return the effect on the measured problems, where a miss counts as ``aten``. DatasetError without any time."""
    from diode_lut.build.measurements import measurements_of  # with NumPy, which a diff alone does not need

    measurements = measurements_of(records)
    old_covered = new_covered = 0
    switches = []
    for number, problem in enumerate(measurements.problems):
        rows = old.lookup(problem), new.lookup(problem)
        old_covered, new_covered = old_covered + (rows[0] is not None), new_covered + (rows[1] is not None)
        was, now = (ATEN if row is None else row.best.config for row in rows)
        if was != now:
            times = measurements.times_on(number)
            switches.append(Switch(problem, was, now, times.get(was), times.get(now)))
    switches.sort(key=lambda switch: (switch.change is None, -(switch.change or 0.0), switch.problem))
    return Effect(len(measurements.problems), old_covered, new_covered, switches)


_TEXT_SWITCHES, _MARKDOWN_SWITCHES = 10, 5  # maximum number of listed problems, those with the largest losses
MAX_MARKDOWN_ROWS = 150  # Maximum number of changes in Markdown. A comment on GitHub ends after 65,536 characters


def as_text(old: str, new: str, diff: Diff, effect: Effect | None = None) -> str:
    """Write two lines for each changed row, its problems and first config, and then the effect on time."""
    lines = [f"{old} -> {new}"]
    if diff:
        lines += [f"{change.field}: {change.old} -> {change.new}" for change in diff.header]
        for change in diff.changes:
            lines.append(f"{change.kind:<8}  {_change_key(change)}")
            lines += [f"{'':<8}  {text}" for text in (_change_winner(change), *_change_details(change))]
        lines.append(_summary(diff))
    else:
        lines.append("no differences")
    if effect is not None:
        lines += _effect_lines(effect)
        lines += ["largest losses:"] if effect.switches else []
        lines += [f"  {_switch_text(switch)}" for switch in effect.switches[:_TEXT_SWITCHES]]
    return as_lines(lines)


def as_json(old: str, new: str, diff: Diff, effect: Effect | None = None) -> str:
    """Write all changes, with rows as in tables. Changes of time are fractions, times are nanoseconds."""

    def rounded(fraction: float | None) -> float | None:
        return None if fraction is None else round(fraction, 6)

    def row(entry: Entry | None) -> dict[str, Any] | None:
        return None if entry is None else entry.to_json()

    document: dict[str, Any] = {
        "old": old,
        "new": new,
        "same": not diff,
        "header": [change._asdict() for change in diff.header],
        "unpaired": diff.unpaired,
        "rows": [
            {"kind": change.kind, "new_winner": change.new_winner, "old": row(change.old), "new": row(change.new)}
            for change in diff.changes
        ],
        "effect": None,
    }
    if effect is not None:
        document["effect"] = {
            "problems": effect.problems,
            "old_coverage": rounded(effect.old_covered / effect.problems),
            "new_coverage": rounded(effect.new_covered / effect.problems),
            "affected": len(effect.switches),
            "known": len(effect.changes),
            "mean_change": rounded(effect.mean_change),
            "worst_change": rounded(max(effect.changes, default=None)),
            "switches": [
                {
                    "problem": switch.problem._asdict(),
                    "old": switch.old.to_json(),
                    "new": switch.new.to_json(),
                    "old_ns": switch.old_ns,
                    "new_ns": switch.new_ns,
                    "change": rounded(switch.change),
                }
                for switch in effect.switches
            ],
        }
    return printable_json(document)


def as_markdown(old: str, new: str, diff: Diff, effect: Effect | None = None) -> str:
    """Write the effect on time, then the rows, folded."""
    lines = [f"**{_plain(old)} → {_plain(new)}**", ""]
    lines.append(f"- {_summary(diff)}" if diff else "- no differences")
    lines += [
        f"- {_plain(change.field)}: {_plain(str(change.old))} → {_plain(str(change.new))}" for change in diff.header
    ]
    if effect is not None:
        lines += [f"- {_plain(line)}" for line in _effect_lines(effect)]
        lines += ["- largest losses:"] if effect.switches else []
        lines += [f"  - {_plain(_switch_text(switch))}" for switch in effect.switches[:_MARKDOWN_SWITCHES]]
    if diff.changes:
        lines += ["", "<details><summary>Rows</summary>", "", "| | covers | kernel |", "|---|---|---|"]
        for change in diff.changes[:MAX_MARKDOWN_ROWS]:
            kernel = "; ".join([_change_winner(change), *_change_details(change)])
            lines.append(f"| {change.kind} | {_plain(_change_key(change))} | {_plain(kernel)} |")
        more = len(diff.changes) - MAX_MARKDOWN_ROWS
        lines += [*(["", f"and {more} more"] if more > 0 else []), "", "</details>"]
    return "\n".join(lines)


_LINKS = re.compile(r"[@#:]|\bwww\b|\bGH\b", re.IGNORECASE)
"""After these GitHub recognizes people, issues and pages."""


def _plain(text: str) -> str:
    """Escape text for Markdown, HTML and GitHub. An empty comment keeps GitHub from making a link."""
    escaped = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace("->", "→")
    plain = "".join(f"\\{letter}" if letter in "\\`*_[]|~#@$" else letter for letter in escaped)
    return _LINKS.sub(lambda found: f"{found[0]}<!-- -->", plain)


def _change_key(change: Change) -> str:
    """Return the problems of the row, after its problems before the change if they differ."""
    now = key_text(change.row)
    return f"{key_text(change.old)} -> {now}" if change.old and change.kind in ("narrowed", "widened") else now


def _change_winner(change: Change) -> str:
    """Return the first config of the row, after its first config before the change if they differ."""
    now = winner_text(change.row)
    return f"{winner_text(change.old)} -> {now}" if change.old and change.new_winner else now


def _change_details(change: Change) -> list[str]:
    """Return the other differences of a row with the same key and winner."""
    if change.old is None or change.new is None or change.kind != "details":
        return []
    said = []
    for row in (change.old, change.new):
        gain = row.best.gain_permille
        said.append(
            {
                "gain": "none" if gain is None else f"{gain / 1000:.3f}",
                "after it": ", ".join(map(str, row.configs[1:])) or "nothing",
                "problems": str(row.problems),
                "note": json.dumps(row.note, ensure_ascii=False),
            }
        )
    before, after = said
    found = [f"{name} {before[name]} -> {after[name]}" for name in before if before[name] != after[name]]
    return found or ["gains of configs that are not the first"]


def _summary(diff: Diff) -> str:
    """Return the number of changes of each kind."""
    words = {"winner": "with another winner", "details": "changed in details"}
    rows = ", ".join(f"{count} {words.get(kind, kind)}" for kind, count in diff.counts.items())
    unpaired = "; not all that were narrowed or widened were looked for" if diff.unpaired else ""
    return f"rows: {rows}{unpaired}" if rows else "rows: no changes"


def _effect_lines(effect: Effect) -> Iterator[str]:
    """Coverage, the number of affected problems, and how much faster or slower these are."""
    was, now = (f"{covered / effect.problems:.1%}" for covered in (effect.old_covered, effect.new_covered))
    yield f"coverage: {was} -> {now} of {effect.problems} measured problems"
    yield f"problems affected: {len(effect.switches)}, of which {len(effect.changes)} with both times known"
    if effect.mean_change is not None:
        worst, best = effect.changes[0], effect.changes[-1]
        yield f"time: {effect.mean_change:+.2%} in the geometric mean, {worst:+.2%} at worst, {best:+.2%} at best"


def _switch_text(switch: Switch) -> str:
    """Write a problem with its old and its new config."""
    change = "unknown" if switch.change is None else f"{switch.change:+.2%}"
    return f"{change} on {switch.problem}: {switch.old} -> {switch.new}"
