"""The values of N that a row covers, some of which a row that ``build`` made may leave out."""

from __future__ import annotations

from typing import NamedTuple

from diode_lut.domain.ops import MAX_SIZE
from diode_lut.domain.problem import aligned_columns
from diode_lut.table.entry import Entry, Range


class Results(NamedTuple):
    """The values of N from ``low`` to ``high``; if ``aligned`` is not None, only those with aligned results, or others.

    Results are aligned where N is a multiple of ``columns``.
    """

    low: int
    high: int
    aligned: bool | None
    columns: int

    @classmethod
    def of(cls, entry: Entry) -> Results:
        """Those of a row."""
        low, high = entry.n or (1, MAX_SIZE)
        aligned = entry.aligned_results
        if aligned is None or entry.op is None or entry.dtype is None:
            return cls(low, high, None, 1)
        return cls(low, high, aligned, aligned_columns(entry.op, entry.dtype))

    def shared(self, other: Results) -> int | None:
        """The least N that both rows, which share an op and a type, cover; None if there is none."""
        chosen, rest = (self, other) if self.aligned is not None else (other, self)
        low, high = max(self.low, other.low), min(self.high, other.high)
        if chosen.aligned is not None and rest.aligned not in (None, chosen.aligned):
            return None
        if chosen.aligned:
            low += -low % chosen.columns
        elif chosen.aligned is False:
            low += low % chosen.columns == 0
        return low if low <= high else None


def places(sizes: Range, aligned: bool, columns: int) -> Range | None:
    """Which of all N with aligned results, or of all others, are in a range, counted without gaps; None if none is."""
    low, high = sizes
    if aligned:
        first, last = -(-low // columns), high // columns
    else:
        low, high = low + (low % columns == 0), high - (high % columns == 0)
        first, last = low - low // columns, high - high // columns
    return (first, last) if first <= last else None
