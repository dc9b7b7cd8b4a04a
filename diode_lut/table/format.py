"""The canonical form of a table's JSON: the order of rows and fields, and how each is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple, Union

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError, defstruct, field

from diode_lut.errors import printable_json
from diode_lut.hardware import Hardware
from diode_lut.problem import (
    ALIGNS,
    ATTENTION_ONLY,
    DOMAINS,
    DTYPES,
    EPILOGUES,
    LAYOUTS,
    MATMUL_SIZES,
    MATMULS,
    MAX_SIZE,
    NAMED_VARIANTS,
    OP_SIZES,
    OPS,
    SIZE_FIELDS,
    Domain,
)
from diode_lut.table.faults import Fault, first_broken_rule, shown
from diode_lut.table.row import (
    DTYPES_OF_VERSION_1,
    KEY_FIELDS,
    OPS_OF_VERSION_1,
    TEMPLATES_OF_VERSION_1,
    Candidate,
    Entry,
    Range,
)
from diode_lut.templates.config import TEMPLATES, Config
from diode_lut.templates.template import Parameter, Template

_NAMED = {name: f"{name} " for name in ("align", "epilogue", "variant", *SIZE_FIELDS)}
"""Fields whose values do not say what they are."""


def key_text(entry: Entry) -> str:
    """What the row covers: ``mm bfloat16 nt align 16 m 513-1024 n 4096 k 1-64``."""
    parts = [
        f"{_NAMED.get(name, '')}{_value_text(value)}"
        for name, value in zip(KEY_FIELDS, entry.key, strict=True)
        if value is not None
    ]
    return " ".join(parts) or "everything"


def candidate_text(candidate: Candidate) -> str:
    """The config, and what it gains over aten: ``triton_mm 128x128x64 g8 s4 w8 (1.063)``."""
    gain = candidate.gain_permille
    return str(candidate.config) if gain is None else f"{candidate.config} ({gain / 1000:.3f})"


def winner_text(entry: Entry) -> str:
    """The row's first config, with its gain."""
    return candidate_text(entry.best)


def _value_text(value: str | int | Range) -> str:
    if isinstance(value, tuple):
        low, high = value
        return str(low) if low == high else f"{low}-{high}"
    return str(value)


SCHEMA_VERSION = 2
"""The version of the table format that is written by default."""

VERSIONS = (1, SCHEMA_VERSION)
"""The versions of the table format that are read."""

SCHEMAS = {version: f"../schemas/table.v{version}.schema.json" for version in VERSIONS}
"""What ``$schema`` says in a table of this repository: editors then check the file while it is typed."""

SCHEMA_NAMES = {version: f"urn:diode-lut:table:v{version}" for version in VERSIONS}
"""What it says in a table elsewhere: a name by which editors can be told where the schema is."""

PROVENANCE = (
    *("torch", "triton", "cuda", "driver", "benchmarker"),
    *("measured_on", "measured_by", "datasets", "pruned_with", "diode_lut"),
)
"""What ``provenance`` may say, in the order in which it is written."""

_AFTER_ALL = (MAX_SIZE + 1, MAX_SIZE + 1)
_OPS, _DTYPES, _LAYOUTS, _ALIGNS, _EPILOGUES, _VARIANTS = (
    {value: place for place, value in enumerate((*domain, None))}
    for domain in (OPS, DTYPES, LAYOUTS, ALIGNS, EPILOGUES, NAMED_VARIANTS)
)


def canonical_order(entry: Entry) -> tuple[Any, ...]:
    """Sorts entries by key: domains in their own order, sizes upwards, narrow before wide, left out last.

    Entries with the same key, which a good table does not have, go by the rest of their contents.
    """
    op, dtype, layout, align, b, m, n, k, candidates, problems, note, epilogue, variant, h, g, v = entry
    return (
        _OPS[op],
        _DTYPES[dtype],
        _LAYOUTS[layout],
        _ALIGNS[align],
        _EPILOGUES[epilogue],
        _VARIANTS[variant],
        b or _AFTER_ALL,
        m or _AFTER_ALL,
        n or _AFTER_ALL,
        k or _AFTER_ALL,
        h or _AFTER_ALL,
        g or _AFTER_ALL,
        v or _AFTER_ALL,
        tuple([(config, -1 if gain is None else gain) for config, gain in candidates]),
        problems or 0,
        note is not None,
        note or "",
    )


def canonical_bytes(
    version: int,
    schema: str,
    hardware: Hardware,
    provenance: Mapping[str, str | list[str]],
    entries: Iterable[Entry],
) -> bytes:
    """The file, in UTF-8: each top-level key on its own line, each row's head on a line, each config on a line."""
    rows = ",\n".join(_entry(entry) for entry in sorted(entries, key=canonical_order))
    body = f"{rows}\n" if rows else ""
    head = {
        "$schema": schema,
        "schema_version": version,
        "hardware": hardware._asdict(),
        "provenance": {name: provenance[name] for name in sorted(provenance, key=PROVENANCE.index)},
    }
    lines = "".join(f"{_json(name)}: {_json(value)},\n" for name, value in head.items())
    return f'{{\n{lines}"entries": [\n{body}]\n}}\n'.encode()


def _entry(entry: Entry) -> str:
    fields = entry._replace(candidates=(), note=None).to_json()
    del fields["configs"]
    configs = ",\n".join(f"  {_candidate(candidate)}" for candidate in entry.candidates)
    head = f"{_json(fields)[1:-1]}, " if fields else ""
    tail = "" if entry.note is None else f', "note": {_json(entry.note)}'
    return f'{{{head}"configs": [\n{configs}\n]{tail}}}'


@lru_cache(1 << 14)
def _candidate(candidate: Candidate) -> str:
    """Many rows have the same ones."""
    return _json(candidate.to_json())


_encode = json.JSONEncoder(ensure_ascii=False).encode


def _json(value: Any) -> str:
    """The value on one line; letters that are not printable are escaped, so that people who review a file see them."""
    return printable_json(_encode(value))


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


def reversed_ranges(row: Any) -> Iterator[Fault]:
    """The ranges of a row that end before they begin."""
    for name in SIZE_FIELDS:
        size = getattr(row, name, None)
        low, high = size or (0, 0)
        if low > high:
            yield Fault(f"[{low}, {high}] ends before it begins (allowed: [lowest, highest])", name)


def of_no_problem(row: Any) -> Iterator[Fault]:
    """The first field in which a row asks for what problems of its op, or of any op, do not have."""
    ops = MATMULS if row.op is None else (row.op,)
    for name in ATTENTION_ONLY:
        if getattr(row, name, None) is not None and name not in OP_SIZES[ops[0]]:
            yield Fault(f"is no size of {row.op or 'GEMMs'} (allowed: {', '.join(OP_SIZES[ops[0]])})", name)
            return
    for place, name in enumerate(Domain._fields):
        field = name.removesuffix("s")
        value = getattr(row, field, None)
        having = [op for op in ops if value is None or value in DOMAINS[op][place]]
        if not having:
            allowed = dict.fromkeys(each for op in ops for each in DOMAINS[op][place] if each)
            said = f"allowed: {', '.join(allowed)}" if allowed else f"{row.op} has no variants"
            yield Fault(f"{value!r} is not for {row.op or 'such problems'} ({said})", field)
            return
        ops = tuple(having)


def repeated(candidates: Sequence[Candidate]) -> Fault:
    """The first config that an earlier one equals; gains do not matter."""
    configs = [candidate.config for candidate in candidates]
    number = next(number for number, config in enumerate(configs) if config in configs[:number])
    return Fault(f"{configs[number]} is listed twice", "configs", number)


MAX_ENTRIES = 200_000
MAX_CONFIGS = 4096
"""Of one row: more than any search tries on a problem, far more than a row needs."""
MAX_GAIN_PERMILLE = 2**31 - 1

_SIZE = Annotated[int, Meta(ge=1, le=MAX_SIZE)]
_RANGE = tuple[_SIZE, _SIZE]
_GAIN = Annotated[int, Meta(ge=0, le=MAX_GAIN_PERMILLE)]


def _values(parameter: Parameter) -> Any:
    if isinstance(parameter.values, range):
        return Annotated[int, Meta(ge=parameter.values[0], le=parameter.values[-1])]
    return Literal[parameter.values]


def _closed(name: str, fields: list[Any], **options: Any) -> type[Struct]:
    return defstruct(name, fields, kw_only=True, frozen=True, gc=False, forbid_unknown_fields=True, **options)


def _config(template: Template, parameters: Sequence[Parameter]) -> type[Struct]:
    required = [(each.name, _values(each)) for each in parameters if each.default is None]
    optional = [(each.name, _values(each), each.default) for each in parameters if each.default is not None]
    fields = [*required, *optional, ("gain_permille", _GAIN, None)]
    return _closed(template.name, fields, tag_field="template", tag=template.name)


class FormatVersion(NamedTuple):
    """A version of the table format: its configs by template, and its rows' fields with what they may be.

    Of ``row``, a field that is None was left out: null is not allowed. ``rows`` decodes many from JSON in UTF-8.
    """

    configs: dict[str, type[Struct]]
    fields: dict[str, Any]
    row: Any
    rows: msgspec.json.Decoder[list[Any]]

    @classmethod
    def of(cls, configs: dict[str, type[Struct]], more: dict[str, Any]) -> FormatVersion:
        """The format with these configs; ``more`` has the fields in which it differs from the others."""
        union: Any = Union[tuple(configs.values())]  # noqa: UP007
        fields = {
            "op": Literal[OPS],
            "dtype": Literal[DTYPES],
            "layout": Literal[LAYOUTS],
            "align": Literal[ALIGNS],
            **dict.fromkeys(MATMUL_SIZES, _RANGE),
            "configs": Annotated[tuple[union, ...], Meta(min_length=1, max_length=MAX_CONFIGS)],
            "problems": _SIZE,
            "note": str,
            **more,
        }
        row = _closed("Row", [(name, of) if name == "configs" else (name, of, None) for name, of in fields.items()])
        return cls(configs, fields, row, msgspec.json.Decoder(list[row]))  # type: ignore[valid-type]


FORMATS = {
    1: FormatVersion.of(
        {name: _config(TEMPLATES[name], TEMPLATES[name].required) for name in TEMPLATES_OF_VERSION_1},
        {"op": Literal[OPS_OF_VERSION_1], "dtype": Literal[DTYPES_OF_VERSION_1]},
    ),
    2: FormatVersion.of(
        {name: _config(template, template.parameters) for name, template in TEMPLATES.items()},
        {
            "epilogue": Literal[tuple(EPILOGUES)],
            "variant": Literal[NAMED_VARIANTS],
            **dict.fromkeys(ATTENTION_ONLY, _RANGE),
        },
    ),
}
"""By version. Fields are in the order of ``Entry``'s."""

_astuple = msgspec.structs.astuple
_new = tuple.__new__
_FIELDS = len(Entry._fields)
_COMMON_DTYPES = (None, *DTYPES_OF_VERSION_1)
_NOT_IN_VERSION_1 = (None,) * len(FORMATS[2].fields.keys() - FORMATS[1].fields.keys())
"""The last fields of an entry, which rows of version 1 do not have."""


class _Configs(dict[Any, Config]):
    """The configs of one template, by what ``pick`` takes from the object that a config was decoded to.

    Of all configs in a table few are different, and equal ones are the same object.
    """

    def __init__(self, template: str, names: tuple[str, ...]) -> None:
        super().__init__()
        self._template, self._names = template, names
        self.pick: Callable[[Any], Any] = attrgetter(*names) if names else type

    def __missing__(self, picked: Any) -> Config:
        values = (picked,) if len(self._names) == 1 else picked
        config = Config.make(self._template, dict(zip(self._names, values, strict=True)) if self._names else {})
        self[picked] = config
        return config


class Meaning:
    """What rows mean: makes entries of them."""

    def __init__(self) -> None:
        self._parts = {}
        for version in FORMATS.values():
            for template, kind in version.configs.items():
                *tunables, _ = kind.__struct_fields__
                configs = _Configs(template, tuple(tunables))
                self._parts[kind] = configs.__getitem__, configs.pick

    def entry(self, row: Any) -> Entry:
        """The entry of a row; Fault if a range ends before it begins, or a config comes twice.

        Also if the op has no such dtype, layout or variant.
        """
        fields = _astuple(row)
        if len(fields) < _FIELDS:
            fields += _NOT_IN_VERSION_1
        op, dtype, layout, align, b, m, n, k, wires, problems, note, epilogue, variant, h, g, v = fields
        candidates = self.candidates(wires)
        if (
            (m is not None and m[0] > m[1])
            or (n is not None and n[0] > n[1])
            or (k is not None and k[0] > k[1])
            or (b is not None and b[0] > b[1])
        ):
            raise next(reversed_ranges(row))
        if op not in OPS_OF_VERSION_1 or dtype not in _COMMON_DTYPES or not (variant is h is g is v is None):
            for fault in (*reversed_ranges(row), *of_no_problem(row)):
                raise fault
        values = (
            op,
            dtype,
            layout,
            align,
            b,
            m,
            n,
            k,
            candidates,
            problems,
            note,
            epilogue,
            variant,
            h,
            g,
            v,
        )
        return _new(Entry, values)

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
            raise repeated(candidates)
        return tuple(candidates)


_DEPTH = 3
"""How far inside a row there are numbers: in an object of a list of a field."""


def decode_entry(
    row: object, meaning: Meaning | None = None, *, explain: bool = True, version: int = SCHEMA_VERSION
) -> Entry:
    """The entry of a row; Fault names the first thing that is wrong with it, unless ``explain`` is False."""
    kind = FORMATS[version].row
    try:
        decoded = msgspec.convert(row, kind)
    except ValidationError:
        try:
            decoded = msgspec.convert(whole(row, _DEPTH), kind)
        except ValidationError as error:
            raise first_broken_rule(row, str(error), version, part="entry") if explain else Fault(str(error)) from None
    entry = (meaning or Meaning()).entry(decoded)
    if any("\ud800" <= letter <= "\udfff" for letter in entry.note or ""):
        raise Fault(f"{shown(entry.note)} is not Unicode (a lone surrogate cannot be written)", "note")
    return entry


def decode_readable(row: dict[str, Any], version: int) -> tuple[Entry, list[Fault]]:
    """The entry that the fields of a bad row make which are good, and what is wrong with these besides their types."""
    fields: dict[str, Any] = {"configs": ()}
    faults: list[Fault] = []
    kinds = FORMATS[version].fields
    for name in filter(row.__contains__, kinds):
        with suppress(ValidationError):
            fields[name] = msgspec.convert(whole(row[name], _DEPTH - 1), kinds[name])
    try:
        fields["configs"] = Meaning().candidates(fields["configs"])
    except Fault as fault:
        fields["configs"] = ()
        faults.append(fault)
    fields["candidates"] = fields.pop("configs")
    entry = Entry._make(map(fields.get, Entry._fields))
    return entry, [*faults, *reversed_ranges(entry), *of_no_problem(entry)]
