"""The format of tables: the types of a file and of its rows, decoding, and the canonical form.

The types are the one description of the format. The reader decodes with them, and ``tools/write_schema.py`` writes the
JSON Schema from them, titles and descriptions included.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple, Union

import msgspec
from msgspec import Meta, ValidationError, defstruct

from diode_lut.errors import printable_json
from diode_lut.hardware import Hardware
from diode_lut.problem import (
    ALIGNS,
    ATTENTION_ONLY,
    DOMAINS,
    DTYPES,
    EPILOGUES,
    GEMMS,
    LAYOUTS,
    MATMULS,
    MAX_SIZE,
    NAMED_VARIANTS,
    OP_SIZES,
    OPS,
    SIZE_FIELDS,
    Domain,
)
from diode_lut.table.faults import Fault, first_broken_rule, shown
from diode_lut.table.row import KEY_FIELDS, Candidate, Entry, Range
from diode_lut.templates.config import TEMPLATES, Config
from diode_lut.templates.template import Parameter, Template

SCHEMA_VERSION = 2
"""The version of the table format."""

SCHEMA = f"../schemas/table.v{SCHEMA_VERSION}.schema.json"
"""The ``$schema`` of a table of this repository: editors then check the file while it is typed."""

SCHEMA_NAME = f"urn:diode-lut:table:v{SCHEMA_VERSION}"
"""The ``$schema`` of a table elsewhere: a name by which editors can be told where the schema is."""

MAX_ENTRIES = 200_000
MAX_CONFIGS = 4096
"""Maximum number of configs of a row. No search tries as many on a problem."""
MAX_GAIN_PERMILLE = 2**31 - 1


def described(kind: Any, title: str, description: str, **limits: Any) -> Any:
    """Return the type with limits, and with the texts that editors show."""
    return Annotated[kind, Meta(title=title, description=description, **limits)]


def _object(name: str, about: str, fields: Mapping[str, Any], required: Iterable[str] = (), **options: Any) -> Any:
    """Return the type of an object without other fields. A field that is not required is None if it is left out."""
    left_out = options.pop("left_out", {})
    typed = [(each, kind) if each in {*required} else (each, kind, left_out.get(each)) for each, kind in fields.items()]
    options |= {"kw_only": True, "frozen": True, "gc": False, "forbid_unknown_fields": True}
    return defstruct(name, typed, namespace={"__doc__": about}, **options)


SIZE = described(int, "Size", "A size in elements; kernels index with 32 bits.", ge=1, le=MAX_SIZE)
RANGE = described(
    tuple[SIZE, SIZE],  # type: ignore[valid-type]
    "Range",
    "[lowest, highest], both included, and the lowest not above the highest. [1024, 1024] is just 1024.",
)
GAIN = described(
    int,
    "Gain",
    "1000 times the time of aten, divided by the time of this config: 1063 is 6.3 % faster than aten. Of attention, "
    "the time of default counts instead. Left out if it was not measured. With an epilogue, the time of aten includes "
    "that of a separate kernel for the pointwise work.",
    ge=0,
    le=MAX_GAIN_PERMILLE,
)
_NAME = Annotated[str, Meta(min_length=1)]

HARDWARE = _object(
    "Hardware",
    "What the table was measured on.",
    {
        "name": described(_NAME, "Name", "The marketing name as the driver gives it: NVIDIA H200."),
        "arch": described(_NAME, "Architecture", "The instruction set: sm_90, gfx942, cpu-avx512."),
        "sm_count": described(
            int, "SM count", "Multiprocessors; on a CPU, threads that torch uses.", ge=1, le=MAX_SIZE
        ),
        "aliases": described(list[str], "Aliases", "Other names of the same hardware."),
    },
    required=("name", "arch", "sm_count"),
)

PROVENANCE = _object(
    "Provenance",
    "Where the table comes from. It does not change what the table answers.",
    {
        "torch": described(str, "torch", "Version of PyTorch that measured."),
        "triton": described(str, "Triton", "Version of Triton that compiled the kernels."),
        "cuda": described(str, "CUDA", "Version of CUDA that PyTorch was built with."),
        "driver": described(str, "Driver", "Version of the device's driver."),
        "benchmarker": described(str, "Benchmarker", "The tool that measured the times."),
        "measured_on": described(str, "Date", "When the latest timing was taken: YYYY-MM-DD."),
        "measured_by": described(str, "Measured by", "Who took the timings, as the datasets say."),
        "datasets": described(
            list[str], "Datasets", "Digests of the datasets that the table was built from: sha256:..."
        ),
        "pruned_with": described(
            str, "Pruned with", "The model that rows were left to: its digest, sha256:..., and its thresholds."
        ),
        "diode_lut": described(str, "diode_lut", "Version of diode_lut that built the table."),
    },
)

TEMPLATE = described(
    Literal[tuple(TEMPLATES)],
    "Template",
    "What generates the kernel; aten calls the vendor's library (cuBLAS, rocBLAS, oneDNN), default is Inductor's own "
    "config for attention.",
)


def _config(template: Template) -> Any:
    def values(parameter: Parameter) -> Any:
        allowed, texts = parameter.values, (parameter.title, parameter.meaning)
        if isinstance(allowed, range):
            return described(int, *texts, ge=allowed[0], le=allowed[-1])
        return described(Literal[allowed], *texts)

    fields = {**{each.name: values(each) for each in template.parameters}, "gain_permille": GAIN}
    required = [each.name for each in template.required]
    options = {"left_out": {each.name: each.default for each in template.parameters}, "tag_field": "template"}
    return _object(template.name, template.about, fields, required, tag=template.name, **options)


CONFIGS = {name: _config(template) for name, template in TEMPLATES.items()}
"""The types of configs, by template."""

CONFIG = described(
    Union[tuple(CONFIGS.values())],  # noqa: UP007
    "Config",
    "A template and its tunables. What follows from the GEMM is derived and not stored.",
)

SIZES = {
    "b": ("B", "Number of matrices in a batch, of batches of attention, or of groups; 1 for ops without a batch."),
    "m": ("M", "Rows of A and C, of all groups together; of attention, queries."),
    "n": ("N", "Columns of B and C; of attention, keys."),
    "k": ("K", "Columns of A and rows of B; of attention, the head dimension of queries and keys."),
    "h": ("Heads", "Of attention: heads of queries."),
    "g": ("Group", "Of attention: heads of queries that share a head of keys and values."),
    "v": ("Head dimension of values", "Of attention."),
}
"""Title and description of each size."""

_FIELDS = {
    "op": described(
        Literal[OPS],
        "Operation",
        "The GEMM: C = A B (mm), C = bias + A B (addmm), both in batches (bmm, baddbmm), and with scales for A and B, "
        "whose types are float8 (scaled_mm); A B of int8 to int32 (int_mm); or attention: forward (flex_attention), "
        "its gradients (flex_attention_backward), and forward with few queries (flex_decoding); or a matmul of rows in "
        "groups, each with a matrix B of its own (grouped_mm). Left out, any GEMM but the latter.",
    ),
    "dtype": described(
        Literal[DTYPES],
        "Type",
        "Type of the elements of A and B; tf32 is float32 with TF32 allowed. float8_e5m2 is that type for one of A and "
        "B, and float8_e4m3fn for the other.",
    ),
    "layout": described(Literal[LAYOUTS], "Layout", "A letter for A and one for B: n is row-major, t is column-major."),
    "align": described(
        Literal[ALIGNS], "Alignment", "16 if every row of A and B starts on a 16-byte boundary, else 2."
    ),
    "epilogue": described(
        Literal[tuple(EPILOGUES)],
        "Epilogue",
        "Class of the pointwise work that is fused behind the GEMM. "
        f"{'; '.join(f'{name}: {meaning}' for name, meaning in EPILOGUES.items())}.",
    ),
    "variant": described(
        Literal[NAMED_VARIANTS],
        "Variant",
        "Of scaled_mm: whether A and B have a scale each (tensor), or each row of A and column of B (row); the type of "
        "the result; whether there is a bias; whether accumulation is fast, and less precise. Of attention: its mask "
        "(full: none; causal; computed from indices; captured: reads tensors), and what modifies scores, if anything "
        "does (computed; captured: reads tensors).",
    ),
    **{name: described(RANGE, *SIZES[name]) for name in SIZE_FIELDS},
    "problems": described(SIZE, "Problems", "Number of measured problems that the row is based on."),
    "configs": described(
        tuple[CONFIG, ...],  # type: ignore[valid-type]
        "Configs",
        "Kernels, best first; the first that can run is taken. No two are equal.",
        min_length=1,
        max_length=MAX_CONFIGS,
    ),
    "note": described(str, "Note", "For people. Rows with a note survive rebuilds."),
}
"""The fields of a row, in canonical order."""

ROW = _object(
    "Entry",
    "A row: a key, which says what problems it covers, and configs. A field of the key that is left out matches "
    "anything.",
    _FIELDS,
    required=("configs",),
)

_FILE = {
    "schema": described(
        str, "Schema", "Path or name of this schema: editors use it to check the file while it is typed."
    ),
    "schema_version": described(
        Literal[SCHEMA_VERSION],
        "Version",
        "The version of the format. A reader refuses versions that it does not know.",
    ),
    "hardware": described(HARDWARE, "Hardware", "The device that the table is for."),
    "provenance": described(PROVENANCE, "Provenance", "Where the table comes from."),
    "entries": described(
        list[ROW],  # type: ignore[valid-type]
        "Entries",
        "The rows, sorted by key in canonical form; their order has no meaning.",
        max_length=MAX_ENTRIES,
    ),
}
_FILE_OPTIONS: dict[str, Any] = {
    "required": ("schema_version", "hardware", "entries"),
    "rename": {"schema": "$schema"},
}

TABLE = _object(
    f"Table of kernel configurations, version {SCHEMA_VERSION}",
    "Which kernel a GEMM gets on one kind of hardware. Of the entries that cover a GEMM, the one that covers the "
    "fewest problems answers for it.",
    _FILE,
    **_FILE_OPTIONS,
)
_HEAD = _object("Head", "", {**_FILE, "entries": list[Any]}, **_FILE_OPTIONS)


class TableHeader(NamedTuple):
    """All of a table but its entries."""

    schema: str
    hardware: Hardware
    provenance: dict[str, str | list[str]]


def decode_header(document: object) -> TableHeader:
    """Return the header of a table, without its entries; raise Fault for the first mistake.

    The version comes first, because a file of another version has no other mistakes.
    """
    require_version(document)
    try:
        head = msgspec.convert(_whole(document, 2), _HEAD)
    except ValidationError as error:
        raise first_broken_rule(document, str(error)) from None
    name, arch, sm_count, aliases = msgspec.structs.astuple(head.hardware)
    provenance = {} if head.provenance is None else msgspec.structs.asdict(head.provenance)
    return TableHeader(
        SCHEMA if head.schema is None else head.schema,
        Hardware(name, arch, sm_count, tuple(aliases or ())),
        {field: value for field, value in provenance.items() if value is not None},
    )


def require_version(document: object) -> None:
    """Raise Fault if the document is no table, or one of another version of the format."""
    if not isinstance(document, dict):
        raise Fault(f"{shown(document)} is not a table (a table is an object)")
    if "schema_version" not in document:
        raise Fault(f"is missing, so this is not a table (expected {SCHEMA_VERSION})", "schema_version")
    found = document["schema_version"]
    if isinstance(found, bool) or found != SCHEMA_VERSION:
        newer = isinstance(found, int) and found > SCHEMA_VERSION
        remedy = " (written by a newer diode_lut: upgrade)" if newer else ""
        raise Fault(f"expected {SCHEMA_VERSION}, found {shown(found)}{remedy}", "schema_version")


def _whole(value: Any, depth: int) -> Any:
    """Return the value with numbers without a fraction as integers, to this depth of nesting."""
    if type(value) is float and value.is_integer():
        return int(value)
    if depth and isinstance(value, list):
        return [_whole(item, depth - 1) for item in value]
    if depth and isinstance(value, dict):
        return {name: _whole(item, depth - 1) for name, item in value.items()}
    return value


_DEPTH = 3
"""Nesting of numbers in a row: in an object, in a list, in a field."""

_new = tuple.__new__
_astuple = msgspec.structs.astuple
_PLAIN_DTYPES = (None, *DOMAINS[GEMMS[0]].dtypes)


class _Configs(dict[Any, Config]):
    """The configs of one template, by the values that ``pick`` takes from a decoded config.

    A table has few different configs, and equal ones are the same object.
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


class RowDecoder:
    """Makes entries of rows, and shares equal configs between them."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(list[ROW]).decode  # type: ignore[valid-type]
        self._parts = {}
        for template, kind in CONFIGS.items():
            *tunables, _ = kind.__struct_fields__
            configs = _Configs(template, tuple(tunables))
            self._parts[kind] = configs.__getitem__, configs.pick

    def rows(self, text: bytes) -> list[Entry]:
        """Decode a JSON list of rows; ValidationError or Fault if one of them is wrong."""
        return list(map(self._entry, self._decode(text)))

    def row(self, row: object, *, explain: bool = True) -> Entry:
        """Decode a parsed row; Fault has the first mistake in words, unless ``explain`` is False."""
        try:
            decoded = msgspec.convert(row, ROW)
        except ValidationError:
            try:
                decoded = msgspec.convert(_whole(row, _DEPTH), ROW)
            except ValidationError as error:
                raise first_broken_rule(row, str(error), "entry") if explain else Fault(str(error)) from None
        entry = self._entry(decoded)
        if any("\ud800" <= letter <= "\udfff" for letter in entry.note or ""):
            raise Fault(f"{shown(entry.note)} is not Unicode (a lone surrogate cannot be written)", "note")
        return entry

    def _entry(self, row: Any) -> Entry:
        op, dtype, layout, align, epilogue, variant, b, m, n, k, h, g, v, problems, configs, note = _astuple(row)
        candidates = self._candidates(configs)
        # This condition is cheap, and false for nearly all rows.
        if (
            op not in GEMMS
            or dtype not in _PLAIN_DTYPES
            or not (variant is h is g is v is None)
            or (b is not None and b[0] > b[1])
            or (m is not None and m[0] > m[1])
            or (n is not None and n[0] > n[1])
            or (k is not None and k[0] > k[1])
        ):
            for fault in mismatches(row):
                raise fault
        values = op, dtype, layout, align, b, m, n, k, candidates, problems, note, epilogue, variant, h, g, v
        return _new(Entry, values)

    def _candidates(self, configs: Sequence[Any]) -> tuple[Candidate, ...]:
        parts = self._parts
        candidates, seen = [], set()
        for wire in configs:
            config_of, pick = parts[type(wire)]
            config = config_of(pick(wire))
            seen.add(id(config))
            candidates.append(_new(Candidate, (config, wire.gain_permille)))
        if len(seen) < len(candidates):
            found = [candidate.config for candidate in candidates]
            number = next(number for number, config in enumerate(found) if config in found[:number])
            raise Fault(f"{found[number]} is listed twice", "configs", number)
        return tuple(candidates)

    def readable(self, row: Mapping[str, Any]) -> tuple[Entry, list[Fault]]:
        """Decode the good fields of a bad row; the faults are those that these fields have together."""
        fields: dict[str, Any] = {}
        faults: list[Fault] = []
        for name in filter(row.__contains__, _FIELDS):
            with suppress(ValidationError):
                fields[name] = msgspec.convert(_whole(row[name], _DEPTH - 1), _FIELDS[name])
        try:
            fields["candidates"] = self._candidates(fields.pop("configs", ()))
        except Fault as fault:
            fields["candidates"] = ()
            faults.append(fault)
        entry = Entry._make(map(fields.get, Entry._fields))
        return entry, [*faults, *mismatches(entry)]


def decode_entry(row: object) -> Entry:
    """Decode one parsed row; Fault has the first mistake in words."""
    return RowDecoder().row(row)


def mismatches(row: Any) -> Iterator[Fault]:
    """Find fields of a row, or of an entry, that do not go together.

    These are ranges that end before they begin, and the first value or size that problems of the op do not have.
    """
    for name in SIZE_FIELDS:
        low, high = getattr(row, name) or (0, 0)
        if low > high:
            yield Fault(f"[{low}, {high}] ends before it begins (allowed: [lowest, highest])", name)
    ops = MATMULS if row.op is None else (row.op,)
    for name in ATTENTION_ONLY:
        if getattr(row, name) is not None and name not in OP_SIZES[ops[0]]:
            yield Fault(f"is no size of {row.op or 'GEMMs'} (allowed: {', '.join(OP_SIZES[ops[0]])})", name)
            return
    for place, domain in enumerate(Domain._fields):
        name = domain.removesuffix("s")
        value = getattr(row, name)
        having = tuple(op for op in ops if value is None or value in DOMAINS[op][place])
        if not having:
            allowed = dict.fromkeys(each for op in ops for each in DOMAINS[op][place] if each)
            said = f"allowed: {', '.join(allowed)}" if allowed else f"{row.op} has no variants"
            yield Fault(f"{value!r} is not for {row.op or 'such problems'} ({said})", name)
            return
        ops = having


_NAMED = {name: f"{name} " for name in ("align", "epilogue", "variant", *SIZE_FIELDS)}
"""Fields whose values do not say what they are."""


def key_text(entry: Entry) -> str:
    """Return the key as text: ``mm bfloat16 nt align 16 m 513-1024 n 4096 k 1-64``."""
    parts = [
        f"{_NAMED.get(name, '')}{_value_text(value)}"
        for name, value in zip(KEY_FIELDS, entry.key, strict=True)
        if value is not None
    ]
    return " ".join(parts) or "everything"


def _value_text(value: str | int | Range) -> str:
    if isinstance(value, tuple):
        low, high = value
        return str(low) if low == high else f"{low}-{high}"
    return str(value)


def candidate_text(candidate: Candidate) -> str:
    """Return the config with its gain over aten: ``triton_mm 128x128x64 g8 s4 w8 (1.063)``."""
    gain = candidate.gain_permille
    return str(candidate.config) if gain is None else f"{candidate.config} ({gain / 1000:.3f})"


def winner_text(entry: Entry) -> str:
    """Return the row's first config with its gain."""
    return candidate_text(entry.best)


_AFTER_ALL = (MAX_SIZE + 1, MAX_SIZE + 1)
_OPS, _DTYPES, _LAYOUTS, _ALIGNS, _EPILOGUES, _VARIANTS = (
    {value: place for place, value in enumerate((*domain, None))}
    for domain in (OPS, DTYPES, LAYOUTS, ALIGNS, EPILOGUES, NAMED_VARIANTS)
)


def canonical_order(entry: Entry) -> tuple[Any, ...]:
    """Return the sort key of an entry: domains in their own order, sizes upwards, narrow before wide, left out last.

    Entries with the same key, which a good table does not have, are sorted by the rest of their contents.
    """
    op, dtype, layout, align, b, m, n, k, candidates, problems, note, epilogue, variant, h, g, v = entry
    return (
        _OPS[op],
        _DTYPES[dtype],
        _LAYOUTS[layout],
        _ALIGNS[align],
        _EPILOGUES[epilogue],
        _VARIANTS[variant],
        *[sizes or _AFTER_ALL for sizes in (b, m, n, k, h, g, v)],
        tuple([(config, -1 if gain is None else gain) for config, gain in candidates]),
        problems or 0,
        note is not None,
        note or "",
    )


def canonical_bytes(
    schema: str, hardware: Hardware, provenance: Mapping[str, str | list[str]], entries: Iterable[Entry]
) -> bytes:
    """Return the file in UTF-8: each top-level field, each row's key and each config has a line of its own."""

    def text_of(entry: Entry) -> str:
        fields = entry._replace(candidates=(), note=None).to_json()
        del fields["configs"]
        configs = ",\n".join(f"  {_candidate_json(candidate)}" for candidate in entry.candidates)
        head = f"{_json(fields)[1:-1]}, " if fields else ""
        tail = "" if entry.note is None else f', "note": {_json(entry.note)}'
        return f'{{{head}"configs": [\n{configs}\n]{tail}}}'

    rows = ",\n".join(text_of(entry) for entry in sorted(entries, key=canonical_order))
    body = f"{rows}\n" if rows else ""
    head = {
        "$schema": schema,
        "schema_version": SCHEMA_VERSION,
        "hardware": hardware._asdict(),
        "provenance": {name: provenance[name] for name in sorted(provenance, key=PROVENANCE.__struct_fields__.index)},
    }
    lines = "".join(f"{_json(name)}: {_json(value)},\n" for name, value in head.items())
    return f'{{\n{lines}"entries": [\n{body}]\n}}\n'.encode()


@lru_cache(1 << 14)
def _candidate_json(candidate: Candidate) -> str:
    return _json(candidate.to_json())


_encode = json.JSONEncoder(ensure_ascii=False).encode


def _json(value: Any) -> str:
    """Write the value on one line; letters that are not printable are escaped, so that reviewers see them."""
    return printable_json(_encode(value))
