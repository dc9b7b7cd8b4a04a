"""Finding everything that is wrong with a table file: what its JSON Schema says, what only meaning shows, its form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from diode_lut.errors import TableError
from diode_lut.table.canonical import canonical_bytes
from diode_lut.table.decode import decode_header, decode_readable, decode_version
from diode_lut.table.duplicates import MAX_VALUES, written_twice
from diode_lut.table.entry import Entry
from diode_lut.table.fault import Fault
from diode_lut.table.read import Rows, located, parse, read_bytes
from diode_lut.table.rules import contradictions, undecided, useless
from diode_lut.table.schema import broken_rules


def check_file(path: Path) -> list[TableError]:
    """All that is wrong with the table in the file, in the order of its lines; nothing if it is good."""
    try:
        data = read_bytes(path)
        document = parse(path, data, MAX_VALUES)
        decode_version(document)
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
    said = {fault.path[:3] for fault in of_schema}
    more = [fault for fault in of_meaning if fault.path[:3] not in said]
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
    if fault.path[:1] != ("entries",):
        return fault
    number = numbers[int(fault.path[1])]
    return Fault(fault.reason, "entries", number, *fault.path[2:])


def _of_meaning(document: dict[str, Any], good: dict[int, Entry], broken: list[int]) -> Iterator[Fault]:
    """What is wrong with the rows beyond the schema; of broken ones, as far as their fields can be read."""
    hardware = document.get("hardware")
    arch = hardware.get("arch") if isinstance(hardware, dict) else None
    arch = arch if isinstance(arch, str) else None
    for number in broken:
        row = document["entries"][number]
        if isinstance(row, dict):
            entry, faults = decode_readable(row)
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
