"""Merging rows: each side's claims, which claim stays, and rows of both sides that contradict each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from diode_lut.domain.printable import printable
from diode_lut.table import Entry, Table
from diode_lut.table.canonical import canonical_order, key_text, winner_text
from diode_lut.table.check import CONFLICT
from diode_lut.table.overlap import Effort, coverage, overlaps

BEST = "best"
"""As what somebody prefers in conflicts: the row with the larger gain."""


class MergedTable(NamedTuple):
    """One of the tables that are merged, and its name.

    ``prefer`` says what somebody wants where nothing else decides: the name of a side, BEST, or nothing, which makes it
    a conflict.
    """

    name: str
    table: Table
    prefer: str = ""

    @property
    def software(self) -> tuple[tuple[int, ...], ...]:
        """The versions of torch and Triton that it was measured with, which compare as versions do."""
        return tuple(version(str(self.table.provenance.get(name, ""))) for name in ("torch", "triton"))


class Claim(NamedTuple):
    """A row and its side."""

    side: MergedTable
    entry: Entry

    @classmethod
    def of(cls, side: MergedTable, entry: Entry | None) -> Claim | None:
        """The claim, None without a row."""
        return None if entry is None else cls(side, entry)

    def in_conflict(self, facts: str) -> Claim:
        """The same, with a note about the conflict that somebody has to decide."""
        notes = "; ".join(filter(None, (self.entry.note, f"{CONFLICT}{facts}")))
        return self._replace(entry=self.entry._replace(note=notes))


class Remark(NamedTuple):
    """What happened to a row or header field that was not just taken from one side."""

    about: str
    text: str
    conflict: bool = False

    @classmethod
    def of(cls, entry: Entry, text: str, *, conflict: bool = False) -> Remark:
        """A remark about a row."""
        return cls(key_text(entry), text, conflict)

    def __str__(self) -> str:
        return printable(f"{'CONFLICT: ' if self.conflict else ''}{self.about}: {self.text}")


def version(text: str) -> tuple[int, ...]:
    """The numbers of a version or an ISO date, without what follows a plus sign."""
    return tuple(map(int, re.findall(r"\d+", text.partition("+")[0])))


SAME_GAIN = 0.02
"""Largest difference of two gains that are taken to be the same, as a fraction."""


class Verdict(NamedTuple):
    """The row that stays, the other row, and the reason, which is empty for a conflict."""

    winner: Claim
    loser: Claim
    reason: str


def judge(ours: Claim, theirs: Claim) -> Verdict:
    """Decide which row stays; without evidence it is ours, as a conflict.

    A row with a note, which somebody wrote by hand, beats one without. Next count the gain over aten, if it differs by
    more than noise, the number of measured problems, and newer software. Rows with the same first config are no
    conflict.
    """
    one, other = ours.entry, theirs.entry
    same = "both name the same kernel" if one.best.config == other.best.config else ""
    if one.note and other.note:
        return Verdict(ours, theirs, same) if same and one.note == other.note else _as_preferred(ours, theirs)
    for our_evidence, their_evidence, reason in _evidence(ours, theirs):
        if our_evidence > their_evidence:
            return Verdict(ours, theirs, reason)
        if our_evidence < their_evidence:
            return Verdict(theirs, ours, reason)
    return Verdict(ours, theirs, same) if same else _as_preferred(ours, theirs)


def _as_preferred(ours: Claim, theirs: Claim) -> Verdict:
    """The row of the side that somebody prefers, or that with the larger gain; else ours, as a conflict."""
    gains = [claim.entry.best.gain_permille or 0 for claim in (ours, theirs)]
    for claim, other, better in ((ours, theirs, gains[0] > gains[1]), (theirs, ours, gains[0] < gains[1])):
        if claim.side.prefer == claim.side.name:
            return Verdict(claim, other, f"{claim.side.name} was asked for")
        if claim.side.prefer == BEST and better:
            return Verdict(claim, other, "it gains more over aten")
    return Verdict(ours, theirs, "")


def resolve(verdict: Verdict) -> tuple[Claim, Remark]:
    """The row that stays, with a note if it is in conflict, and a remark."""
    winner, loser = verdict.winner, verdict.loser
    facts = f"{winner.side.name} {winner_text(winner.entry)}, {loser.side.name} {winner_text(loser.entry)}"
    if coverage(winner.entry) != coverage(loser.entry):
        facts += f" for {key_text(loser.entry)}"
    if verdict.reason:
        return winner, Remark.of(winner.entry, f"{facts}: {winner.side.name} stays: {verdict.reason}")
    return (
        winner.in_conflict(facts),
        Remark.of(winner.entry, f"{facts}: {winner.side.name} stays until somebody decides", conflict=True),
    )


def _evidence(ours: Claim, theirs: Claim) -> Iterator[tuple[Any, Any, str]]:
    """The evidence of both sides, the strongest first, and the reason to give for the side with more."""
    yield bool(ours.entry.note), bool(theirs.entry.note), "it has a note"
    gain, other_gain = (claim.entry.best.gain_permille for claim in (ours, theirs))
    if gain is not None and other_gain is not None and max(gain, other_gain) > min(gain, other_gain) * (1 + SAME_GAIN):
        yield gain, other_gain, "it gains more over aten"
    yield ours.entry.problems or 0, theirs.entry.problems or 0, "it has more measured problems behind it"
    yield ours.side.software, theirs.side.software, "it was measured with newer software"


def without_contradictions(claims: Sequence[Claim]) -> tuple[list[Claim], list[Remark]]:
    """Rows of which no two contradict each other, and remarks about those that were removed.

    Of two that contradict each other, the row with the better evidence stays. The work is bounded: a remark, which is a
    conflict, has the number of rows whose contradictions were not looked for.
    """
    remaining = dict(enumerate(claims))
    remarks: list[Remark] = []
    effort = Effort()
    while pairs := list(overlaps(_covering(remaining), effort)):
        for later, earlier in pairs:
            if later in remaining and earlier in remaining:
                verdict = judge(remaining[earlier], remaining[later])
                stays, goes = (earlier, later) if verdict.winner is remaining[earlier] else (later, earlier)
                remaining[stays], remark = resolve(verdict)
                del remaining[goes]
                remarks.append(remark)
        effort.undecided.clear()  # the next round looks at these rows again
    if effort.undecided:
        text = f"contradictions were not looked for in {len(effort.undecided)}: too many cover some of the same sizes"
        remarks.append(Remark("rows", text, conflict=True))
    return list(remaining.values()), remarks


def _covering(claims: Mapping[int, Claim]) -> dict[int, Entry]:
    """The rows that cover at least one problem."""
    return {number: claim.entry for number, claim in claims.items() if claim.entry.volume}


Rows = dict[object, Entry]
"""The rows of a table by what they cover."""

Result = tuple[Claim | None, Remark | None]
"""The claim that remains, if any, and a remark about it, if any."""


def merge_rows(base: Table | None, ours: MergedTable, theirs: MergedTable) -> tuple[list[Claim], list[Remark]]:
    """The rows that remain, and remarks."""
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
    """The rows by what they cover; where several cover the same, as in no valid table, the first in canonical order."""
    rows: Rows = {}
    for entry in sorted(table.entries, key=canonical_order):
        rows.setdefault(coverage(entry), entry)
    return rows


def _repeats(side: MergedTable) -> Iterator[Remark]:
    """Remarks about the rows that ``_rows`` leaves out."""
    rows = _rows(side.table)
    for entry in side.table.entries:
        used = rows[coverage(entry)]
        if entry is not used:
            yield Remark.of(entry, f"is there more than once in {side.name}: {winner_text(used)} stays")


def _merged(before: Entry | None, ours: Claim | None, theirs: Claim | None) -> Result:
    """The result for a row that at least one side has."""
    if ours is None or theirs is None:
        return _one_sided(before, ours, theirs)
    if theirs.entry in (ours.entry, before):
        return ours, None
    if ours.entry == before:
        return theirs, None
    return resolve(judge(ours, theirs))


def _one_sided(before: Entry | None, ours: Claim | None, theirs: Claim | None) -> Result:
    """The result for a row that only one side has: the other side removed it, or it is new."""
    claim = ours or theirs
    assert claim is not None
    prefer = claim.side.prefer
    if before is None:
        return claim, None
    if claim.entry == before:
        return None, Remark.of(before, f"not changed by {claim.side.name}, removed by the other side: is gone")
    text = f"changed by {claim.side.name} to {winner_text(claim.entry)}, removed by the other side"
    if prefer and prefer != BEST:
        stays = prefer == claim.side.name
        return (claim if stays else None), Remark.of(claim.entry, f"{text}: {'stays' if stays else 'is gone'}")
    return claim.in_conflict(text), Remark.of(claim.entry, f"{text}: stays", conflict=True)
