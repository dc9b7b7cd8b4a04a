"""The format of tables, the types of a file and of its rows, and a table in memory, with its canonical form.

The types are the only description of the format. The reader decodes with them, and ``tools/write_schema.py`` writes the
JSON Schema from them, titles and descriptions included.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from msgspec import Meta, Raw, defstruct

from diode_lut.errors import TableError, as_lines, printable_json
from diode_lut.files import read_at_most, write_atomically
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
    Problem,
)
from diode_lut.table.faults import Positions
from diode_lut.table.row import KEY_FIELDS, Candidate, Entry, canonical_order, specificity
from diode_lut.templates.config import TEMPLATES
from diode_lut.templates.template import Parameter, Template

if TYPE_CHECKING:
    from diode_lut.table.lookup import Index

SCHEMA_VERSION = 2  # the version of the table format
SCHEMA = f"../schemas/table.v{SCHEMA_VERSION}.schema.json"  # in this repository, for editors to check files by
SCHEMA_NAME = f"urn:diode-lut:table:v{SCHEMA_VERSION}"  # elsewhere: editors can be told where this schema is

MAX_ENTRIES = 200_000
MAX_CONFIGS = 4096  # Maximum number of configs of a row. No search tries as many on a problem
MAX_GAIN_PERMILLE = 2**31 - 1
MAX_BYTES = 64 << 20  # maximum size of a table's file


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


Provenance = Mapping[str, str | list[str]]  # versions, dates and the digests of datasets, by name


class Table:
    """Rows for one kind of hardware, which do not change.

    A table that was read from a file has its ``path``, its ``$schema``, and the ``digest`` of its bytes, SHA-256 in
    hexadecimal. ``errors`` has the rows that were left out, and ``skipped`` their numbers, upwards. Two tables are
    equal if they have the same rows, hardware and provenance, in any order of rows.
    """

    def __init__(
        self,
        hardware: Hardware,
        entries: Iterable[Entry],
        provenance: Provenance | None = None,
        *,
        schema: str = SCHEMA,
        path: Path | None = None,
        digest: str | None = None,
        errors: Sequence[TableError] = (),
        skipped: Sequence[int] = (),
    ) -> None:
        self.hardware = hardware
        self.entries: tuple[Entry, ...] = tuple(entries)
        self.provenance: Provenance = provenance or {}
        self.schema = schema
        self.path = path
        self.errors = tuple(errors)
        self._skipped = tuple(skipped)
        self._positions: Positions | None = None
        if digest is not None:
            self.digest = digest

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file, or of the canonical form of a table in memory, in hexadecimal."""
        return self.canonical_digest()

    def canonical_digest(self) -> str:
        """Return the SHA-256 of the canonical form, in hexadecimal. A file in this form has the same digest."""
        return hashlib.sha256(to_bytes(self)).hexdigest()

    @cached_property
    def lookup(self) -> Callable[[Problem], Entry | None]:
        """A function that returns the most specific row for a problem: the first of ``covering``, but fast."""
        return self._index.find

    def covering(self, problem: Problem) -> list[Entry]:
        """Return all rows for the problem, the most specific first. Rows alike are in canonical order."""
        return sorted((entry for entry in self.entries if entry.covers(problem)), key=specificity)

    def borders(self, problem: Problem, fields: Sequence[str]) -> frozenset[int]:
        """Return the sizes in ``fields`` at which rows begin or end that cover the problem, but for these fields."""
        return self._index.borders(problem, tuple(fields))

    def line_of(self, entry: Entry) -> int | None:
        """Return the line where the entry begins in ``path``. None for other entries, and if the file has changed."""
        number = next((number for number, each in self.numbered.items() if each == entry), None)
        return None if number is None else self._line_of_row(number, self._unchanged())

    def lines(self, data: bytes | None = None) -> list[int | None]:
        """Return the line of each entry, as ``line_of`` does, in ``data`` or in the table's file."""
        data = self._unchanged() if data is None else data
        return [self._line_of_row(number, data) for number in self.numbered]

    def _line_of_row(self, number: int, data: bytes | None) -> int | None:
        if data is None:
            return None
        self._positions = self._positions or Positions(data)  # the data is always the same
        return self._positions.place(("entries", number)).line

    def _unchanged(self) -> bytes | None:
        """Return the bytes in ``path``. None if they are not the bytes that the table was read from."""
        with suppress(OSError):
            data = b"" if self.path is None else read_at_most(self.path, MAX_BYTES)
            return data if hashlib.sha256(data).hexdigest() == self.digest else None
        return None

    @cached_property
    def numbered(self) -> Mapping[int, Entry]:
        """The entries with their numbers in ``path``, upwards. Rows that were left out count too."""
        skipped = set(self._skipped)
        numbers = (number for number in range(len(self.entries) + len(skipped)) if number not in skipped)
        return dict(zip(numbers, self.entries, strict=True))

    @cached_property
    def _index(self) -> Index:
        from diode_lut.table.lookup import Index  # with NumPy, which a table that is not asked does not need

        return Index(self.entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and to_bytes(self) == to_bytes(other)

    def with_schema(self, schema: str) -> Table:
        """Return the table with another ``$schema``. It no longer has the lines and the digest of its file."""
        return Table(self.hardware, self.entries, self.provenance, schema=schema, path=self.path)

    def __hash__(self) -> int:
        return hash(self.hardware)

    def __repr__(self) -> str:
        return f"<Table for {self.hardware}: {len(self.entries)} entries, {self.path or 'in memory'}>"


def to_bytes(table: Table) -> bytes:
    """Return the table in canonical form. Equal tables have equal bytes.

    Each top-level field, each row's key and each config has a line of its own.
    """
    rows = []
    for entry in sorted(table.entries, key=canonical_order):
        fields = entry._replace(candidates=(), note=None).to_json()
        del fields["configs"]
        configs = ",\n".join(f"  {_candidate_json(candidate)}" for candidate in entry.candidates)
        key = f"{_json(fields)[1:-1]}, " if fields else ""
        note = "" if entry.note is None else f', "note": {_json(entry.note)}'
        rows.append(f'{{{key}"configs": [\n{configs}\n]{note}}}')
    in_order = sorted(table.provenance, key=PROVENANCE.__struct_fields__.index)
    head = {
        "$schema": table.schema,
        "schema_version": SCHEMA_VERSION,
        "hardware": table.hardware._asdict(),
        "provenance": {name: table.provenance[name] for name in in_order},
    }
    lines = "".join(f"{_json(name)}: {_json(value)},\n" for name, value in head.items())
    entries = ",\n".join(rows) + "\n" * bool(rows)
    return f'{{\n{lines}"entries": [\n{entries}]\n}}\n'.encode()


@lru_cache(1 << 14)
def _candidate_json(candidate: Candidate) -> str:
    return _json(candidate.to_json())


_encode = json.JSONEncoder(ensure_ascii=False).encode


def _json(value: Any) -> str:
    """Write the value on one line. Letters that are not printable are escaped, for reviewers to see them."""
    return printable_json(_encode(value))


def write_table(table: Table, path: Path) -> None:
    """Replace the file with the table in canonical form, atomically. OSError leaves the old file as it was."""
    write_atomically(path, to_bytes(table))


def placed(table: Table, path: Path) -> Table:
    """Return the table for this file. A default ``$schema`` is replaced by the schema's name if it leads nowhere."""
    leads_nowhere = table.schema == SCHEMA and not (path.parent / table.schema).is_file()
    return table.with_schema(SCHEMA_NAME) if leads_nowhere else table


def as_text(table: Table) -> str:
    """Return a table as text, alike for equal tables. Invalid rows come last, with the reason."""
    lines = [str(table.hardware)]
    lines += [f"also called {alias}" for alias in table.hardware.aliases]
    for name, value in table.provenance.items():
        lines.append(f"{name}: {value if isinstance(value, str) else ', '.join(value)}")
    for entry in sorted(table.entries, key=canonical_order):
        lines.append(key_text(entry))
        lines += [f"  {candidate_text(candidate)}" for candidate in entry.candidates]
        lines += [] if entry.problems is None else [f"  measured problems: {entry.problems}"]
        lines += [] if entry.note is None else [f"  note: {entry.note}"]
    lines += [f"invalid: {error.where}: {error.reason}" for error in table.errors]
    return as_lines(lines)
