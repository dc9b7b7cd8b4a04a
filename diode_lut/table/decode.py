"""From parsed JSON to values: the one definition of what a table may hold.

The JSON Schema says the same, and a test compares the two. As in JSON Schema, a number without a fraction is an
integer however it is written, and a boolean is not a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from diode_lut.errors import ProblemError
from diode_lut.problem import ALIGNS, DTYPES, LAYOUTS, MAX_SIZE, OPS, Config, Hardware
from diode_lut.table.canonical import PROVENANCE, SCHEMA, SCHEMA_VERSION
from diode_lut.table.entry import Candidate, Entry, Range
from diode_lut.table.fault import Fault, missing_field, shown, unknown_field

Decoder = Callable[[Any], Any]

MAX_ENTRIES = 200_000
MAX_CONFIGS = 4096
"""Of one row: more than any search tries on a problem, far more than a row needs."""


class Header(NamedTuple):
    """All of a table but its entries."""

    schema: str
    hardware: Hardware
    provenance: dict[str, str | list[str]]


def decode_header(document: object) -> Header:
    """The header of a table, without its entries; Fault names the first thing that is wrong.

    The version comes first, because a file of another version is not wrong in any other way.
    """
    decode_version(document)
    fields = _object(document, _HEADER, required=("hardware", "entries"))
    return Header(fields.get("$schema", SCHEMA), fields["hardware"], fields.get("provenance", {}))


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


def decode_entry(row: object) -> Entry:
    """The entry of a row; Fault names the first thing that is wrong with it."""
    fields = _object(row, ENTRY, required=("configs",))
    return Entry._make(map(fields.get, ENTRY))


def decode_range(value: Any, size: Decoder) -> Range:
    """The range of ``[lowest, highest]``, both decoded by ``size``; Fault says what is wrong with it."""
    if type(value) is not list or len(value) != 2:
        raise Fault(f"{shown(value)} is not [lowest, highest]")
    sizes = size(value[0]), size(value[1])
    if sizes[0] > sizes[1]:
        raise Fault(f"{shown(value)} ends before it begins (allowed: [lowest, highest])")
    return sizes


def decode_config(fields: Mapping[str, Any]) -> Config:
    """The config; Fault names the first thing that is wrong with it."""
    for name, value in fields.items():
        if isinstance(value, (dict, list)):
            raise Fault(f"{shown(value)} is not a number or a name", name)
    try:
        return Config.from_json({name: _whole(value) for name, value in fields.items()})
    except ProblemError as error:
        name, _, reason = str(error).partition(": ")
        raise Fault(reason, name) from None


def repeated(candidates: Sequence[Candidate]) -> int | None:
    """The number of the first candidate whose config an earlier one has too; gains do not matter."""
    if len({candidate[0] for candidate in candidates}) == len(candidates):
        return None
    first: dict[Config, int] = {}
    places = enumerate(candidate.config for candidate in candidates)
    return next(number for number, config in places if first.setdefault(config, number) != number)


def _object(value: object, known: Mapping[str, Decoder], required: tuple[str, ...]) -> dict[str, Any]:
    if type(value) is not dict:
        raise Fault(f"{shown(value)} is not an object")
    fields = {}
    for name, inner in value.items():
        decoder = known.get(name)
        if decoder is None:
            raise Fault(unknown_field(known), name)
        try:
            fields[name] = decoder(inner)
        except Fault as fault:
            raise fault.inside(name) from None
    for name in required:
        if name not in fields:
            raise Fault(missing_field(required), name)
    return fields


def _at(step: str | int, container: Any, decoder: Decoder) -> Any:
    """What is decoded from an element or field, whose faults then say where it is."""
    try:
        return decoder(container[step])
    except Fault as fault:
        raise fault.inside(step) from None


def _whole(value: Any) -> Any:
    """The value; as an integer if it is a number without a fraction."""
    return int(value) if type(value) is float and value.is_integer() else value


def _integer(low: int, high: int) -> Decoder:
    def decode(value: Any) -> int:
        number = value if type(value) is int else _whole(value)
        if type(number) is not int or not low <= number <= high:
            raise Fault(f"{shown(value)} is not an integer from {low} to {high}")
        return number

    return decode


def _one_of(allowed: tuple[Any, ...]) -> Decoder:
    def decode(value: Any) -> Any:
        if value in allowed:  # none of the numbers that are allowed anywhere equals a boolean
            return allowed[allowed.index(value)]
        raise Fault(f"{shown(value)} is not one of {', '.join(map(str, allowed))}")

    return decode


def _string(value: Any) -> str:
    if type(value) is not str:
        raise Fault(f"{shown(value)} is not a string")
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise Fault(f"{shown(value)} is not Unicode (a lone surrogate cannot be written)")
    return value


def _name(value: Any) -> str:
    if not _string(value):
        raise Fault('"" is not a name')
    return str(value)


def _strings(value: Any) -> list[str]:
    return [_at(number, value, _string) for number in range(len(_list(value)))]


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise Fault(f"{shown(value)} is not a list")
    return value


def _candidates(value: Any) -> tuple[Candidate, ...]:
    if not _list(value):
        raise Fault("needs at least one config")
    if len(value) > MAX_CONFIGS:
        raise Fault(f"{len(value)} configs are too many (allowed: {MAX_CONFIGS})")
    candidates = tuple([_at(number, value, _candidate) for number in range(len(value))])
    again = repeated(candidates)
    if again is not None:
        raise Fault(f"{candidates[again].config} is listed twice", again)
    return candidates


def _candidate(value: Any) -> Candidate:
    if type(value) is not dict:
        raise Fault(f"{shown(value)} is not an object")
    gain = _at("gain_permille", value, decode_gain) if "gain_permille" in value else None
    return Candidate(decode_config({name: field for name, field in value.items() if name != "gain_permille"}), gain)


def _hardware(value: Any) -> Hardware:
    fields = _object(value, _HARDWARE, required=("name", "arch", "sm_count"))
    return Hardware(fields["name"], fields["arch"], fields["sm_count"], tuple(fields.get("aliases", ())))


def _provenance(value: Any) -> dict[str, str | list[str]]:
    return _object(value, _PROVENANCE, required=())


decode_size = _integer(1, MAX_SIZE)
decode_gain = _integer(0, MAX_SIZE)

ENTRY: dict[str, Decoder] = {
    "op": _one_of(OPS),
    "dtype": _one_of(DTYPES),
    "layout": _one_of(LAYOUTS),
    "align": _one_of(ALIGNS),
    **dict.fromkeys("bmnk", lambda value: decode_range(value, decode_size)),
    "configs": _candidates,
    "problems": _integer(1, MAX_SIZE),
    "note": _string,
}
"""The fields of a row, in the order of ``Entry``'s, each with what decodes it or raises Fault."""

_HARDWARE: dict[str, Decoder] = {
    "name": _name,
    "arch": _name,
    "sm_count": decode_size,
    "aliases": _strings,
}

_PROVENANCE: dict[str, Decoder] = {**dict.fromkeys(PROVENANCE, _string), "datasets": _strings}

_HEADER: dict[str, Decoder] = {
    "$schema": _string,
    "schema_version": lambda found: found,
    "hardware": _hardware,
    "provenance": _provenance,
    "entries": _list,
}
