"""The format of tables: the types of a file and of its rows, and the canonical form.

The types are the only description of the format. The reader decodes with them, and ``tools/write_schema.py`` writes the
JSON Schema from them, titles and descriptions included.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, Union

from msgspec import Meta, Raw, defstruct

from diode_lut.errors import printable_json
from diode_lut.hardware import Hardware
from diode_lut.problem import (
    ALIGNS,
    DTYPES,
    EPILOGUES,
    LAYOUTS,
    MAX_SIZE,
    MEANING_OF_OPS,
    NAMED_VARIANTS,
    OPS,
    SIZE_FIELDS,
)
from diode_lut.table.row import KEY_FIELDS, Candidate, Entry
from diode_lut.templates.config import TEMPLATES
from diode_lut.templates.template import Parameter, Template

SCHEMA_VERSION = 2  # the version of the table format
SCHEMA = f"../schemas/table.v{SCHEMA_VERSION}.schema.json"  # in this repository, for editors to check files by
SCHEMA_NAME = f"urn:diode-lut:table:v{SCHEMA_VERSION}"  # elsewhere: editors can be told where this schema is

MAX_ENTRIES = 200_000
MAX_CONFIGS = 4096  # Maximum number of configs of a row. No search tries as many on a problem
MAX_GAIN_PERMILLE = 2**31 - 1


def described(kind: Any, title: str, description: str, **limits: Any) -> Any:
    """Return the type with limits, and with texts for editors to show."""
    return Annotated[kind, Meta(title=title, description=description, **limits)]


def _object(name: str, about: str, fields: Mapping[str, Any], required: Iterable[str] = (), **options: Any) -> Any:
    """Return the type of an object without other fields. Fields that are left out are None, or as ``left_out`` says."""
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


CONFIGS = {name: _config(template) for name, template in TEMPLATES.items()}  # the types of configs, by template

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
    "x": ("X", "Of a generated kernel: elements, or rows that are reduced to an element each."),
    "y": ("Y", "Of a tiled pointwise kernel: rows of X elements."),
    "r": ("R", "Of a reduction: elements that are reduced to one."),
    "loads": ("Loads", "Of a pointwise kernel: elements that it reads for each that it computes; 1 if none."),
}
"""Title and description of each size."""

ROW_FIELDS = {
    "op": described(Literal[OPS], "Operation", MEANING_OF_OPS),
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
        "Class of the pointwise work that is fused after the GEMM. "
        f"{'; '.join(f'{name}: {meaning}' for name, meaning in EPILOGUES.items())}.",
    ),
    "variant": described(
        Literal[NAMED_VARIANTS],
        "Variant",
        "Of scaled_mm: whether A and B have a scale each (tensor), or each row of A and column of B (row); the type of "
        "the result; whether there is a bias; whether accumulation is fast, and less precise. Of attention: its mask "
        "(full: none; causal; computed from indices; captured: reads tensors), and what modifies scores, if anything "
        "does (computed; captured: reads tensors). Of a reduction: contiguous along r (inner) or x (outer), or another "
        "hint of Inductor's, with reads along r (mixed) or without (default). Of a pointwise kernel: one dimension "
        "(flat) or two (tiled), read and written more contiguously along x (tiled-x) or never (tiled-y).",
    ),
    **{name: described(RANGE, *SIZES[name]) for name in SIZE_FIELDS},
    "n_align": described(
        Literal[ALIGNS],
        "Alignment of N",
        "Of the range of N, only values with this alignment: 16 if every row of a packed C starts on a 16-byte "
        "boundary, else 2. Only for mm, addmm, bmm and baddbmm with a dtype. Left out, any N.",
    ),
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
    ROW_FIELDS,
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
_FILE_OPTIONS: dict[str, Any] = {"required": ("schema_version", "hardware", "entries"), "rename": {"schema": "$schema"}}

TABLE = _object(
    f"Table of kernel configurations, version {SCHEMA_VERSION}",
    "Which kernel a GEMM gets on one kind of hardware. Of the entries that cover a GEMM, the one that covers the "
    "fewest problems answers for it.",
    _FILE,
    **_FILE_OPTIONS,
)
HEAD = _object("Head", "", {**_FILE, "entries": list[Any]}, **_FILE_OPTIONS)  # a table with any entries
DIVIDED = _object("Divided", "", {**_FILE, "entries": list[Raw]}, **_FILE_OPTIONS)  # with entries that are still JSON

_NAMED = {name: f"{name} " for name in ("align", "epilogue", "variant", *SIZE_FIELDS, "n_align")}
"""Fields with values that are unclear without the name."""


def key_text(entry: Entry) -> str:
    """Return the key as text: ``mm bfloat16 nt align 16 m 513-1024 n 4096 k 1-64``."""
    parts = []
    for name, value in zip(KEY_FIELDS, entry.key, strict=True):
        if isinstance(value, tuple):
            low, high = value
            value = low if low == high else f"{low}-{high}"
        if value is not None:
            parts.append(f"{_NAMED.get(name, '')}{value}")
    return " ".join(parts) or "everything"


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
    """Return an entry's sort key: domains in order, sizes upwards, narrow before wide, left out last, then the rest."""
    op, dtype, layout, align, b, m, n, k, candidates, problems, note, epilogue, variant, *more = entry
    h, g, v, n_align, *of_kernels = more
    return (
        _OPS[op],
        _DTYPES[dtype],
        _LAYOUTS[layout],
        _ALIGNS[align],
        _EPILOGUES[epilogue],
        _VARIANTS[variant],
        *[sizes or _AFTER_ALL for sizes in (b, m, n, k, h, g, v, *of_kernels)],
        _ALIGNS[n_align],
        tuple([(config, -1 if gain is None else gain) for config, gain in candidates]),
        problems or 0,
        note is not None,
        note or "",
    )


def specificity(entry: Entry) -> tuple[Any, ...]:
    """Return the sort key of entries for the same problem. The first answers."""
    return entry.volume, canonical_order(entry)


def canonical_bytes(
    schema: str, hardware: Hardware, provenance: Mapping[str, str | list[str]], entries: Iterable[Entry]
) -> bytes:
    """Return the file in UTF-8. Each top-level field, each row's key and each config has a line of its own."""

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
    """Write the value on one line. Letters that are not printable are escaped, for reviewers to see them."""
    return printable_json(_encode(value))
