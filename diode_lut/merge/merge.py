"""Merging: a row that one side changed is taken from that side; of one that both changed, the better evidence."""

from __future__ import annotations

from typing import NamedTuple

from diode_lut.merge.contradictions import without_contradictions
from diode_lut.merge.header import header_remarks, merged_hardware, merged_provenance, merged_schema
from diode_lut.merge.rows import merge_rows
from diode_lut.merge.sides import Remark, Side
from diode_lut.table import Table


class Merged(NamedTuple):
    """The table, and what has to be said about it: at least a remark for each row of either side that is gone."""

    table: Table
    remarks: tuple[Remark, ...]

    @property
    def conflicts(self) -> tuple[Remark, ...]:
        """The remarks about what people have to decide; in the table the notes of these rows say so, too."""
        return tuple(remark for remark in self.remarks if remark.conflict)


def merge(base: Table | None, ours: Table, theirs: Table, names: tuple[str, str] = ("ours", "theirs")) -> Merged:
    """What both sides made of ``base``; without one, the rows of both. ``names`` is what to call the sides.

    No two rows of the result contradict each other. TableError is raised if the sides are for different devices.
    """
    our_side, their_side = Side(names[0], ours), Side(names[1], theirs)
    claims, of_rows = merge_rows(base, our_side, their_side)
    claims, of_contradictions = without_contradictions(claims)
    table = Table(
        merged_hardware(base, ours, theirs),
        (claim.entry for claim in claims),
        merged_provenance(base, ours, theirs),
        schema=merged_schema(base, ours, theirs),
    )
    return Merged(table, (*header_remarks(base, our_side, their_side), *of_rows, *of_contradictions))
