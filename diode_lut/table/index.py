"""The index of ``Table.lookup``: it finds the few rows that may cover a problem, so that only these are looked at.

Rows whose op, dtype, layout, align, epilogue and variant are alike are grouped by the sizes that they fix, and in a
dictionary by these. A row for one problem fixes all sizes. A row for a range of M fixes the others, and is found by
them. In tables that ``build`` makes, a handful of rows is left for each problem. Where many are left, because they fix
the same sizes, masks of BLOCK_ROWS rows say which have the problem's other sizes in their ranges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from diode_lut.domain.ops import MATMULS, SIZE_FIELDS
from diode_lut.domain.problem import Problem
from diode_lut.table.canonical import canonical_order
from diode_lut.table.entry import Entry, Range, is_point
from diode_lut.table.overlap import ANY, same_size

Kind = tuple[str | int | None, ...]
"""op, dtype, layout, align, epilogue and variant: of a problem, or of an entry, where None matches anything."""

BLOCK_ROWS = 256
"""How many rows a mask speaks of: it bounds the memory, which is 400 bytes for each row."""

FEW_ROWS = 8
"""Number of rows up to which all are looked at."""

REMEMBERED = 1 << 14
"""Number of answers that are remembered. A model has some hundred different GEMMs, each of which is asked for often."""

_PLACES = {name: Problem._fields.index(name) for name in SIZE_FIELDS}


class Block(NamedTuple):
    """Rows, and for the place in a Problem of each size that some restrict to a range, masks of those around a size."""

    rows: Sequence[Entry]
    axes: Sequence[tuple[int, Callable[[Range], int]]]

    @classmethod
    def of(cls, rows: Sequence[Entry], fixed: Collection[int], free: Collection[str]) -> Block:
        """A block of rows that fix the sizes in some places; those in ``free`` are not restricted."""
        if len(rows) <= FEW_ROWS:
            return cls(rows, ())
        axes = []
        for name, place in _PLACES.items():
            ranges = [getattr(row, name) or ANY for row in rows]
            if name not in free and place not in fixed and set(ranges) != {ANY}:
                axes.append((place, same_size(ranges)))
        return cls(rows, axes)

    def near(self, problem: Problem) -> Iterator[Entry]:
        """The rows whose ranges have the problem's sizes in them."""
        mask = (1 << len(self.rows)) - 1
        for place, sharing in self.axes:
            size: Any = problem[place]
            mask &= sharing((size, size))
            if not mask:
                return
        while mask:
            lowest = mask & -mask
            yield self.rows[lowest.bit_length() - 1]
            mask ^= lowest


Groups = dict[tuple[int, ...], dict[tuple[int, ...], list[Block]]]
"""Rows by the places in a Problem of the sizes that they fix, then by these sizes."""


class Index:
    """Finds the most specific entry for a problem."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._rows: dict[Kind, list[Entry]] = defaultdict(list)
        for entry in entries:
            self._rows[entry.kind].append(entry)
        self._groups: dict[tuple[Kind, tuple[str, ...]], Groups] = {}
        self._matching = lru_cache(REMEMBERED)(self._kinds_matching)
        self.find = lru_cache(REMEMBERED)(self._find)
        self.borders = lru_cache(REMEMBERED)(self._borders)

    def near(self, problem: Problem, free: tuple[str, ...] = ()) -> Iterator[Entry]:
        """The rows that match the problem's kind and fix no other sizes than its own, but for those in ``free``."""
        for kind in self._matching(problem.kind):
            groups = self._groups.get((kind, free))
            if groups is None:
                groups = self._groups[kind, free] = _grouped(self._rows[kind], free)
            for places, blocks in groups.items():
                for block in blocks.get(tuple([problem[place] for place in places]), ()):  # type: ignore[misc]
                    yield from block.near(problem)

    def _find(self, problem: Problem) -> Entry | None:
        """The entry with the smallest volume that covers the problem; among equals, the first in canonical order."""
        covering = [entry for entry in self.near(problem) if entry.covers(problem)]
        return min(covering, key=lambda entry: (entry.volume, canonical_order(entry)), default=None)

    def _borders(self, problem: Problem, fields: tuple[str, ...]) -> frozenset[int]:
        """The sizes in ``fields`` at which rows begin or end that cover the problem, but for these fields."""
        ends: dict[int, list[Entry]] = defaultdict(list)
        for entry in self.near(problem, fields):
            for size in (size for name in fields for size in getattr(entry, name) or ()):
                ends[size].append(entry)
        found = set()
        for size, entries in ends.items():
            changed: dict[str, Any] = dict.fromkeys(fields, size)
            there = problem._replace(**changed)
            if any(entry.covers(there) for entry in entries):
                found.add(size)
        return frozenset(found)

    def _kinds_matching(self, kind: Kind) -> list[Kind]:
        """The kinds of rows that match a kind of problem."""
        op, *rest = kind
        ops = (None, op) if op in MATMULS else (op,)
        return [
            (own, *pattern)
            for own, *pattern in self._rows
            if own in ops and all(part in (None, wanted) for part, wanted in zip(pattern, rest, strict=True))
        ]


def _grouped(rows: Sequence[Entry], free: tuple[str, ...]) -> Groups:
    """The rows by the sizes that they fix, without those in ``free``."""
    groups: dict[tuple[int, ...], dict[tuple[int, ...], list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        sizes = ((_PLACES[name], size) for name in _PLACES if name not in free and (size := getattr(row, name)))
        fixed = [(place, size[0]) for place, size in sizes if is_point(size)]
        groups[tuple([place for place, _ in fixed])][tuple([size for _, size in fixed])].append(row)
    return {
        places: {
            sizes: [
                Block.of(found[start : start + BLOCK_ROWS], places, free) for start in range(0, len(found), BLOCK_ROWS)
            ]
            for sizes, found in by_sizes.items()
        }
        for places, by_sizes in groups.items()
    }
