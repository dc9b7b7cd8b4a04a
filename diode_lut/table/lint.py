"""Rows that never answer, because more specific rows answer all of their problems.

A row's problems are boxes of sizes, one for each op, dtype, layout, align, epilogue and variant. As the problems in
more specific boxes must at least be as many as those in a box that they cover, nearly all boxes are found not to be
covered by counting. Any other box is cut, where the borders of the boxes in it are, until one box fills a piece, or
counting shows that the boxes do not cover it. ``Effort`` bounds the work.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, product, zip_longest
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from diode_lut.errors import TableError
from diode_lut.files import has_more_values
from diode_lut.problem import ALIGNS, BATCHED, DOMAINS, NO_EPILOGUE, SIZE_FIELDS, aligned_columns
from diode_lut.table.faults import Fault, JsonPath, broken_rules
from diode_lut.table.format import RowDecoder, canonical_bytes, decode_header, require_version
from diode_lut.table.read import Rows, located, parse, read_bytes
from diode_lut.table.row import Entry, Range, is_point, ops_of, places
from diode_lut.table.table import Effort, ExhaustedError, Neighbours, box, overlaps, repeats, shared_problem
from diode_lut.templates.architecture import Architecture, architecture
from diode_lut.templates.config import PADDED_OPS, Config, pad_multiple, templates_for
from diode_lut.templates.template import Complaint

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


MAX_VALUES = 10_000_000
"""In a file, for all of it to be parsed at once; a table of as many rows as are allowed has fewer."""


def written_twice(data: bytes) -> list[Fault]:
    """Each field that comes more than once, in a file that is valid JSON in UTF-8.

    None are found if it is nested too deeply, or has more than MAX_VALUES values: a table has neither.
    """
    with suppress(RecursionError):
        if has_more_values(data, MAX_VALUES):
            return []
        return [Fault("is written twice (only the last one counts)", *path) for path in _repeated_fields(data)]
    return []


def _repeated_fields(data: bytes) -> Iterator[JsonPath]:
    objects: list[_Object] = []

    def remember(pairs: list[tuple[str, Any]]) -> _Object:
        fields = _Object(pairs)
        if len(fields) < len(pairs):
            fields.repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
            objects.append(fields)
        return fields

    document = json.loads(data, object_pairs_hook=remember)
    if objects:
        yield from _walk(document, ())


class _Object(dict[str, Any]):
    """An object, and which of its fields were repeated."""

    repeated: list[str] = []  # noqa: RUF012 (never changed)


def _walk(value: Any, path: JsonPath) -> Iterator[JsonPath]:
    if isinstance(value, _Object):
        yield from ((*path, name) for name in value.repeated)
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield from _walk(inner, (*path, step))


def check_file(path: Path, contents: bytes | None = None) -> list[TableError]:
    """All that is wrong with the table in the file, in the order of its lines; nothing if it is good.

    ``contents`` are those of a file that is not on disk.
    """
    try:
        data = read_bytes(path) if contents is None else contents
        document = parse(path, data, MAX_VALUES)
        require_version(document)
        rows = document.get("entries")
        decoded = Rows(path)
        decoded.add_parsed(rows if isinstance(rows, list) else [])
        entries, broken = decoded.entries, decoded.faults
        of_schema = _of_schema(document, list(broken))
        of_meaning = list(_of_meaning(document, _numbered(entries, broken), list(broken)))
    except TableError as error:
        return [error]
    except Fault as fault:
        return located(path, data, [fault])
    except RecursionError:
        return located(path, data, [Fault("is nested too deeply to be a table")])
    said = {fault.field for fault in of_schema}
    more = [fault for fault in of_meaning if fault.field not in said]
    errors = located(path, data, [*of_schema, *more, *written_twice(data)])
    if not broken:
        errors += _of_form(path, data, document, entries)
    return sorted(errors, key=lambda error: (error.line or 0, error.column or 0))


def _numbered(entries: list[Entry], broken: Mapping[int, Fault]) -> dict[int, Entry]:
    """The good rows by their numbers in the file, where others stand between them."""
    count = len(entries) + len(broken)
    return dict(zip((number for number in range(count) if number not in broken), entries, strict=True))


def _of_schema(document: dict[str, Any], broken: list[int]) -> list[Fault]:
    """What the schema says. The rows that were decoded keep to it, so that only the others are held against it."""
    rows = document.get("entries")
    if not isinstance(rows, list):
        return broken_rules(document)
    faults = broken_rules({**document, "entries": [rows[number] for number in broken]})
    return [_renumbered(fault, broken) for fault in faults]


def _renumbered(fault: Fault, numbers: list[int]) -> Fault:
    """The fault of a row, with its number in the file instead of that in ``numbers``."""
    match fault.path:
        case ("entries", int(place), *inner):
            return Fault(fault.reason, "entries", numbers[place], *inner)
    return fault


def _of_meaning(document: dict[str, Any], good: dict[int, Entry], broken: list[int]) -> Iterator[Fault]:
    """What is wrong with the rows beyond the schema; of broken ones, as far as their fields can be read."""
    hardware = document.get("hardware")
    arch = hardware.get("arch") if isinstance(hardware, dict) else None
    arch = arch if isinstance(arch, str) else None
    for number in broken:
        row = document["entries"][number]
        if isinstance(row, dict):
            entry, faults = RowDecoder().readable(row)
            yield from (fault.inside("entries", number) for fault in (*faults, *useless(entry, arch)))
    for number, entry in good.items():
        yield from (fault.inside("entries", number) for fault in (*useless(entry, arch), *undecided(entry)))
    yield from contradictions(good)


def _of_form(path: Path, data: bytes, document: object, entries: list[Entry]) -> list[TableError]:
    """That the file is not in canonical form, with the first line that is not."""
    try:
        header = decode_header(document)
    except Fault:
        return []
    canonical = canonical_bytes(*header, entries)
    if canonical == data:
        return []
    lines = zip_longest(data.split(b"\n"), canonical.split(b"\n"))
    line = next(number for number, (found, wanted) in enumerate(lines, start=1) if found != wanted)
    return [TableError("is not in canonical form (fmt writes it so)", path=path, line=line, column=1)]


CONFLICT = "merge conflict: "
"""How the part of a note begins that ``merge`` wrote for people to decide."""


def useless(entry: Entry, arch: str | None) -> Iterator[Fault]:
    """What makes a row, or one of its configs, one that is never used; ``arch`` is what the table is for, if known."""
    yield from _never_asked(entry)
    yield from _unusable(entry)
    if arch is not None:
        yield from unlaunchable(entry, arch)


def undecided(entry: Entry) -> Iterator[Fault]:
    """That two sides of a merge said different things, and nobody has decided yet."""
    for part in (entry.note or "").split("; "):
        if part.startswith(CONFLICT):
            yield Fault(f"{part!r} is not decided (keep or change the row, and take this out of its note)", "note")


def contradictions(entries: Mapping[int, Entry]) -> Iterator[Fault]:
    """Which rows, given with their numbers, are never asked, or as specific as another row on the same problem.

    The work is bounded: a note says in how many rows it was not looked for.
    """
    reachable = {number: entry for number, entry in entries.items() if entry.volume > 0}
    covering, overlapping = Effort(), Effort()
    for number in unreachable(reachable, covering):
        yield Fault("is never used: more specific rows cover all of its problems", "entries", number)
    for number, first in repeats(reachable):
        yield Fault(f"has the same key as entries[{first}]", "entries", number)
    for number, other in overlaps(reachable, overlapping):
        shared = shared_problem(entries[number], entries[other])
        reason = f"covers {shared} with the same specificity as entries[{other}] (make one of them narrower)"
        yield Fault(reason, "entries", number)
    yield from _not_looked_for("rows that are never used", len(covering.undecided))
    yield from _not_looked_for("rows that cover a problem with the same specificity", len(overlapping.undecided))


def _not_looked_for(what: str, rows: int) -> Iterator[Fault]:
    if rows:
        reason = f"{what} were not looked for in {rows} rows: too many rows cover some of the same sizes"
        yield Fault(reason, "entries", note=True)


def _never_asked(entry: Entry) -> Iterator[Fault]:
    if entry.op is not None and entry.op not in BATCHED and not entry.covers_unbatched:
        yield Fault(f"{entry.op} has no batch, so that only a range from 1 is ever asked for", "b")


def _unusable(entry: Entry) -> Iterator[Fault]:
    for number, config in enumerate(entry.configs):
        ops = config.kernel.ops
        if entry.op is not None and entry.op not in ops:
            reason = f"{config.template} cannot do {entry.op} (it can do: {', '.join(ops)})"
            yield Fault(reason, "configs", number, "template")
        elif config.pad > 1:
            yield from (Fault(reason, "configs", number, "pad") for reason in _useless_padding(entry, config.pad))


def _useless_padding(entry: Entry, pad: int) -> Iterator[str]:
    """Why Inductor never pads for a row's config with this ``pad``."""
    if entry.op is not None and entry.op not in PADDED_OPS:
        yield f"Inductor does not pad {entry.op} (what it pads: {', '.join(PADDED_OPS)})"
        return
    if entry.epilogue not in (None, NO_EPILOGUE):
        yield "a kernel with an epilogue in it takes operands as they are"
        return
    ops = PADDED_OPS if entry.op is None else (entry.op,)
    dtypes = {dtype for op in ops for dtype in DOMAINS[op].dtypes if entry.dtype in (None, dtype)}
    multiples = set(map(pad_multiple, dtypes))
    if pad not in multiples:
        what = entry.dtype or "any dtype"
        yield f"Inductor does not pad {what} to multiples of {pad} ({_one_of(multiples)} is what it pads to)"
    sizes = entry.m, entry.n, entry.k
    if all(size is not None and is_point(size) and all(x == 1 or x % pad == 0 for x in size) for size in sizes):
        yield f"m, n and k are multiples of {pad} already, so that nothing is padded"


def _one_of(numbers: set[int]) -> str:
    return " or ".join(map(str, sorted(numbers)))


def unlaunchable(entry: Entry, arch: str) -> Iterator[Fault]:
    """What keeps configs of the row from being launched: the hook passes over these configs."""
    known = architecture(arch)
    for number, config in enumerate(entry.configs):
        for reason, field in _refusals(config, entry, known):
            yield Fault(reason, "configs", number, *([field] if field else []))


def launchable(entry: Entry, arch: str) -> Iterator[tuple[int, Config]]:
    """The configs of the row that nothing keeps from being launched, each with its number."""
    known = architecture(arch)
    for number, config in enumerate(entry.configs):
        if not any(True for _ in _refusals(config, entry, known)):
            yield number, config


def _refusals(config: Config, entry: Entry, known: Architecture) -> Iterator[Complaint]:
    if config.kernel.runs_on(known):
        yield from config.kernel.complaints(config.params, entry, known)
    else:
        others = ", ".join(templates_for(known, entry.op))
        yield Complaint(f"{config.template} does not run on {known.name} (what does: {others})", "template")
