"""The index behind ``Table.lookup``: the smallest box around a point, among many boxes that may lie in each other.

The rows that can match one (op, dtype, layout, align, epilogue, variant), and either aligned results or others, make a
group, indexed when it is first asked for. Rows for a single size that are more specific than all other rows are in a
dictionary. The others are boxes in the sizes of the op, ordered by volume, in a tree of three kinds of nodes that all
answer ``find``:

- ``Leaf``: few boxes. Along each axis the boxes' borders cut the line into intervals, each with a bit mask of the
  boxes over it; the masks of a point's intervals, and-ed, have a bit for each box around it, and the lowest set bit
  is the smallest box.
- ``Grid``: many boxes, in cells that cuts along the axes make, with few boxes each.
- ``Layers``: many boxes that no grid separates. The smaller half of the boxes answers first, then the larger half.

A box that crosses a cut is in several cells. A grid is used only where this adds at most half as many boxes again, so
that the tree's size is in proportion to the number of rows whatever they look like.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from math import prod
from operator import xor
from typing import NamedTuple

from diode_lut.domain.ops import BATCHED, MATMULS
from diode_lut.domain.problem import Problem
from diode_lut.table.canonical import canonical_order
from diode_lut.table.entry import Entry, Range, is_point

Kind = tuple[str | int | None, ...]
"""op, dtype, layout, align, epilogue and variant: of a problem, or of an entry, where None matches anything."""

Sizes = tuple[int, ...]
"""The sizes of a problem: b, m, n and k, of attention h, g and v as well."""

Box = tuple[Range | None, ...]
"""The ranges of these that an entry covers; None covers all."""

Axis = tuple[int, list[int]]
"""The number of an axis, and where it is cut."""

LEAF_ROWS = 64
PARTS = (16, 8, 4, 2)
"""Into how many parts each axis is cut, at most; the first is taken with no more cells and not many more boxes than
there are rows."""
MOST_COPIES = 1.5
"""How many times as many boxes as there are rows the cells of a grid may hold."""


REMEMBERED = 1 << 14
"""Number of answers that are remembered. A model has some hundred different GEMMs, each of which is asked for often."""


class Index:
    """Finds the most specific entry for a problem."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._rows: dict[Kind, list[Entry]] = defaultdict(list)
        self._groups: dict[tuple[Kind, bool], KindIndex] = {}
        for entry in entries:
            self._rows[entry.kind].append(entry)
        self.find = lru_cache(REMEMBERED)(self._find)

    def _find(self, problem: Problem) -> Entry | None:
        """The entry with the smallest volume that covers the problem; among equals, the first in canonical order."""
        key = problem.kind, problem.has_aligned_result
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = self._group(*key)
        sizes = problem.sizes
        return group.exact.get(sizes) or group.ranges.find(sizes)

    def of_kind(self, kind: Kind) -> Iterator[Entry]:
        """The rows that can match a problem of a kind, whatever its sizes."""
        op, *rest = kind
        ops = (None, op) if op in MATMULS else (op,)
        for (own, *pattern), entries in self._rows.items():
            if own in ops and all(part in (None, wanted) for part, wanted in zip(pattern, rest, strict=True)):
                yield from entries

    def _group(self, kind: Kind, aligned_results: bool) -> KindIndex:
        op, *_ = kind
        batched = op in BATCHED
        rows = [
            IndexedRow(entry, entry.sizes if batched else (None, entry.m, entry.n, entry.k))
            for entry in self.of_kind(kind)
            if (batched or entry.covers_unbatched) and entry.aligned_results in (None, aligned_results)
        ]
        rows.sort(key=lambda row: (row.entry.volume, canonical_order(row.entry)))
        exact = next((place for place, row in enumerate(rows) if not _is_point(row.entry, batched)), len(rows))
        return KindIndex(_exact(rows[:exact]), _node(rows[exact:]))


class IndexedRow(NamedTuple):
    """An entry, and the sizes that it covers in its group."""

    entry: Entry
    box: Box


class Leaf(NamedTuple):
    """Few boxes: ``axes`` has, for each axis that matters, its number, the borders and the masks between them."""

    entries: tuple[Entry | None, ...]
    everything: int
    axes: tuple[tuple[int, list[int], list[int]], ...]

    def find(self, sizes: Sizes) -> Entry | None:
        """The entry of the smallest box around the point."""
        mask = self.everything
        for axis, borders, masks in self.axes:
            mask &= masks[bisect_right(borders, sizes[axis])]
        return self.entries[(mask & -mask).bit_length()]


class Grid(NamedTuple):
    """Many boxes, by the cells that they reach into: ``axes`` has, for each axis that is cut, its number and the cuts.

    Cells are numbered with the last axis running fastest. Each starts at one cut and ends before the next.
    """

    axes: tuple[Axis, ...]
    cells: list[Node]

    def find(self, sizes: Sizes) -> Entry | None:
        """The entry of the smallest box around the point."""
        cell = 0
        for axis, cuts in self.axes:
            cell = cell * (len(cuts) + 1) + bisect_right(cuts, sizes[axis])
        return self.cells[cell].find(sizes)


class Layers(NamedTuple):
    """Many boxes, those in ``smaller`` all of them more specific than those in ``larger``."""

    smaller: Node
    larger: Node

    def find(self, sizes: Sizes) -> Entry | None:
        """The entry of the smallest box around the point."""
        return self.smaller.find(sizes) or self.larger.find(sizes)


Node = Leaf | Grid | Layers


class KindIndex(NamedTuple):
    """All rows for one kind of problem."""

    exact: dict[Sizes, Entry]
    ranges: Node


def _is_point(entry: Entry, batched: bool) -> bool:
    """Whether the entry covers a single size."""
    return all(map(is_point, entry.sizes if batched else (entry.m, entry.n, entry.k)))


def _exact(rows: Sequence[IndexedRow]) -> dict[Sizes, Entry]:
    """Rows for one size each; of rows for the same size, the first."""
    return {tuple(low for low, _ in map(_or_one, row.box)): row.entry for row in reversed(rows)}


def _or_one(sizes: Range | None) -> Range:
    """The range, which is 1 for the batch of an op that has none."""
    return (1, 1) if sizes is None else sizes


def _node(rows: Sequence[IndexedRow]) -> Node:
    """The tree for rows in order of volume."""
    if len(rows) <= LEAF_ROWS:
        return _leaf(rows)
    for parts in PARTS:
        axes = tuple((axis, cuts) for axis in range(_axes(rows)) if (cuts := _cuts(rows, axis, parts)))
        cells = _cells(rows, axes)
        if cells and max(map(len, cells)) <= len(rows) / 4:
            return Grid(axes, [_node(cell) for cell in cells])
    half = len(rows) // 2
    return Layers(_node(rows[:half]), _node(rows[half:]))


def _axes(rows: Sequence[IndexedRow]) -> int:
    """The number of sizes that problems of the group have."""
    return len(rows[0].box) if rows else 0


def _leaf(rows: Sequence[IndexedRow]) -> Leaf:
    axes = []
    everything = (1 << len(rows)) - 1
    for axis in range(_axes(rows)):
        flips: dict[int, int] = defaultdict(int)
        inside = everything
        for number, row in enumerate(rows):
            size = row.box[axis]
            if size is not None:
                low, high = size
                inside ^= 1 << number
                flips[low] ^= 1 << number
                flips[high + 1] ^= 1 << number
        if flips:
            borders = sorted(flips)
            axes.append((axis, borders, list(accumulate((flips[at] for at in borders), xor, initial=inside))))
    return Leaf((None, *(row.entry for row in rows)), everything, tuple(axes))


def _cuts(rows: Sequence[IndexedRow], axis: int, parts: int) -> list[int]:
    """Sizes where boxes begin, such that about as many begin in each of at most ``parts`` slabs between them."""
    lows = sorted(low for row in rows if (size := row.box[axis]) is not None for low, _ in (size,))
    return sorted({lows[number * len(lows) // parts] for number in range(1, parts)} - {lows[0]}) if lows else []


def _cells(rows: Sequence[IndexedRow], axes: Sequence[Axis]) -> list[list[IndexedRow]]:
    """The rows that reach into each cell, still in order of volume; no cells if they would be too many or too full."""
    count = prod(len(cuts) + 1 for _, cuts in axes)
    if count > len(rows):
        return []
    cells: list[list[IndexedRow]] = [[] for _ in range(count)]
    room = len(rows) * MOST_COPIES
    for row in rows:
        numbers = [0]
        for axis, cuts in axes:
            slabs = _slabs(row.box[axis], cuts)
            numbers = [number * (len(cuts) + 1) + slab for number in numbers for slab in slabs]
        room -= len(numbers)
        if room < 0:
            return []
        for number in numbers:
            cells[number].append(row)
    return cells


def _slabs(size: Range | None, cuts: list[int]) -> range:
    """The numbers of the slabs between cuts that a range reaches into."""
    if size is None:
        return range(len(cuts) + 1)
    low, high = size
    return range(bisect_right(cuts, low), bisect_right(cuts, high) + 1)
