"""Which of two rows, that say different things about the same problems, has the better evidence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from diode_lut.merge.sides import Claim, Remark
from diode_lut.table.overlap import coverage
from diode_lut.table.words import key_in_words, winner_in_words

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
