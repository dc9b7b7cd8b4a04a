"""What can change between two tables."""

from __future__ import annotations

from typing import Literal, NamedTuple

from diode_lut.table import Entry
from diode_lut.table.overlap import coverage, lies_inside

Kind = Literal["added", "removed", "narrowed", "widened", "winner", "details"]
"""What became of a row: it is new, or gone; it covers less, or more, than it did; its first config is another one; or
only something else is: gains, further configs, the number of problems, the note."""

KINDS: tuple[Kind, ...] = ("winner", "added", "removed", "narrowed", "widened", "details")
"""The order in which reports count them."""


class Change(NamedTuple):
    """A row as it was and as it is; None where there is none."""

    old: Entry | None
    new: Entry | None

    @property
    def kind(self) -> Kind:
        """What became of the row. One that is narrowed or widened may have another winner, too."""
        if self.old is None:
            return "added"
        if self.new is None:
            return "removed"
        before, after = coverage(self.old), coverage(self.new)
        if before != after:
            return "narrowed" if lies_inside(after, before) else "widened"
        return "winner" if self.new_winner else "details"

    @property
    def new_winner(self) -> bool:
        """Whether there is a row before and after, with different first configs."""
        return self.old is not None and self.new is not None and self.old.configs[0] != self.new.configs[0]

    @property
    def row(self) -> Entry:
        """The row as it is, or else as it was."""
        row = self.new or self.old
        assert row is not None
        return row


class HeaderChange(NamedTuple):
    """A field of the header, ``provenance.torch`` for example, as it was and as it is; None where it is missing."""

    field: str
    old: object
    new: object
