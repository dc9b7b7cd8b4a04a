"""Merging rows that cover exactly the same."""

from __future__ import annotations

from collections.abc import Iterator

from diode_lut.merge.evidence import judge, settled
from diode_lut.merge.sides import Claim, Remark, Side
from diode_lut.table import Entry, Table
from diode_lut.table.canonical import canonical_order
from diode_lut.table.overlap import coverage
from diode_lut.table.words import winner_in_words

Rows = dict[object, Entry]
"""The rows of a table by what they cover."""

Result = tuple[Claim | None, Remark | None]
"""The row that remains, with the side it is from, and what to say; neither where nothing was and nothing is."""


def merge_rows(base: Table | None, ours: Side, theirs: Side) -> tuple[list[Claim], list[Remark]]:
    """The rows that remain, and what to say about the others."""
    before = _rows(base) if base is not None else {}
    our_rows, their_rows = _rows(ours.table), _rows(theirs.table)
    results = [
        _merged(before.get(key), Claim.of(ours, our_rows.get(key)), Claim.of(theirs, their_rows.get(key)))
        for key in dict.fromkeys((*our_rows, *their_rows))
    ]
    claims = [claim for claim, _ in results if claim is not None]
    remarks = [remark for _, remark in results if remark is not None]
    return claims, [*_repeats(ours), *_repeats(theirs), *remarks]


def _rows(table: Table) -> Rows:
    """Of rows that cover the same, which a good table does not have, the one that is used: the first in order."""
    rows: Rows = {}
    for entry in sorted(table.entries, key=canonical_order):
        rows.setdefault(coverage(entry), entry)
    return rows


def _repeats(side: Side) -> Iterator[Remark]:
    """What to say about the rows that ``_rows`` leaves out."""
    rows = _rows(side.table)
    for entry in side.table.entries:
        used = rows[coverage(entry)]
        if entry is not used:
            yield Remark.of(entry, f"is there more than once in {side.name}: {winner_in_words(used)} stays")


def _merged(before: Entry | None, ours: Claim | None, theirs: Claim | None) -> Result:
    """What becomes of a row that at least one side has."""
    if ours is None or theirs is None:
        return _one_sided(before, ours, theirs)
    if theirs.entry in (ours.entry, before):
        return ours, None
    if ours.entry == before:
        return theirs, None
    return settled(judge(ours, theirs))


def _one_sided(before: Entry | None, ours: Claim | None, theirs: Claim | None) -> Result:
    """What becomes of a row that only one side has: the other one removed it, or it is new."""
    claim = ours or theirs
    assert claim is not None
    if before is None:
        return claim, None
    if claim.entry == before:
        return None, Remark.of(before, f"not changed by {claim.side.name}, removed by the other side: is gone")
    text = f"changed by {claim.side.name} to {winner_in_words(claim.entry)}, removed by the other side"
    return claim.in_conflict(text), Remark.of(claim.entry, f"{text}: stays", conflict=True)
