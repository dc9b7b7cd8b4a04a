"""Rows that come from different sides, and cover some of the same problems equally specifically."""

from __future__ import annotations

from collections.abc import Sequence

from diode_lut.merge.evidence import judge, settled
from diode_lut.merge.sides import Claim, Remark
from diode_lut.table.overlap import overlaps


def without_contradictions(claims: Sequence[Claim]) -> tuple[list[Claim], list[Remark]]:
    """The rows of which no two contradict each other, and what to say about those that had to go.

    There is no key under which both could stay, so that the row with the better evidence does.
    """
    remaining = dict(enumerate(claims))
    remarks: list[Remark] = []
    while pairs := list(overlaps({number: claim.entry for number, claim in remaining.items() if claim.entry.volume})):
        for later, earlier in pairs:
            if later in remaining and earlier in remaining:
                verdict = judge(remaining[earlier], remaining[later])
                stays, goes = (earlier, later) if verdict.winner is remaining[earlier] else (later, earlier)
                remaining[stays], remark = settled(verdict)
                del remaining[goes]
                remarks.append(remark)
    return list(remaining.values()), remarks
