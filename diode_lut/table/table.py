"""Rows that cover the same problems, found with bounded work."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, reduce
from itertools import accumulate
from operator import or_
from pathlib import Path
from typing import Any, NamedTuple

from diode_lut.errors import TableError, as_lines
from diode_lut.files import read_at_most, write_atomically
from diode_lut.hardware import Hardware
from diode_lut.problem import (
    ALIGNS,
    ATTENTION,
    ATTENTION_ONLY,
    BATCHED,
    DOMAINS,
    MATMULS,
    MAX_SIZE,
    OP_SIZES,
    SIZE_FIELDS,
    Problem,
)
from diode_lut.table.faults import Landmark, Positions, line_of_row
from diode_lut.table.format import (
    SCHEMA,
    SCHEMA_NAME,
    candidate_text,
    canonical_bytes,
    canonical_order,
    key_text,
)
from diode_lut.table.row import KIND_FIELDS, Entry, Range, Results, is_point, ops_of

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


Kind = tuple[str | int | None, ...]
"""op, dtype, layout, align, epilogue and variant: of a problem, or of an entry, where None matches anything."""

MASK_ROWS = 256
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
                Block.of(found[start : start + MASK_ROWS], places, free) for start in range(0, len(found), MASK_ROWS)
            ]
            for sizes, found in by_sizes.items()
        }
        for places, by_sizes in groups.items()
    }


MAX_BYTES = 64 << 20
"""That the file of a table may have."""

Provenance = Mapping[str, str | list[str]]
"""Where a table comes from: versions, dates and the digests of datasets, by name."""


class Table:
    """Rows for one kind of hardware; read-only.

    ``path`` is the file it was read from, ``errors`` are the rows of that file that were skipped (``skipped`` holds
    their numbers, upwards), ``landmarks`` some rows whose place in it is known, ``digest`` is the SHA-256 of the
    file's bytes in hexadecimal, ``schema`` its ``$schema``. A table made in memory has the digest of its
    canonical form. Two tables are equal if they have the same rows, hardware and provenance, in any order of rows.
    """

    def __init__(
        self,
        hardware: Hardware,
        entries: Iterable[Entry],
        provenance: Provenance | None = None,
        *,
        schema: str = SCHEMA,
        path: Path | None = None,
        digest: str | None = None,
        errors: Sequence[TableError] = (),
        skipped: Sequence[int] = (),
        landmarks: Sequence[Landmark] = (),
    ) -> None:
        self.hardware = hardware
        self.entries: tuple[Entry, ...] = tuple(entries)
        self.provenance: Provenance = provenance or {}
        self.schema = schema
        self.path = path
        self.errors = tuple(errors)
        self._skipped = tuple(skipped)
        self._landmarks = tuple(landmarks)
        if digest is not None:
            self.digest = digest

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file that the table was read from, or of its canonical form, in hexadecimal."""
        return self.canonical_digest()

    def canonical_digest(self) -> str:
        """SHA-256 of the canonical form, in hexadecimal: that of the file if and only if the file has this form."""
        return hashlib.sha256(self._canonical()).hexdigest()

    def lookup(self, problem: Problem) -> Entry | None:
        """The most specific entry that covers the problem: the first of ``covering``, but fast."""
        return self._index.find(problem)

    def covering(self, problem: Problem) -> list[Entry]:
        """All entries that cover the problem, the most specific first; among equals, in canonical order."""
        covering = [entry for entry in self.entries if entry.covers(problem)]
        return sorted(covering, key=lambda entry: (entry.volume, canonical_order(entry)))

    def borders(self, problem: Problem, fields: Sequence[str]) -> frozenset[int]:
        """The sizes in ``fields`` at which rows begin or end that cover the problem, but for these fields."""
        return self._index.borders(problem, tuple(fields))

    def line_of(self, entry: Entry) -> int | None:
        """The line where the entry begins in ``path``; None for other entries, and if the file has changed since."""
        data = self._unchanged() if entry in self.entries else None
        if data is None:
            return None
        row = list(self.numbered)[self.entries.index(entry)]
        return line_of_row(data, row, self._landmarks)

    def lines(self, data: bytes | None = None) -> list[int | None]:
        """The line of each entry, as ``line_of`` says it, but all at once.

        ``data`` is what the table was read from; by default the file is read again.
        """
        data = self._unchanged() if data is None else data
        if data is None:
            return [None] * len(self.entries)
        positions = Positions(data)
        return [positions.place(("entries", row)).line for row in self.numbered]

    def _unchanged(self) -> bytes | None:
        """What is in ``path``; None if that is not what the table was read from."""
        if self.path is None:
            return None
        try:
            data = read_at_most(self.path, MAX_BYTES)
        except OSError:
            return None
        return data if hashlib.sha256(data).hexdigest() == self.digest else None

    @cached_property
    def numbered(self) -> Mapping[int, Entry]:
        """The entries with their numbers in ``path``, upwards; rows that were skipped count too."""
        skipped = set(self._skipped)
        numbers = (number for number in range(len(self.entries) + len(skipped)) if number not in skipped)
        return dict(zip(numbers, self.entries, strict=True))

    @cached_property
    def _index(self) -> Index:
        return Index(self.entries)

    def _canonical(self) -> bytes:
        return canonical_bytes(self.schema, self.hardware, self.provenance, self.entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self._canonical() == other._canonical()

    def with_schema(self, schema: str) -> Table:
        """The same table, whose ``$schema`` says this; it is no longer what its file holds."""
        return Table(self.hardware, self.entries, self.provenance, schema=schema, path=self.path)

    def __hash__(self) -> int:
        return hash(self.hardware)

    def __repr__(self) -> str:
        return f"<Table for {self.hardware}: {len(self.entries)} entries, {self.path or 'in memory'}>"


def to_bytes(table: Table) -> bytes:
    """The table in canonical form: equal tables give equal bytes."""
    return canonical_bytes(table.schema, table.hardware, table.provenance, table.entries)


def write_table(table: Table, path: Path) -> None:
    """Replace the file with the table in canonical form, atomically; OSError leaves the old file as it was."""
    write_atomically(path, to_bytes(table))


def placed(table: Table, path: Path) -> Table:
    """The table for this file: with the schema's name, if its ``$schema`` is the default, and leads nowhere from it."""
    leads_nowhere = table.schema == SCHEMA and not (path.parent / table.schema).is_file()
    return table.with_schema(SCHEMA_NAME) if leads_nowhere else table


def as_text(table: Table) -> str:
    """The same for equal tables, whatever the order of their rows; rows that are invalid come last, with the reason."""
    lines = [str(table.hardware)]
    lines += [f"also called {alias}" for alias in table.hardware.aliases]
    lines += [f"{name}: {_listed(value)}" for name, value in table.provenance.items()]
    lines += [line for entry in sorted(table.entries, key=canonical_order) for line in _row(entry)]
    lines += [f"invalid: {error.where}: {error.reason}" for error in table.errors]
    return as_lines(lines)


def _row(entry: Entry) -> Iterator[str]:
    yield key_text(entry)
    yield from (f"  {candidate_text(candidate)}" for candidate in entry.candidates)
    if entry.problems is not None:
        yield f"  measured problems: {entry.problems}"
    if entry.note is not None:
        yield f"  note: {entry.note}"


def _listed(value: str | list[str]) -> str:
    return value if isinstance(value, str) else ", ".join(value)
