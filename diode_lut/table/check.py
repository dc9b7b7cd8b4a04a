"""Finding everything that is wrong with a table file: first what its JSON Schema says, then what only meaning shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from diode_lut.errors import TableError
from diode_lut.resources import schemas_directory
from diode_lut.table.decode import ENTRY, decode_version
from diode_lut.table.duplicates import repeated_fields
from diode_lut.table.entry import Entry
from diode_lut.table.fault import Fault, missing_field, shown, unknown_field
from diode_lut.table.read import located, parse, read_bytes
from diode_lut.table.rules import contradictions, useless

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator, ValidationError


def check_file(path: Path) -> list[TableError]:
    """All that is wrong with the table in the file, in the order of its lines; nothing if it is good."""
    try:
        data = read_bytes(path)
        document = parse(path, data)
    except TableError as error:
        return [error]
    errors = located(path, data, _faults(data, document))
    return sorted(errors, key=lambda error: error.line or 0)


@cache
def table_validator() -> Draft202012Validator:
    """What checks a parsed table against the JSON Schema."""
    from jsonschema import Draft202012Validator

    return Draft202012Validator(orjson.loads((schemas_directory() / "table.v1.schema.json").read_bytes()))


def _faults(data: bytes, document: Any) -> list[Fault]:
    """All that is wrong with a parsed table; only its version, if that is not ours."""
    try:
        decode_version(document)
        faults = [fault for error in table_validator().iter_errors(document) for fault in _of_schema(error)]
    except Fault as fault:
        return [fault]
    except RecursionError:
        return [Fault("is nested too deeply to be a table")]
    rows = document.get("entries")
    if isinstance(rows, list):
        faults += _of_meaning(rows, faults)
    with suppress(RecursionError):
        faults += [Fault("is written twice (only the last one counts)", *path) for path in repeated_fields(data)]
    return faults


def _of_meaning(rows: list[Any], of_schema: list[Fault]) -> list[Fault]:
    """What is wrong with the rows, where the schema finds nothing."""
    wrong_fields = {fault.path[:3] for fault in of_schema}
    wrong_rows = {fault.path[:2] for fault in of_schema}
    faults: list[Fault] = []
    good: dict[int, Entry] = {}
    for number, row in enumerate(rows):
        if isinstance(row, dict):
            entry, broken = _readable(row)
            found = [fault.inside("entries", number) for fault in (*broken, *useless(entry))]
            faults += [fault for fault in found if fault.path[:3] not in wrong_fields]
            if not broken and ("entries", number) not in wrong_rows:
                good[number] = entry
    return [*faults, *contradictions(good)]


def _readable(row: dict[str, Any]) -> tuple[Entry, list[Fault]]:
    """The entry that the row's valid fields make, and what is wrong with the others."""
    faults: list[Fault] = []
    fields: dict[str, Any] = {"configs": ()}
    for name in filter(row.__contains__, ENTRY):
        try:
            fields[name] = ENTRY[name](row[name])
        except Fault as fault:  # noqa: PERF203 (each field is tried)
            faults.append(fault.inside(name))
    return Entry._make(map(fields.get, ENTRY)), faults


def _of_schema(error: ValidationError) -> Iterator[Fault]:
    """What jsonschema found, in our words. A field that is missing or unknown is a fault of that field."""
    path, found, expected = error.absolute_path, error.instance, error.validator_value
    if error.validator == "required":
        # jsonschema reports each missing field on its own, and names it only in the message.
        names = [name for name in expected if error.message.startswith(repr(name))]
        yield from (Fault(missing_field(expected), *path, name) for name in names)
    elif error.validator == "additionalProperties":
        known = error.schema["properties"]
        yield from (Fault(unknown_field(known), *path, name) for name in found if name not in known)
    else:
        yield Fault(_REASONS[str(error.validator)](found, expected), *path)


_REASONS: dict[str, Callable[[Any, Any], str]] = {
    "const": lambda found, expected: f"expected {expected}, found {shown(found)}",
    "enum": lambda found, expected: f"{shown(found)} is not allowed (allowed: {', '.join(map(str, expected))})",
    "type": lambda found, expected: f"{shown(found)} is not of type {expected}",
    "minimum": lambda found, expected: f"{shown(found)} is too small (allowed: from {expected})",
    "maximum": lambda found, expected: f"{shown(found)} is too large (allowed: up to {expected})",
    "minItems": lambda found, expected: f"{shown(found)} has too few elements (allowed: from {expected})",
    "maxItems": lambda found, expected: f"{shown(found)} has too many elements (allowed: up to {expected})",
    "minLength": lambda found, expected: f"{shown(found)} is too short (allowed: from {expected} characters)",
}
"""What to say, for each keyword of the schema, about a value that breaks it."""
