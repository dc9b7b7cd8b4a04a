"""Rows that come from different sides, and cover some of the same problems equally specifically."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diode_lut.merge.evidence import judge, settled
from diode_lut.merge.sides import Claim, Remark
from diode_lut.table import Entry
from diode_lut.table.effort import Effort
from diode_lut.table.overlap import overlaps


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
