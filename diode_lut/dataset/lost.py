"""What could not be read of a damaged dataset, and how that is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_NAMED = 5
"""Of more damaged places than these only the number is said."""


class Lost(NamedTuple):
    """A damaged place: the bytes from ``start`` to ``end`` (exclusive) of the stream could not be read.

    ``record`` is the number of the first record that was there, counted from 1; 0 stands for the header, of which
    there is a second copy. Mostly one record is lost; where the place is longer than a record, several may be.
    """

    record: int
    start: int
    end: int

    def __str__(self) -> str:
        what = f"record {self.record}" if self.record else "a copy of the header"
        return f"{what} (bytes {self.start} to {self.end})"


def in_words(lost: Sequence[Lost]) -> str:
    """All places on one line, the first ones by name."""
    more = f" and {len(lost) - _NAMED} more places" if len(lost) > _NAMED else ""
    return f"damaged: {', '.join(map(str, lost[:_NAMED]))}{more} cannot be read and are left out"
