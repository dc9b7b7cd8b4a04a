"""Merging rows: what each side claims, who wins, and which rows of both contradict each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from diode_lut.domain.printable import printable
from diode_lut.table import Entry, Table
from diode_lut.table.canonical import canonical_order, key_in_words, winner_in_words
from diode_lut.table.overlap import Effort, coverage, overlaps
from diode_lut.table.rules import CONFLICT


class Side(NamedTuple):
    """One of the tables that are merged, and what to call it."""

    name: str
    table: Table

    @property
    def software(self) -> tuple[tuple[int, ...], ...]:
        """The versions of torch and Triton that it was measured with; the newer, the larger."""
        return tuple(version(str(self.table.provenance.get(name, ""))) for name in ("torch", "triton"))


class Claim(NamedTuple):
    """A row, and the side that it is from."""

    side: Side
    entry: Entry

    @classmethod
    def of(cls, side: Side, entry: Entry | None) -> Claim | None:
        """The claim, if there is a row."""
        return None if entry is None else cls(side, entry)

    def in_conflict(self, with_what: str) -> Claim:
        """The same, with a note that people have to decide."""
        notes = "; ".join(filter(None, (self.entry.note, f"{CONFLICT}{with_what}")))
        return self._replace(entry=self.entry._replace(note=notes))


class Remark(NamedTuple):
    """What became of a row, or of a field of the header, that did not simply stay or come along."""

    about: str
    text: str
    conflict: bool = False

    @classmethod
    def of(cls, entry: Entry, text: str, *, conflict: bool = False) -> Remark:
        """A remark about a row."""
        return cls(key_in_words(entry), text, conflict)

    def __str__(self) -> str:
        return printable(f"{'CONFLICT: ' if self.conflict else ''}{self.about}: {self.text}")


def version(text: str) -> tuple[int, ...]:
    """A version, or an ISO date, as numbers that compare as it does; what follows a plus sign does not count."""
    return tuple(map(int, re.findall(r"\d+", text.partition("+")[0])))


NOISE = 0.02
"""Gains that differ by no more than this fraction may be the same."""


class Verdict(NamedTuple):
    """The row that stays, the other one, and why; without a reason it is a conflict."""

    winner: Claim
    loser: Claim
    reason: str


def judge(ours: Claim, theirs: Claim) -> Verdict:
    """The first of these that is clear decides; where none is, ours stays for the time being.

    A row with a note, which somebody wrote by hand, stands above one without. Then the row whose kernel gains more
    over aten, by more than noise, the one with more measured problems behind it, the one of newer software. Where the
    kernel is the same anyway, there is nothing for people to decide.
    """
    one, other = ours.entry, theirs.entry
    same = "both name the same kernel" if one.configs[0] == other.configs[0] else ""
    if one.note and other.note:
        return Verdict(ours, theirs, same if one.note == other.note else "")
    for our_evidence, their_evidence, reason in _evidence(ours, theirs):
        if our_evidence > their_evidence:
            return Verdict(ours, theirs, reason)
        if our_evidence < their_evidence:
            return Verdict(theirs, ours, reason)
    return Verdict(ours, theirs, same)


def settled(verdict: Verdict) -> tuple[Claim, Remark]:
    """The row that stays, with a note if people have to decide, and what to say."""
    winner, loser, reason = verdict
    facts = f"{winner.side.name} {winner_in_words(winner.entry)}, {loser.side.name} {winner_in_words(loser.entry)}"
    if coverage(winner.entry) != coverage(loser.entry):
        facts += f" for {key_in_words(loser.entry)}"
    if reason:
        return winner, Remark.of(winner.entry, f"{facts}: {winner.side.name} stays: {reason}")
    return (
        winner.in_conflict(facts),
        Remark.of(winner.entry, f"{facts}: {winner.side.name} stays until somebody decides", conflict=True),
    )


def _evidence(ours: Claim, theirs: Claim) -> Iterator[tuple[Any, Any, str]]:
    """What can decide, the strongest first: how much each side has of it, and what to say of the one with more."""
    yield bool(ours.entry.note), bool(theirs.entry.note), "it has a note"
    gain, other_gain = (claim.entry.candidates[0].gain_permille for claim in (ours, theirs))
    if gain is not None and other_gain is not None and max(gain, other_gain) > min(gain, other_gain) * (1 + NOISE):
        yield gain, other_gain, "it gains more over aten"
    yield ours.entry.problems or 0, theirs.entry.problems or 0, "it has more measured problems behind it"
    yield ours.side.software, theirs.side.software, "it was measured with newer software"


def without_contradictions(claims: Sequence[Claim]) -> tuple[list[Claim], list[Remark]]:
    """The rows of which no two contradict each other, and what to say about those that had to go.

    There is no key under which both could stay, so that the row with the better evidence does. The work is bounded: a
    remark, which is a conflict, says in how many rows contradictions were not looked for.
    """
    remaining = dict(enumerate(claims))
    remarks: list[Remark] = []
    effort = Effort()
    while pairs := list(overlaps(_covering(remaining), effort)):
        for later, earlier in pairs:
            if later in remaining and earlier in remaining:
                verdict = judge(remaining[earlier], remaining[later])
                stays, goes = (earlier, later) if verdict.winner is remaining[earlier] else (later, earlier)
                remaining[stays], remark = settled(verdict)
                del remaining[goes]
                remarks.append(remark)
        effort.undecided.clear()  # they are looked at again
    if effort.undecided:
        text = f"contradictions were not looked for in {len(effort.undecided)}: too many cover some of the same sizes"
        remarks.append(Remark("rows", text, conflict=True))
    return list(remaining.values()), remarks


def _covering(claims: Mapping[int, Claim]) -> dict[int, Entry]:
    """The rows that cover any problem."""
    return {number: claim.entry for number, claim in claims.items() if claim.entry.volume}


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
