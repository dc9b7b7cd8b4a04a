"""The rows of a table's JSON as types, and how they become entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple, Union

import msgspec
from msgspec import Meta, Struct, ValidationError, defstruct, field

from diode_lut.domain.hardware import Hardware
from diode_lut.domain.problem import ALIGNS, DTYPES, LAYOUTS, MAX_SIZE, OPS
from diode_lut.kernels.config import Config
from diode_lut.kernels.registry import TEMPLATES
from diode_lut.kernels.template import Parameter, Template
from diode_lut.table.canonical import PROVENANCE, SCHEMA, SCHEMA_VERSION
from diode_lut.table.entry import SIZE_FIELDS, Candidate, Entry
from diode_lut.table.position import Fault, shown
from diode_lut.table.schema import first_broken_rule

MAX_ENTRIES = 200_000
MAX_CONFIGS = 4096
"""Of one row: more than any search tries on a problem, far more than a row needs."""
MAX_GAIN_PERMILLE = 2**31 - 1

_SIZE = Annotated[int, Meta(ge=1, le=MAX_SIZE)]
_GAIN = Annotated[int, Meta(ge=0, le=MAX_GAIN_PERMILLE)]


def _values(parameter: Parameter) -> Any:
    if isinstance(parameter.values, range):
        return Annotated[int, Meta(ge=parameter.values[0], le=parameter.values[-1])]
    return Literal[parameter.values]


def _closed(name: str, fields: list[Any], **options: Any) -> type[Struct]:
    return defstruct(name, fields, kw_only=True, frozen=True, gc=False, forbid_unknown_fields=True, **options)


def _config(template: Template) -> type[Struct]:
    tunables = [(parameter.name, _values(parameter)) for parameter in template.parameters]
    fields = [*tunables, ("gain_permille", _GAIN, None)]
    return _closed(template.name, fields, tag_field="template", tag=template.name)


_CONFIGS = tuple(map(_config, TEMPLATES.values()))

FIELDS: dict[str, Any] = {
    "op": Literal[OPS],
    "dtype": Literal[DTYPES],
    "layout": Literal[LAYOUTS],
    "align": Literal[ALIGNS],
    **dict.fromkeys(SIZE_FIELDS, tuple[_SIZE, _SIZE]),
    "configs": Annotated[tuple[Union[_CONFIGS], ...], Meta(min_length=1, max_length=MAX_CONFIGS)],  # type: ignore[valid-type]  # noqa: UP007
    "problems": _SIZE,
    "note": str,
}
"""The fields of a row, in the order of ``Entry``'s, with what they may be."""

Row: Any = _closed("Row", [(name, kind) if name == "configs" else (name, kind, None) for name, kind in FIELDS.items()])
"""One row. What is None was left out: null is not allowed."""

ROWS = msgspec.json.Decoder(list[Row])
"""Many rows, from JSON in UTF-8."""

_astuple = msgspec.structs.astuple
_new = tuple.__new__


class _Configs(dict[tuple[int, ...], Config]):
    """The configs of one template: of all in a table few are different, and equal ones are the same object."""

    def __init__(self, template: str) -> None:
        super().__init__()
        self._template = template

    def __missing__(self, params: tuple[int, ...]) -> Config:
        config = self[params] = Config(self._template, params)
        return config


class Meaning:
    """What rows mean: makes entries of them."""

    def __init__(self) -> None:
        self._parts = {
            kind: (_Configs(name).__getitem__, _picker(template.names))
            for kind, (name, template) in zip(_CONFIGS, TEMPLATES.items(), strict=True)
        }

    def entry(self, row: Any) -> Entry:
        """The entry of a row; Fault if a range ends before it begins, or a config comes twice."""
        op, dtype, layout, align, b, m, n, k, wires, problems, note = _astuple(row)
        candidates = self.candidates(wires)
        if (
            (m is not None and m[0] > m[1])
            or (n is not None and n[0] > n[1])
            or (k is not None and k[0] > k[1])
            or (b is not None and b[0] > b[1])
        ):
            raise next(reversed_ranges(row))
        return _new(Entry, (op, dtype, layout, align, b, m, n, k, candidates, problems, note))

    def candidates(self, wires: Sequence[Any]) -> tuple[Candidate, ...]:
        """The candidates of a row; Fault if a config comes twice."""
        parts = self._parts
        candidates, seen = [], set()
        for wire in wires:
            config_of, params = parts[type(wire)]
            config = config_of(params(wire))
            seen.add(id(config))
            candidates.append(_new(Candidate, (config, wire.gain_permille)))
        if len(seen) < len(candidates):
            raise _repeated(candidates)
        return tuple(candidates)


def _picker(names: tuple[str, ...]) -> Callable[[Any], tuple[int, ...]]:
    """What gives these attributes of an object as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda wire: tuple([getattr(wire, name) for name in names])


def reversed_ranges(row: Any) -> Iterator[Fault]:
    """The ranges of a row, or of an entry, that end before they begin."""
    for name in SIZE_FIELDS:
        size = getattr(row, name)
        if size is not None and size[0] > size[1]:
            yield Fault(f"{list(size)} ends before it begins (allowed: [lowest, highest])", name)


def _repeated(candidates: Sequence[Candidate]) -> Fault:
    """The first config that an earlier one equals; gains do not matter."""
    configs = [candidate.config for candidate in candidates]
    number = next(number for number, config in enumerate(configs) if config in configs[:number])
    return Fault(f"{configs[number]} is listed twice", "configs", number)


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
