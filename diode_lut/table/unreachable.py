"""Rows that never answer, because more specific rows answer all of their problems.

A row's problems are boxes of sizes, one for each op, dtype, layout, align, epilogue and variant. As the problems in
more specific boxes must at least be as many as those in a box that they cover, nearly all boxes are found not to be
covered by counting. Any other box is cut, where the borders of the boxes in it are, until one box fills a piece, or
counting shows that the boxes do not cover it. ``Effort`` bounds the work.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, product
from math import prod
from typing import Any, NamedTuple

from diode_lut.domain.ops import ALIGNS, BATCHED, DOMAINS, SIZE_FIELDS
from diode_lut.domain.problem import aligned_columns
from diode_lut.table.entry import Entry, Range, ops_of
from diode_lut.table.overlap import Effort, ExhaustedError, Neighbours, box
from diode_lut.table.results import places

Kind = tuple[Any, ...]
"""op, dtype, layout, align, epilogue and variant of a problem."""

Box = tuple[Range, ...]
"""Sizes along SIZE_FIELDS."""

_N = SIZE_FIELDS.index("n")


class _Sized(NamedTuple):
    """A row, as one for the op of a kind and for any results, and its box."""

    row: Entry
    box: Box


def unreachable(
    entries: Mapping[int, Entry], effort: Effort | None = None, among: Collection[int] | None = None
) -> Iterator[int]:
    """The number of each row whose problems are all covered by more specific rows; no row may be without problems.

    Only rows whose number is in ``among`` are reported, by default any. Rows for which the effort is too little are
    not reported, and become ``undecided``.
    """
    effort = effort or Effort()
    asked = entries.keys() if among is None else among
    volumes = {number: entry.volume for number, entry in entries.items()}
    reachable: set[int] = set()
    unknown: set[int] = set()
    try:
        for (op, dtype, *_), numbers in _by_kind(entries, volumes, asked, effort).items():
            for rows in _by_results({number: entries[number] for number in numbers}, op, dtype):
                _look_at(rows, volumes, asked, reachable, unknown, effort)
    except ExhaustedError:
        unknown.update(asked)
    effort.undecided |= unknown - reachable
    answering = reachable | effort.undecided
    return (number for number in entries if number in asked and number not in answering)


def _by_kind(
    entries: Mapping[int, Entry], volumes: Mapping[int, int], asked: Collection[int], effort: Effort
) -> Mapping[Kind, list[int]]:
    """The rows of each kind that a row in ``asked`` has, in order of volume."""
    domains = _domains(entries.values())
    of_kind: dict[Kind, list[int]] = {kind: [] for number in asked for kind in _kinds(entries[number], domains)}
    for number in sorted(volumes, key=volumes.__getitem__):
        kinds = list(_kinds(entries[number], domains))
        effort.spend(len(kinds))
        for kind in kinds:
            if kind in of_kind:
                of_kind[kind].append(number)
    return of_kind


_Domains = Mapping[str, tuple[tuple[Any, ...], ...]]
"""By op, the dtypes, layouts, aligns, epilogues and variants of problems."""


def _domains(entries: Iterable[Entry]) -> _Domains:
    """Of epilogues and variants those that rows name, and one other, which the same rows answer as all others."""
    epilogues: set[object] = set()
    variants: set[object] = set()
    for entry in entries:
        epilogues.add(entry.epilogue)
        variants.add(entry.variant)
    return {
        op: (
            of.dtypes,
            of.layouts,
            ALIGNS,
            _named_and_another(of.epilogues, epilogues),
            _named_and_another(of.variants, variants),
        )
        for op, of in DOMAINS.items()
    }


def _named_and_another(domain: tuple[str, ...], named: Collection[object]) -> tuple[str, ...]:
    others = [value for value in domain if value not in named]
    return (*(value for value in domain if value in named), *others[:1])


def _kinds(entry: Entry, domains: _Domains) -> Iterator[Kind]:
    """The op, dtype, layout, align, epilogue and variant of all the entry's problems, with those of ``domains``."""
    _, *values = entry.kind
    for op in ops_of(entry.kind):
        if entry.covers_unbatched or op in BATCHED:
            choices = (every if value is None else (value,) for every, value in zip(domains[op], values, strict=True))
            yield from product((op,), *choices)


def _by_results(rows: Mapping[int, Entry], op: str, dtype: str) -> Iterator[dict[int, _Sized]]:
    """The rows of a kind; where some are for aligned results only, or for others, the rows for either, apart.

    Of these, boxes have the places of N among aligned ones, or among others.
    """
    any_result = {number: row._replace(op=op, problems=None) for number, row in rows.items()}
    sized = {number: _Sized(row, box(row)) for number, row in any_result.items()}
    if all(row.aligned_results is None for row in rows.values()):
        yield sized
        return
    for aligned in (True, False):
        part = {}
        for number, (row, sizes) in sized.items():
            found = places(sizes[_N], aligned, aligned_columns(op, dtype))
            if found is not None and rows[number].aligned_results in (None, aligned):
                part[number] = _Sized(row, (*sizes[:_N], found, *sizes[_N + 1 :]))
        yield part


def _look_at(
    rows: Mapping[int, _Sized],
    volumes: Mapping[int, int],
    asked: Collection[int],
    reachable: set[int],
    unknown: set[int],
    effort: Effort,
) -> None:
    """Sort the rows, of one kind and in order of volume, into those that answer a problem of it and the unknown."""
    boxes = [sizes for _, sizes in rows.values()]
    sums = list(accumulate(map(_size, boxes), initial=0))
    sizes = [volumes[number] for number in rows]
    neighbours: Neighbours | None = None
    for place, (number, (row, _)) in enumerate(rows.items()):
        if number not in asked or number in reachable:
            continue
        narrower = bisect_left(sizes, sizes[place])
        if sums[narrower] < _size(boxes[place]):
            reachable.add(number)
            continue
        neighbours = neighbours or Neighbours([row for row, _ in rows.values()], effort)
        share = effort.share()
        try:
            if not _covered(boxes[place], [boxes[at] for at in neighbours.of(row, narrower, share)], share):
                reachable.add(number)
        except ExhaustedError:
            unknown.add(number)
        effort.settle(share)


def _covered(whole: Box, boxes: Sequence[Box], effort: Effort) -> bool:
    """Whether every point of ``whole`` is in one of the boxes."""
    pieces = [(whole, boxes)]
    while pieces:
        piece, others = pieces.pop()
        effort.spend(2 * len(others) + 1)
        parts = list({part for other in others if (part := _common(piece, other)) is not None})
        if piece in parts:
            continue
        if sum(map(_size, parts)) < _size(piece):
            return False
        largest = max(parts, key=_size)
        rest = _around(largest, piece) if 16 * _size(largest) >= _size(piece) else _halves(piece, parts)
        pieces += ((one, parts) for one in rest)
    return True


def _common(one: Box, other: Box) -> Box | None:
    sides = []
    for (low, high), (other_low, other_high) in zip(one, other, strict=True):
        lowest, highest = low if low > other_low else other_low, high if high < other_high else other_high
        if lowest > highest:
            return None
        sides.append((lowest, highest))
    return tuple(sides)


def _size(sides: Box) -> int:
    return prod(high - low + 1 for low, high in sides)


def _around(part: Box, whole: Box) -> Iterator[Box]:
    """``whole`` without ``part``, which is in it, in pieces."""
    for axis, ((low, high), (lowest, highest)) in enumerate(zip(part, whole, strict=True)):
        for start, end in ((lowest, low - 1), (high + 1, highest)):
            if start <= end:
                yield (*part[:axis], (start, end), *whole[axis + 1 :])


def _halves(piece: Box, parts: Iterable[Box]) -> tuple[Box, Box]:
    """The piece cut along the axis with most borders of parts, at the middle one; no part may be all of the piece."""
    borders: dict[int, Counter[int]] = defaultdict(Counter)
    for part in parts:
        for axis, (low, high) in enumerate(part):
            lowest, highest = piece[axis]
            if low > lowest:
                borders[axis][low] += 1
            if high < highest:
                borders[axis][high + 1] += 1
    axis = max(borders, key=lambda axis: borders[axis].total())
    places = sorted(borders[axis].elements())
    cut, (lowest, highest) = places[len(places) // 2], piece[axis]
    lower, upper = ((*piece[:axis], side, *piece[axis + 1 :]) for side in ((lowest, cut - 1), (cut, highest)))
    return lower, upper
