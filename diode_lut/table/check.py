"""Everything that is wrong with a table, and remarks on what may be."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from diode_lut.domain.errors import TableError
from diode_lut.domain.ops import BATCHED, DOMAINS, NO_EPILOGUE
from diode_lut.io.files import has_more_values
from diode_lut.kernels.architecture import Architecture, architecture
from diode_lut.kernels.config import Config
from diode_lut.kernels.padding import PADDED_OPS, pad_multiple
from diode_lut.kernels.registry import templates_for
from diode_lut.kernels.template import Complaint
from diode_lut.table.canonical import canonical_bytes
from diode_lut.table.entry import Entry, is_point
from diode_lut.table.header import decode_header, decode_version
from diode_lut.table.overlap import Effort, overlaps, repeats, shared_problem
from diode_lut.table.position import Fault, JsonPath
from diode_lut.table.read import Rows, located, parse, read_bytes
from diode_lut.table.schema import broken_rules
from diode_lut.table.unreachable import unreachable
from diode_lut.table.wire import decode_readable

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
        version = decode_version(document)
        rows = document.get("entries")
        decoded = Rows(path, version)
        decoded.add_parsed(rows if isinstance(rows, list) else [])
        entries, broken = decoded.entries, decoded.faults
        of_schema = _of_schema(document, version, list(broken))
        of_meaning = list(_of_meaning(document, version, _numbered(entries, broken), list(broken)))
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


def _of_schema(document: dict[str, Any], version: int, broken: list[int]) -> list[Fault]:
    """What the schema says. The rows that were decoded keep to it, so that only the others are held against it."""
    rows = document.get("entries")
    if not isinstance(rows, list):
        return broken_rules(document, version)
    faults = broken_rules({**document, "entries": [rows[number] for number in broken]}, version)
    return [_renumbered(fault, broken) for fault in faults]


def _renumbered(fault: Fault, numbers: list[int]) -> Fault:
    """The fault of a row, with its number in the file instead of that in ``numbers``."""
    match fault.path:
        case ("entries", int(place), *inner):
            return Fault(fault.reason, "entries", numbers[place], *inner)
    return fault


def _of_meaning(document: dict[str, Any], version: int, good: dict[int, Entry], broken: list[int]) -> Iterator[Fault]:
    """What is wrong with the rows beyond the schema; of broken ones, as far as their fields can be read."""
    hardware = document.get("hardware")
    arch = hardware.get("arch") if isinstance(hardware, dict) else None
    arch = arch if isinstance(arch, str) else None
    for number in broken:
        row = document["entries"][number]
        if isinstance(row, dict):
            entry, faults = decode_readable(row, version)
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
