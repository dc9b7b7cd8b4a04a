"""Rows that cover the same problems, found with bounded work."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import accumulate
from operator import or_
from typing import Any, NamedTuple

from diode_lut.domain.ops import ALIGNS, ATTENTION, ATTENTION_ONLY, BATCHED, DOMAINS, MAX_SIZE, OP_SIZES, SIZE_FIELDS
from diode_lut.domain.problem import Problem
from diode_lut.table.entry import KIND_FIELDS, Entry, Range, ops_of
from diode_lut.table.results import Results

STEPS = 4_000_000
"""Steps for one table, each about a microsecond. 20,000 rows that do not overlap need a quarter of them at most."""
ROW_STEPS = 1_000_000
"""Steps for one row, so that a few rows do not use up the steps of all others."""


class ExhaustedError(Exception):
    """The steps are used up. It never leaves the functions that compare rows."""


class Effort:
    """Steps that remain, ``left``, and ``undecided``: the numbers of the rows for which they were too few."""

    def __init__(self, steps: int | None = None) -> None:
        self.left = STEPS if steps is None else steps
        self.undecided: set[int] = set()

    def spend(self, steps: int) -> None:
        """Use up some steps; ExhaustedError if there are not enough, and then none are left."""
        self.left -= steps
        if self.left < 0:
            self.left = 0
            raise ExhaustedError

    def share(self) -> Effort:
        """Steps for one row, to be given back with ``settle``."""
        return Effort(min(ROW_STEPS, self.left))

    def settle(self, share: Effort) -> None:
        """Take off what was used of the share."""
        self.left -= min(ROW_STEPS, self.left) - share.left


BLOCK_ROWS = 2048
"""How many rows a mask speaks of: it bounds the memory."""

_AXES = [SIZE_FIELDS.index(name) for name in ("m", "n", "k", "b", *ATTENTION_ONLY)]
"""The axes of a box, those first in which rows differ most."""

_MORE_AXES = [SIZE_FIELDS.index(name) for name in ATTENTION_ONLY]

ANY: Range = (1, MAX_SIZE)
_ABSENT: Range = (1, 1)
"""A size that an op does not have."""


class Coverage(NamedTuple):
    """What a row covers: its kind, in which None matches anything, and the ranges of SIZE_FIELDS."""

    kind: tuple[Any, ...]
    box: tuple[Range, ...]


Sharing = Callable[[Coverage], int]
"""The mask of the rows of a block that share a value of one field with what an entry covers."""


class Neighbours:
    """Finds which of ``rows`` share a problem with an entry. Making it takes 8 steps of the effort a row."""

    def __init__(self, rows: Sequence[Entry], effort: Effort | None = None) -> None:
        if effort is not None:
            effort.spend(8 * len(rows))
        keys = [coverage(row) for row in rows]
        self._results = [Results.of(row) for row in rows]
        self._blocks = [
            (start, _sharings(keys[start : start + BLOCK_ROWS])) for start in range(0, len(rows), BLOCK_ROWS)
        ]

    def of(self, entry: Entry, stop: int, effort: Effort | None = None) -> Iterator[int]:
        """The numbers of the rows before ``stop`` that share a problem with the entry, upwards.

        ExhaustedError if the effort is used up before: a step is a mask, or a row that is found.
        """
        key, results = coverage(entry), Results.of(entry)
        for start, sharings in self._blocks:
            if start >= stop:
                break
            mask = (1 << min(stop - start, BLOCK_ROWS)) - 1
            steps = 0
            for sharing in sharings:
                mask &= sharing(key)
                steps += 1
                if not mask:
                    break
            if effort is not None:
                effort.spend(steps + mask.bit_count())
            while mask:
                lowest = mask & -mask
                number = start + lowest.bit_length() - 1
                if results.shared(self._results[number]) is not None:
                    yield number
                mask ^= lowest


def coverage(entry: Entry) -> Coverage:
    """The key in full: the same for all entries that cover the same problems, as an op without a batch makes them."""
    return Coverage(entry.kind, box(entry))


def lies_inside(inner: Coverage, outer: Coverage) -> bool:
    """Whether the outer one holds all that the inner one does."""
    for (low, high), (lowest, highest) in zip(inner.box, outer.box, strict=True):
        if low < lowest or high > highest:
            return False
    return all(wide in (None, narrow) for narrow, wide in zip(inner.kind, outer.kind, strict=True))


def repeats(entries: Mapping[int, Entry]) -> Iterator[tuple[int, int]]:
    """The number of each row whose key an earlier row has too, and the number of the first such row."""
    first: dict[object, int] = {}
    for number, entry in entries.items():
        earlier = first.setdefault(coverage(entry), number)
        if earlier != number:
            yield number, earlier


def overlaps(entries: Mapping[int, Entry], effort: Effort | None = None) -> Iterator[tuple[int, int]]:
    """The number of each row that shares a problem with an earlier row of the same volume, and that row's number.

    Rows with the same key are not meant: of these only the first counts. Rows for which the effort is too little are
    not reported, and become ``undecided``.
    """
    first = {coverage(entry): number for number, entry in reversed(list(entries.items()))}
    volumes: dict[int, list[int]] = defaultdict(list)
    for number in sorted(first.values()):
        volumes[entries[number].volume].append(number)
    for numbers in volumes.values():
        # Exact rows of the same volume and with different keys share no problem.
        if len(numbers) > 1 and not all(entries[number].is_exact for number in numbers):
            yield from _pairs({number: entries[number] for number in numbers}, effort or Effort())


def shared_problem(one: Entry, other: Entry) -> Problem:
    """A problem that both entries cover, of which there must be one.

    Its number of heads is a multiple of those that share keys, unless the entries cover no such number.
    """
    pairs = ((x or ANY, y or ANY) for x, y in zip(one.sizes, other.sizes, strict=True))
    b, m, _, k, *more = (max(low, other_low) for (low, _), (other_low, _) in pairs)
    n = Results.of(one).shared(Results.of(other))
    assert n is not None
    h, g, v = more or (1, 1, 1)
    multiple = -(-h // g) * g
    h = multiple if all(each.h is None or multiple <= each.h[1] for each in (one, other)) else h
    align = one.align or other.align or ALIGNS[0]
    named = [getattr(one, name) or getattr(other, name) for name in ("dtype", "layout", "epilogue", "variant")]
    ops = set(ops_of(one.kind)).intersection(ops_of(other.kind))

    def problem_of(op: str) -> Problem:
        dtype, layout, epilogue, variant = (
            value or first for value, (first, *_) in zip(named, DOMAINS[op], strict=True)
        )
        return Problem(op, dtype, layout, align, b if op in BATCHED else 1, m, n, k, epilogue, variant, h, g, v)

    problems = (problem_of(op) for op in DOMAINS if op in ops)
    return next(problem for problem in problems if one.covers(problem) and other.covers(problem))


def box(entry: Entry) -> tuple[Range, ...]:
    """The sizes that the entry covers along SIZE_FIELDS."""
    unbatched = entry.op is not None and entry.op not in BATCHED
    sizes = (_ABSENT if unbatched else entry.b or ANY, entry.m or ANY, entry.n or ANY, entry.k or ANY)
    if entry.op is None or len(OP_SIZES[entry.op]) < len(SIZE_FIELDS):
        return (*sizes, _ABSENT, _ABSENT, _ABSENT)
    return (*sizes, entry.h or ANY, entry.g or ANY, entry.v or ANY)


def _pairs(entries: Mapping[int, Entry], effort: Effort) -> Iterator[tuple[int, int]]:
    """The number of each entry that shares a problem with an earlier one, and the number of the first of these."""
    numbers = list(entries)
    place = 0
    try:
        neighbours = Neighbours(list(entries.values()), effort)
        for place, number in enumerate(numbers):
            first = next(neighbours.of(entries[number], place, effort), None)
            if first is not None:
                yield number, numbers[first]
    except ExhaustedError:
        effort.undecided.update(numbers[place:])


def _sharings(block: Sequence[Coverage]) -> list[Sharing]:
    """Sizes first: they differ most, so that the other masks are seldom needed. Only attention has all of them."""
    boxes = [(axis, [key.box[axis] for key in block]) for axis in _AXES]
    attends = any(op in ATTENTION for key in block for op in ops_of(key.kind))
    axes = [_same_size_along(axis, ranges) for axis, ranges in boxes if attends or axis not in _MORE_AXES]
    kinds = (_same_kind([key.kind[field] for key in block], field) for field in range(1, len(KIND_FIELDS)))
    return [*axes, _same_op([key.kind for key in block]), *kinds]


def _same_op(kinds: Sequence[tuple[Any, ...]]) -> Sharing:
    """Two kinds share an op if it has problems of both: scaled_mm has none in bfloat16, whatever else they are."""
    masks: dict[str, int] = defaultdict(int)
    for number, kind in enumerate(kinds):
        for op in ops_of(kind):
            masks[op] |= 1 << number
    return lambda key: reduce(or_, (masks[op] for op in ops_of(key.kind)), 0)


def _same_kind(values: Sequence[object], field: int) -> Sharing:
    masks: dict[object, int] = defaultdict(int)
    for number, value in enumerate(values):
        masks[value] |= 1 << number
    everything = (1 << len(values)) - 1
    anything = masks[None]

    def sharing(key: Coverage) -> int:
        value = key.kind[field]
        return everything if value is None else masks.get(value, 0) | anything

    return sharing


def _same_size_along(axis: int, ranges: Sequence[Range]) -> Sharing:
    sharing = same_size(ranges)
    return lambda key: sharing(key.box[axis])


def same_size(ranges: Sequence[Range]) -> Callable[[Range], int]:
    """Finds the mask of the ranges that share a size with another: each begins before the other ends."""
    by_low = sorted((low, number) for number, (low, _) in enumerate(ranges))
    by_high = sorted((-high, number) for number, (_, high) in enumerate(ranges))
    lows = [low for low, _ in by_low]
    highs = [high for high, _ in by_high]
    begun = list(accumulate((1 << number for _, number in by_low), or_, initial=0))
    not_over = list(accumulate((1 << number for _, number in by_high), or_, initial=0))

    def sharing(size: Range) -> int:
        low, high = size
        return begun[bisect_right(lows, high)] & not_over[bisect_right(highs, -low)]

    return sharing
