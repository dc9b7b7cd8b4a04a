"""The two sides of a merge, and what is said about it."""

from __future__ import annotations

import re
from typing import NamedTuple

from diode_lut.printable import printable
from diode_lut.table import Entry, Table
from diode_lut.table.rules import CONFLICT
from diode_lut.table.words import key_in_words


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
