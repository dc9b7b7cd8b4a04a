"""Rows that never answer, because more specific rows answer all of their problems.

A row's problems are boxes of sizes, one for each op, dtype, layout and align. A box is covered if a more specific row
covers a part of it, and others cover what is around that part. As the problems in the parts must at least be as many
as those in the box, nearly all boxes are found not to be covered by counting.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, product
from math import prod
from typing import Any

from diode_lut.problem import ALIGNS, BATCHED, DTYPES, LAYOUTS, OPS
from diode_lut.table.entry import Entry, Range
from diode_lut.table.overlap import Neighbours, box

Kind = tuple[Any, ...]
"""op, dtype, layout and align of a problem."""

Box = tuple[Range, ...]
"""Sizes along b, m, n and k."""


def unreachable(entries: Mapping[int, Entry]) -> Iterator[int]:
    """The number of each row whose problems are all covered by more specific rows; no row may be without problems."""
    volumes = {number: entry.volume for number, entry in entries.items()}
    of_kind: dict[Kind, list[int]] = defaultdict(list)
    for number in sorted(volumes, key=volumes.__getitem__):
        for kind in _kinds(entries[number]):
            of_kind[kind].append(number)
    reachable: set[int] = set()
    for kind, numbers in of_kind.items():
        rows = [entries[number]._replace(op=kind[0]) for number in numbers]
        reachable.update(numbers[place] for place in _answering(rows, [volumes[number] for number in numbers]))
    return (number for number in entries if number not in reachable)


def _kinds(entry: Entry) -> Iterator[Kind]:
    """The op, dtype, layout and align of all the entry's problems."""
    domains = (OPS, DTYPES, LAYOUTS, ALIGNS)
    choices = (domain if value is None else (value,) for domain, value in zip(domains, entry.kind, strict=True))
    return (kind for kind in product(*choices) if kind[0] in BATCHED or entry.b is None or entry.b[0] == 1)


def _answering(rows: Sequence[Entry], volumes: Sequence[int]) -> Iterator[int]:
    """The places of the rows, of one kind and in order of volume, that answer some problem of this kind."""
    boxes = [box(row) for row in rows]
    sums = list(accumulate(map(_size, boxes), initial=0))
    neighbours = Neighbours(rows)
    for place, (row, volume, whole) in enumerate(zip(rows, volumes, boxes, strict=True)):
        narrower = bisect_left(volumes, volume)
        if sums[narrower] < _size(whole) or not _covered(whole, [boxes[at] for at in neighbours.of(row, narrower)]):
            yield place


def _covered(whole: Box, boxes: Iterable[Box]) -> bool:
    """Whether every point of ``whole`` is in one of the boxes."""
    parts = {part for other in boxes if (part := _common(whole, other)) is not None}
    if sum(map(_size, parts)) < _size(whole):
        return False
    largest = max(parts, key=_size)
    return all(_covered(piece, parts) for piece in _around(largest, whole))


def _common(one: Box, other: Box) -> Box | None:
    sides = []
    for (low, high), (other_low, other_high) in zip(one, other, strict=True):
        side = (low if low > other_low else other_low, high if high < other_high else other_high)
        if side[0] > side[1]:
            return None
        sides.append(side)
    return tuple(sides)


def _size(sides: Box) -> int:
    return prod(high - low + 1 for low, high in sides)


def _around(part: Box, whole: Box) -> Iterator[Box]:
    """``whole`` without ``part``, which is in it, in pieces."""
    for axis, ((low, high), (lowest, highest)) in enumerate(zip(part, whole, strict=True)):
        for side in ((lowest, low - 1), (high + 1, highest)):
            if side[0] <= side[1]:
                yield (*part[:axis], side, *whole[axis + 1 :])
