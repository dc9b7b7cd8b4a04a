"""From parsed JSON to values, one at a time, and what is wrong with what is no such value.

The types of ``wire`` decide what is valid; what to say about the rest comes from the JSON Schema. As there, a number
without a fraction is an integer however it is written, and a boolean is not a number.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, ValidationError, defstruct, field

from diode_lut.problem import MAX_SIZE, Hardware
from diode_lut.table.canonical import PROVENANCE, SCHEMA, SCHEMA_VERSION
from diode_lut.table.entry import Entry
from diode_lut.table.fault import Fault, shown
from diode_lut.table.schema import first_broken_rule
from diode_lut.table.wire import FIELDS, Meaning, Row, reversed_ranges

_DEPTH = 3
"""How far inside a row there are numbers: in an object of a list of a field."""


class Header(NamedTuple):
    """All of a table but its entries."""

    schema: str
    hardware: Hardware
    provenance: dict[str, str | list[str]]


_NAME = Annotated[str, Meta(min_length=1)]


class _Hardware(msgspec.Struct, forbid_unknown_fields=True):
    name: _NAME
    arch: _NAME
    sm_count: Annotated[int, Meta(ge=1, le=MAX_SIZE)]
    aliases: tuple[str, ...] = ()


_Provenance: Any = defstruct(
    "_Provenance",
    [(name, list[str] if name == "datasets" else str, None) for name in PROVENANCE],
    forbid_unknown_fields=True,
)


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    schema_version: Any
    hardware: _Hardware
    entries: list[Any]
    provenance: dict[str, Any] = {}
    schema: str = field(default=SCHEMA, name="$schema")


def decode_header(document: object) -> Header:
    """The header of a table, without its entries; Fault names the first thing that is wrong.

    The version comes first, because a file of another version is not wrong in any other way.
    """
    decode_version(document)
    try:
        head = msgspec.convert(_whole(document, 2), _Head)
        msgspec.convert(head.provenance, _Provenance)
    except ValidationError as error:
        raise first_broken_rule(document, str(error)) from None
    hardware = Hardware(*msgspec.structs.astuple(head.hardware))
    return Header(head.schema, hardware, head.provenance)


def decode_version(document: object) -> None:
    """Nothing, if this is a table of the version that we read; otherwise Fault."""
    if not isinstance(document, dict):
        raise Fault(f"{shown(document)} is not a table (a table is an object)")
    if "schema_version" not in document:
        raise Fault(f"is missing, so this is not a table (expected {SCHEMA_VERSION})", "schema_version")
    found = document["schema_version"]
    if isinstance(found, bool) or found != SCHEMA_VERSION:
        newer = isinstance(found, int) and found > SCHEMA_VERSION
        remedy = " (written by a newer diode_lut: upgrade)" if newer else ""
        raise Fault(f"expected {SCHEMA_VERSION}, found {shown(found)}{remedy}", "schema_version")


def decode_entry(row: object, meaning: Meaning | None = None, *, explain: bool = True) -> Entry:
    """The entry of a row; Fault names the first thing that is wrong with it, unless ``explain`` is False."""
    try:
        decoded = msgspec.convert(row, Row)
    except ValidationError:
        try:
            decoded = msgspec.convert(_whole(row, _DEPTH), Row)
        except ValidationError as error:
            raise first_broken_rule(row, str(error), part="entry") if explain else Fault(str(error)) from None
    entry = (meaning or Meaning()).entry(decoded)
    if any("\ud800" <= letter <= "\udfff" for letter in entry.note or ""):
        raise Fault(f"{shown(entry.note)} is not Unicode (a lone surrogate cannot be written)", "note")
    return entry


def decode_readable(row: dict[str, Any]) -> tuple[Entry, list[Fault]]:
    """The entry that the fields of a bad row make which are good, and what is wrong with these besides their types."""
    fields: dict[str, Any] = {"configs": ()}
    faults: list[Fault] = []
    for name in filter(row.__contains__, FIELDS):
        with suppress(ValidationError):
            fields[name] = msgspec.convert(_whole(row[name], _DEPTH - 1), FIELDS[name])
    try:
        fields["configs"] = Meaning().candidates(fields["configs"])
    except Fault as fault:
        fields["configs"] = ()
        faults.append(fault)
    entry = Entry._make(map(fields.get, FIELDS))
    return entry, [*faults, *reversed_ranges(entry)]


def _whole(value: Any, depth: int) -> Any:
    """The value, with numbers without a fraction as integers, as far down as numbers can be."""
    if type(value) is float and value.is_integer():
        return int(value)
    if depth and isinstance(value, list):
        return [_whole(item, depth - 1) for item in value]
    if depth and isinstance(value, dict):
        return {name: _whole(item, depth - 1) for name, item in value.items()}
    return value
