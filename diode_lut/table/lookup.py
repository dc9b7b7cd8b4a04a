"""Lookups: the row for a problem, rows in contradiction, and rows that are never used.

The rows of a kind are sorted by ``specificity``, and all of their sizes are compared with a problem's at once. Rows for
exact sizes are in a dictionary.

In some tables it takes too long to compare all rows with each other, so this work is bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain, product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from diode_lut.problem import (
    ALIGNS,
    BATCHED,
    DOMAINS,
    MATMUL_SIZES,
    MATMULS,
    OP_SIZES,
    SIZE_FIELDS,
    Problem,
    aligned_columns,
)
from diode_lut.table.row import ABSENT, ANY, Entry, Range, box, canonical_order, coverage, ops_of, specificity

_Numbers = npt.NDArray[np.intp]

REMEMBERED = 1 << 14  # Number of remembered answers. A model has some hundred different GEMMs, and asks for each often


class Index:
    """Finds the most specific row for a problem. The rows of a kind are sorted when they are first needed."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._rows: dict[tuple[Any, ...], list[Entry]] = defaultdict(list)
        for entry in entries:
            self._rows[coverage(entry).kind].append(entry)
        self._shelves: dict[tuple[Any, ...], _Shelf] = {}
        self._matching = lru_cache(REMEMBERED)(self._shelves_matching)
        self.find = lru_cache(REMEMBERED)(self._find)
        self.borders = lru_cache(REMEMBERED)(self._borders)

    def _find(self, problem: Problem) -> Entry | None:
        """Return the first row, by ``specificity``, for the problem."""
        found = [
            row
            for n_align, shelf in self._matching(problem.kind)
            if (n_align is None or n_align == problem.n_align) and (row := shelf.find(problem)) is not None
        ]
        return found[0] if len(found) == 1 else min(found, key=specificity, default=None)

    def _borders(self, problem: Problem, fields: tuple[str, ...]) -> frozenset[int]:
        """Return the sizes in ``fields`` at which rows begin or end that cover the problem, but for these fields."""
        ends: dict[int, list[Entry]] = defaultdict(list)
        for _, shelf in self._matching(problem.kind):
            for row in shelf.near(problem, fields):
                for size in (size for name in fields for size in getattr(row, name) or ()):
                    ends[size].append(row)
        found = set()
        for size, rows in ends.items():
            changed: dict[str, Any] = dict.fromkeys(fields, size)
            there = problem._replace(**changed)
            if any(row.covers(there) for row in rows):
                found.add(size)
        return frozenset(found)

    def _shelves_matching(self, kind: tuple[Any, ...]) -> list[tuple[int | None, _Shelf]]:
        """Return the shelves of a problem's kind, each with the ``n_align`` of its rows."""
        op, *values = kind
        ops = (op, None) if op in MATMULS else (op,)
        found = []
        for pattern in product(ops, *((value, None) for value in values), (None, *ALIGNS)):
            if pattern in self._rows:
                if pattern not in self._shelves:
                    self._shelves[pattern] = _Shelf(self._rows[pattern])
                found.append((pattern[-1], self._shelves[pattern]))
        return found


class _Shelf:
    """The rows of a kind, the most specific first."""

    def __init__(self, rows: Sequence[Entry]) -> None:
        sorting = sorted((row.volume, canonical_order(row), number) for number, row in enumerate(rows))
        self._rows = [rows[number] for volume, _, number in sorting if volume]
        self._op = rows[0].op
        self._exact: dict[tuple[int, ...], int] = {}
        self._open: list[int] = []
        boxes = []
        for number, row in enumerate(self._rows):
            ranges = box(row)
            if all(low == high for low, high in ranges):
                self._exact.setdefault(tuple([low for low, _ in ranges[: len(row.sizes)]]), number)
            else:
                self._open.append(number)
                boxes.append(ranges)
        self._open_boxes = _Boxes(self._op, boxes)

    def find(self, problem: Problem) -> Entry | None:
        """Return the most specific row for a problem of this kind."""
        sizes = problem.sizes
        number = self._exact.get(sizes, len(self._rows))
        stop = bisect_left(self._open, number)
        if stop:
            places = self._open_boxes.meeting([(size, size) for size in sizes], stop)
            if len(places):
                number = self._open[places[0]]
        return self._rows[number] if number < len(self._rows) else None

    @cached_property
    def _boxes(self) -> _Boxes:
        return _Boxes(self._op, list(map(box, self._rows)))

    def near(self, problem: Problem, free: Collection[str]) -> Iterator[Entry]:
        """Return the rows for the problem with any values of the ``free`` sizes."""
        axes = [SIZE_FIELDS.index(name) for name in free]
        ranges = [(size, size) for size in problem.sizes]
        return (self._rows[number] for number in self._boxes.meeting(ranges, len(self._rows), axes))


class _Boxes:
    """The sizes of rows of an op, as arrays of their least and their largest values. Open sizes are left out."""

    def __init__(self, op: str | None, boxes: Sequence[tuple[Range, ...]]) -> None:
        numbers = np.fromiter(chain.from_iterable(chain.from_iterable(boxes)), np.int64)
        ends = numbers.reshape(len(boxes), len(SIZE_FIELDS), 2).transpose(1, 2, 0).copy()
        names = MATMUL_SIZES if op is None else OP_SIZES[op]
        least, most = ANY
        axes = [
            (axis, low, high)
            for axis, (name, (low, high)) in enumerate(zip(SIZE_FIELDS, ends, strict=True))
            if name in names and not ((low == least).all() and (high == most).all())
        ]
        self._axes = sorted(axes, key=lambda each: -len(np.unique(each[1])))  # those in which rows differ most first

    def meeting(self, ranges: Sequence[Range], stop: int, free: Collection[int] = ()) -> _Numbers:
        """Return the rows before ``stop`` with sizes in these ranges, by number. Free axes do not matter."""
        found: _Numbers | None = None
        for axis, low, high in self._axes:
            if axis not in free:
                least, most = ranges[axis]
                if found is None:
                    found = ((low[:stop] <= most) & (high[:stop] >= least)).nonzero()[0]
                else:
                    found = found[(low[found] <= most) & (high[found] >= least)]
                if not len(found):
                    break
        return np.arange(stop) if found is None else found


STEPS = 4_000_000  # of a table, each about a microsecond. 20,000 rows that do not overlap need a quarter at most
ROW_STEPS = 1_000_000  # steps for one row, so that a few rows do not use up the steps of all others
STEP_ROWS = 128  # number of rows that a step compares with another row
PART_STEPS = 16  # steps for each row that may cover some problems of a row
STEP_CELLS = 16  # number of cells, between borders of such rows, that a step looks at


class ExhaustedError(Exception):
    """The steps are used up. It never leaves the functions that compare rows."""


class Effort:
    """The steps that are ``left``, and the numbers of the ``undecided`` rows, for which they were too few."""

    def __init__(self, steps: int | None = None) -> None:
        self.left = STEPS if steps is None else steps
        self.undecided: set[int] = set()

    def spend(self, steps: int) -> None:
        """Use up some steps. ExhaustedError if there are too few, and then none are left."""
        self.left -= steps
        if self.left < 0:
            self.left = 0
            raise ExhaustedError

    def share(self) -> Effort:
        """Return steps for one row, to be given back with ``settle``."""
        return Effort(min(ROW_STEPS, self.left))

    def settle(self, share: Effort) -> None:
        """Take off the used steps of the share."""
        self.left -= min(ROW_STEPS, self.left) - share.left


class Neighbours:
    """Finds which of ``rows`` share a problem with another row. Making it takes 8 steps of the effort for each row."""

    def __init__(self, rows: Sequence[Entry], effort: Effort | None = None) -> None:
        if effort is not None:
            effort.spend(8 * len(rows))
        self._rows = rows
        self._numbers: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for number, row in enumerate(rows):
            self._numbers[coverage(row).kind].append(number)
        self._boxes: dict[tuple[Any, ...], _Boxes] = {}
        for kind, numbers in self._numbers.items():
            self._boxes[kind] = _Boxes(rows[numbers[0]].op, [box(rows[each]) for each in numbers])
        self._sharing: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}

    def of(self, entry: Entry, stop: int, effort: Effort | None = None) -> Iterator[int]:
        """Return the rows before ``stop`` that share a problem with the entry, by number. May raise ExhaustedError."""
        kind, ranges = coverage(entry)
        if kind not in self._sharing:
            if effort is not None:
                effort.spend(len(self._boxes))
            self._sharing[kind] = []
            _, *values = kind
            for other, numbers in self._numbers.items():
                _, *others = other
                alike = all(None in pair or len({*pair}) == 1 for pair in zip(values, others, strict=True))
                if alike and not set(ops_of(entry)).isdisjoint(ops_of(self._rows[numbers[0]])):
                    self._sharing[kind].append(other)
        found: list[int] = []
        (least_batch, _), *_ = ranges
        for other in self._sharing[kind]:
            op, *_ = other
            if op is not None and op not in BATCHED and least_batch > 1:
                continue
            numbers = self._numbers[other]
            end = bisect_left(numbers, stop)
            places = self._boxes[other].meeting(ranges, end)
            if effort is not None:
                effort.spend(1 + end // STEP_ROWS + len(places))
            found += [numbers[place] for place in places]
        return (number for number in sorted(found) if _shared_n(entry, self._rows[number]) is not None)


def _shared_n(one: Entry, other: Entry) -> int | None:
    """Return the least N of both rows, which share an op and a dtype. None if there is none."""
    (low, high), (other_low, other_high) = one.n or ANY, other.n or ANY
    low, high = max(low, other_low), min(high, other_high)
    narrow = one if one.n_align is not None else other
    if narrow.n_align is None or narrow.op is None or narrow.dtype is None:
        return low if low <= high else None
    if None not in (one.n_align, other.n_align) and one.n_align != other.n_align:
        return None
    columns = aligned_columns(narrow.op, narrow.dtype)
    near = range(low, min(high, low + columns) + 1)
    return next((n for n in near if (n % columns > 0) == (narrow.n_align == 2)), None)


def shared_problem(one: Entry, other: Entry) -> Problem:
    """Return a problem of both rows, which must share some. Heads come in whole groups, if the rows cover that."""
    pairs = zip(box(one), box(other), strict=True)
    b, m, _, k, h, g, v, *of_kernels = (max(low, other_low) for (low, _), (other_low, _) in pairs)
    n = _shared_n(one, other)
    assert n is not None
    multiple = -(-h // g) * g
    h = multiple if all(each.h is None or multiple <= each.h[1] for each in (one, other)) else h
    align = one.align or other.align or ALIGNS[0]
    named = [getattr(one, name) or getattr(other, name) for name in ("dtype", "layout", "epilogue", "variant")]
    for op in DOMAINS:
        if op in ops_of(one) and op in ops_of(other):
            kind = (value or first for value, (first, *_) in zip(named, DOMAINS[op], strict=True))
            dtype, layout, epilogue, variant = kind
            batch = b if op in BATCHED else 1
            problem = Problem(op, dtype, layout, align, batch, m, n, k, epilogue, variant, h, g, v, *of_kernels)
            if one.covers(problem) and other.covers(problem):
                return problem
    raise AssertionError("the rows share no problem")


def repeats(entries: Mapping[int, Entry]) -> Iterator[tuple[int, int]]:
    """Find rows with the key of an earlier row. Return the numbers of both."""
    first: dict[object, int] = {}
    for number, entry in entries.items():
        earlier = first.setdefault(coverage(entry), number)
        if earlier != number:
            yield number, earlier


def overlaps(entries: Mapping[int, Entry], effort: Effort | None = None) -> Iterator[tuple[int, int]]:
    """Find rows in contradiction with an earlier row. Return the numbers of both.

    Rows contradict each other if they share a problem and have the same volume. Of rows with the same key only the
    first counts. Rows become ``undecided`` if the effort is too little for them.
    """
    effort = effort or Effort()
    first = {coverage(entry): number for number, entry in reversed(list(entries.items()))}
    volumes: dict[int, list[int]] = defaultdict(list)
    for number in sorted(first.values()):
        volumes[entries[number].volume].append(number)
    for numbers in volumes.values():
        # Exact rows of the same volume and with different keys share no problem.
        if len(numbers) == 1 or all(entries[number].is_exact for number in numbers):
            continue
        place = 0
        try:
            neighbours = Neighbours([entries[number] for number in numbers], effort)
            for place, number in enumerate(numbers):
                earlier = next(neighbours.of(entries[number], place, effort), None)
                if earlier is not None:
                    yield number, numbers[earlier]
        except ExhaustedError:
            effort.undecided.update(numbers[place:])


def unreachable(
    entries: Mapping[int, Entry], effort: Effort | None = None, among: Collection[int] | None = None
) -> Iterator[int]:
    """Find rows that never answer, because more specific rows cover all of their problems.

    No row may be without problems. Only rows ``among`` these numbers are looked at, by default all. Rows become
    ``undecided``, and are not reported, if the effort is too little for them.
    """
    effort = effort or Effort()
    asked = set(entries if among is None else among)
    volumes = {number: entry.volume for number, entry in entries.items()}
    order = sorted(entries, key=volumes.__getitem__)
    sizes = [volumes[number] for number in order]
    rows = [entries[number] for number in order]
    found = set()
    try:
        neighbours = Neighbours(rows, effort)
    except ExhaustedError:
        effort.undecided |= asked
        return iter(())
    for row, size, number in zip(rows, sizes, order, strict=True):
        stop = bisect_left(sizes, size)
        if not stop or number not in asked:
            continue
        share = effort.share()
        try:
            narrower = list(neighbours.of(row, stop, share))
            # Counting is enough for nearly all rows. The count of a row with n_align is too high.
            enough = row.n_align is not None or sum(sizes[each] for each in narrower) >= size
            if enough and _is_covered(row, [rows[each] for each in narrower], share):
                found.add(number)
        except ExhaustedError:
            effort.undecided.add(number)
        effort.settle(share)
    return (number for number in entries if number in found)


def _is_covered(row: Entry, others: Sequence[Entry], effort: Effort) -> bool:
    """Return whether the others cover all problems of the row."""
    classes = ALIGNS if any(each.n_align is not None for each in (row, *others)) else (None,)
    for op in ops_of(row):
        for dtype, n_align in product(DOMAINS[op].dtypes if row.dtype is None else (row.dtype,), classes):
            whole = _part(row, op, dtype, n_align)
            if whole is not None:
                effort.spend(PART_STEPS * len(others))
                parts = (_part(other, op, dtype, n_align) for other in others)
                if not _fill(whole, [part for part in parts if part is not None], effort):
                    return False
    return True


def _part(row: Entry, op: str, dtype: str, n_align: int | None) -> list[Range] | None:
    """Return the problems of a row with this op, dtype and ``n_align`` (N by its place), as ranges, or None."""
    if op not in ops_of(row) or row.dtype not in (None, dtype) or row.n_align not in (None, n_align):
        return None
    b, m, (low, high), *more = box(row)
    if op not in BATCHED:
        if not row.covers_unbatched:
            return None
        b = ABSENT
    if n_align is not None:
        columns = aligned_columns(op, dtype)
        if n_align == 2:
            low, high = low - (low - 1) // columns, high - high // columns
        else:
            low, high = -(-low // columns), high // columns
        if low > high:
            return None
    _, layouts, epilogues, variants = DOMAINS[op]
    values = (row.layout, layouts), (row.align, ALIGNS), (row.epilogue, epilogues), (row.variant, variants)
    kinds = [(0, len(domain) - 1) if value is None else (domain.index(value),) * 2 for value, domain in values]
    return [*kinds, b, m, (low, high), *more]


def _fill(whole: Sequence[Range], parts: Sequence[Sequence[Range]], effort: Effort) -> bool:
    """Return whether the parts cover the whole. It is cut at all borders of parts, and each cell must lie in one."""
    low, high = np.array(whole, np.int64).T
    lows, highs = np.array(parts, np.int64).reshape(-1, len(whole), 2).transpose(2, 0, 1)
    lows, ends = np.maximum(lows, low), np.minimum(highs, high) + 1
    meeting = (lows < ends).all(axis=1)
    lows, ends = lows[meeting].T, ends[meeting].T
    cuts = [np.unique([least, most + 1, *lows[axis], *ends[axis]]) for axis, (least, most) in enumerate(whole)]
    cells = [len(cut) - 1 for cut in cuts]
    effort.spend(prod(cells) // STEP_CELLS)
    both = (zip(cuts, borders, strict=True) for borders in (lows, ends))
    first, after = (np.array([np.searchsorted(cut, border) for cut, border in pairs]) for pairs in both)
    effort.spend(int((after - first).astype(float).prod(axis=0).sum()) // STEP_CELLS)
    covered = np.zeros(cells, np.bool_)
    for part in zip(first.T, after.T, strict=True):
        covered[tuple(map(slice, *part))] = True
    return bool(covered.all())
