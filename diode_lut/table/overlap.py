"""Rows that cover the same problem with the same specificity, so that neither is the one to answer.

Rows are compared as sets: along each field of the key a bit mask says which rows share a value with a given row, and
the masks and-ed say which rows share a problem with it. That is one step for many rows, so that ten thousand rows of
the same volume, whatever they look like, take a fraction of a second.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import or_
from typing import Any

from diode_lut.problem import ALIGNS, BATCHED, DTYPES, LAYOUTS, MAX_SIZE, OPS, Problem
from diode_lut.table.entry import Entry, Range

BLOCK_ROWS = 2048
"""How many rows a mask speaks of: it bounds the memory."""

_ANY: Range = (1, MAX_SIZE)
_NO_BATCH: Range = (1, 1)

Coverage = tuple[Any, ...]
"""What ``coverage`` says of a row: four kinds, four ranges of sizes."""

Sharing = Callable[[Entry], int]
"""The mask of the rows of a block that share a value of one field with an entry."""


class Neighbours:
    """Finds which of ``rows`` share a problem with an entry."""

    def __init__(self, rows: Sequence[Entry]) -> None:
        self._blocks = [
            (start, _sharings(rows[start : start + BLOCK_ROWS])) for start in range(0, len(rows), BLOCK_ROWS)
        ]

    def of(self, entry: Entry, stop: int) -> Iterator[int]:
        """The numbers of the rows before ``stop`` that share a problem with the entry, upwards."""
        for start, sharings in self._blocks:
            if start >= stop:
                break
            mask = (1 << min(stop - start, BLOCK_ROWS)) - 1
            for sharing in sharings:
                mask = mask and mask & sharing(entry)
            while mask:
                lowest = mask & -mask
                yield start + lowest.bit_length() - 1
                mask ^= lowest


def coverage(entry: Entry) -> Coverage:
    """The key in full: the same for all entries that cover the same problems, as an op without a batch makes them."""
    return (*entry.kind, *box(entry))


def lies_inside(inner: Coverage, outer: Coverage) -> bool:
    """Whether the outer one holds all that the inner one does."""
    for narrow, wide in zip(inner[4:], outer[4:], strict=True):
        if narrow[0] < wide[0] or narrow[1] > wide[1]:
            return False
    return all(wide in (None, narrow) for narrow, wide in zip(inner[:4], outer[:4], strict=True))


def repeats(entries: Mapping[int, Entry]) -> Iterator[tuple[int, int]]:
    """The number of each row whose key an earlier row has too, and the number of the first such row."""
    first: dict[object, int] = {}
    for number, entry in entries.items():
        earlier = first.setdefault(coverage(entry), number)
        if earlier != number:
            yield number, earlier


def overlaps(entries: Mapping[int, Entry]) -> Iterator[tuple[int, int]]:
    """The number of each row that shares a problem with an earlier row of the same volume, and that row's number.

    Rows with the same key are not meant: of these only the first counts.
    """
    first = {coverage(entry): number for number, entry in reversed(list(entries.items()))}
    volumes: dict[int, list[int]] = defaultdict(list)
    for number in sorted(first.values()):
        volumes[entries[number].volume].append(number)
    for volume, numbers in volumes.items():
        if volume > 1 and len(numbers) > 1:
            for later, earlier in _pairs([entries[number] for number in numbers]):
                yield numbers[later], numbers[earlier]


def shared_problem(one: Entry, other: Entry) -> Problem:
    """A problem that both entries cover, of which there must be one."""
    b, m, n, k = (max((x or _ANY)[0], (y or _ANY)[0]) for x, y in zip(one[4:8], other[4:8], strict=True))
    problems = (
        Problem(
            op,
            one.dtype or other.dtype or DTYPES[0],
            one.layout or other.layout or LAYOUTS[0],
            one.align or other.align or ALIGNS[0],
            b if op in BATCHED else 1,
            m,
            n,
            k,
        )
        for op in OPS
    )
    return next(problem for problem in problems if one.covers(problem) and other.covers(problem))


def box(entry: Entry) -> tuple[Range, ...]:
    """The sizes that the entry covers along b, m, n and k."""
    unbatched = entry.op is not None and entry.op not in BATCHED
    return (_NO_BATCH if unbatched else entry.b or _ANY, entry.m or _ANY, entry.n or _ANY, entry.k or _ANY)


def _pairs(rows: Sequence[Entry]) -> Iterator[tuple[int, int]]:
    """The number of each row that shares a problem with an earlier one, and the number of the first of these."""
    neighbours = Neighbours(rows)
    for number, row in enumerate(rows):
        first = next(neighbours.of(row, number), None)
        if first is not None:
            yield number, first


def _sharings(block: Sequence[Entry]) -> list[Sharing]:
    return [*(_same_kind(block, field) for field in range(4)), *(_same_size(block, axis) for axis in range(4))]


def _same_kind(block: Sequence[Entry], field: int) -> Sharing:
    masks: dict[object, int] = defaultdict(int)
    for number, entry in enumerate(block):
        masks[entry[field]] |= 1 << number
    everything = (1 << len(block)) - 1
    anything = masks[None]
    return lambda entry: everything if entry[field] is None else masks.get(entry[field], 0) | anything


def _same_size(block: Sequence[Entry], axis: int) -> Sharing:
    """Two ranges share a size if each begins before the other ends."""
    ranges = [box(entry)[axis] for entry in block]
    by_low = sorted(range(len(block)), key=lambda number: ranges[number][0])
    by_high = sorted(range(len(block)), key=lambda number: -ranges[number][1])
    lows = [ranges[number][0] for number in by_low]
    highs = [-ranges[number][1] for number in by_high]
    begun = list(accumulate((1 << number for number in by_low), or_, initial=0))
    not_over = list(accumulate((1 << number for number in by_high), or_, initial=0))

    def sharing(entry: Entry) -> int:
        low, high = box(entry)[axis]
        return begun[bisect_right(lows, high)] & not_over[bisect_right(highs, -low)]

    return sharing
