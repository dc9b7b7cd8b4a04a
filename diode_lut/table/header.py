"""The header of a table's JSON: its version, the hardware, and where the table comes from."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType, ValidationError, defstruct, field

from diode_lut.domain.hardware import Hardware
from diode_lut.domain.ops import MAX_SIZE
from diode_lut.table.canonical import PROVENANCE, SCHEMA_VERSION, SCHEMAS, VERSIONS
from diode_lut.table.position import Fault, shown
from diode_lut.table.schema import first_broken_rule


class TableHeader(NamedTuple):
    """All of a table but its entries."""

    version: int
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
    schema: str | UnsetType = field(default=UNSET, name="$schema")


def decode_header(document: object) -> TableHeader:
    """The header of a table, without its entries; Fault names the first thing that is wrong.

    The version comes first, because a file of another version is not wrong in any other way.
    """
    version = decode_version(document)
    try:
        head = msgspec.convert(whole(document, 2), _Head)
        msgspec.convert(head.provenance, _Provenance)
    except ValidationError as error:
        raise first_broken_rule(document, str(error), version) from None
    hardware = Hardware(*msgspec.structs.astuple(head.hardware))
    schema = SCHEMAS[version] if isinstance(head.schema, UnsetType) else head.schema
    return TableHeader(version, schema, hardware, head.provenance)


def decode_version(document: object) -> int:
    """The version of the table, one of VERSIONS; Fault if it is another, or this is no table."""
    if not isinstance(document, dict):
        raise Fault(f"{shown(document)} is not a table (a table is an object)")
    expected = " or ".join(map(str, VERSIONS))
    if "schema_version" not in document:
        raise Fault(f"is missing, so this is not a table (expected {expected})", "schema_version")
    found = document["schema_version"]
    if isinstance(found, bool) or found not in VERSIONS:
        newer = isinstance(found, int) and found > SCHEMA_VERSION
        remedy = " (written by a newer diode_lut: upgrade)" if newer else ""
        raise Fault(f"expected {expected}, found {shown(found)}{remedy}", "schema_version")
    return int(found)


def whole(value: Any, depth: int) -> Any:
    """The value, with numbers without a fraction as integers, as far down as numbers can be."""
    if type(value) is float and value.is_integer():
        return int(value)
    if depth and isinstance(value, list):
        return [whole(item, depth - 1) for item in value]
    if depth and isinstance(value, dict):
        return {name: whole(item, depth - 1) for name, item in value.items()}
    return value
