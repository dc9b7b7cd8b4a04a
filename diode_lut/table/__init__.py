"""Tables: kernels for GEMMs, in a form for people to read, edit and review. Here they are read from files.

A small file is decoded at once. A large one, or one with wrong rows, is divided into its fields and rows, which stay
JSON, and then each row is decoded: all rows at once would take several times its memory. A file that cannot be divided
so is parsed as a whole, which says what is wrong with it.

Brackets and commas are counted before anything is parsed, because few bytes can be many objects.
"""

from __future__ import annotations

import gc
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import orjson
from msgspec import MsgspecError, ValidationError

from diode_lut.errors import TableError, csv_remedy
from diode_lut.files import has_more_values, open_regular, read_at_most, read_finished
from diode_lut.hardware import Hardware
from diode_lut.problem import DOMAINS, GEMMS, GENERATED, MATMULS, OP_SIZES, SIZE_FIELDS, Domain, aligned_columns
from diode_lut.process import in_forked_children
from diode_lut.table.faults import Fault, Positions, dotted, first_broken_rule, place_at, shown, whole_numbers
from diode_lut.table.format import (
    CONFIGS,
    DIVIDED,
    HEAD,
    MAX_BYTES,
    MAX_ENTRIES,
    ROW,
    ROW_FIELDS,
    SCHEMA,
    SCHEMA_VERSION,
    TABLE,
    Table,
    placed,
    to_bytes,
    write_table,
)
from diode_lut.table.row import Candidate, Entry, Range, of_kind
from diode_lut.templates.config import TEMPLATES, Config

__all__ = ["Candidate", "Entry", "Range", "Table", "of_kind", "placed", "to_bytes", "write_table"]

MAX_PARSED = 1_000_000  # number of values parsed at once: of a table without its rows, of a row, or of another file
MAX_VALUES = 10_000_000  # Maximum number of values of a file. The largest table has fewer
MAX_WRONG = 10_000  # Maximum number of wrong rows. A file with more is no table of ours
EXPLAINED = 500  # maximum number of wrong rows whose messages come from the schema, in half a millisecond each
AT_ONCE = 2**22  # size of a file of which all rows are decoded at once. Decoded, they take several times as much
HEAD_BYTES = 2**16  # Maximum size of a head that is read without the rest of the file. Canonical form has the rows last

_OPENING = re.compile(rb'"entries"\s*:\s*\[')
_SAFETENSORS = b"\0\0\0\0{"  # bytes of a safetensors file after the first 4: the rest of the length, and its header
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_ROW = b'"configs"'  # a field that each row has once


def read_table(path: Path) -> Table:
    """Read the table in the file. TableError if it is none; wrong rows are left out, and are in its ``errors``."""
    return read_finished(path, lambda path: table_of(path, read_bytes(path)), lambda table: bool(table.errors))


def table_of(path: Path, data: bytes) -> Table:
    """Return the table in the bytes of a file, as ``read_table`` does."""
    _require_size(path, data)
    with _no_garbage_collection():
        try:
            if len(data) <= AT_ONCE:
                with suppress(MsgspecError, UnicodeDecodeError):
                    table = _decode_table(data)
                    return _table(path, data, _header(table), table.entries)
            if data.count(b",") < MAX_VALUES:  # a table has few values without a comma
                head = _divided(data)
                return _table(path, data, _header(head), map(_decoded, head.entries))
        except (MsgspecError, UnicodeDecodeError, orjson.JSONDecodeError, RecursionError):
            pass  # parsing it as a whole tells what is wrong
        if data.count(_ROW) > MAX_ENTRIES:
            raise _too_many_rows(path)
        document = parse(path, data, MAX_PARSED)
        try:
            header = decode_header(document)
        except Fault as fault:
            raise located(path, data, [fault])[0] from None
        return _table(path, data, header, document["entries"])


_divided = msgspec.json.Decoder(DIVIDED).decode
_decode_row = msgspec.json.Decoder(ROW).decode
_decode_table = msgspec.json.Decoder(TABLE).decode


def _decoded(row: msgspec.Raw) -> Any:
    """Decode a row. If it is wrong, parse it, unless it has too many values."""
    try:
        return _decode_row(row)
    except (MsgspecError, UnicodeDecodeError):
        if has_more_values(bytes(row), MAX_PARSED):
            raise
        return orjson.loads(bytes(row))


def _table(path: Path, data: bytes, header: Table, written: Iterable[Any]) -> Table:
    rows = Rows(path, written)
    return Table(
        header.hardware,
        rows.entries,
        header.provenance,
        schema=header.schema,
        path=path,
        digest=hashlib.sha256(data).hexdigest(),
        errors=located(path, data, rows.faults.values()) if rows.faults else (),
        skipped=tuple(rows.faults),
    )


def read_hardware(path: Path) -> Hardware:
    """Read the hardware of the table in the file, of which the beginning is enough if it is in canonical form."""

    def read(path: Path) -> Hardware:
        try:
            with open_regular(path) as file:
                beginning = file.read(HEAD_BYTES)
        except OSError as error:
            raise TableError(f"cannot be read: {error.strerror}", path=path) from error
        opening = _OPENING.search(beginning)
        if opening:
            with suppress(orjson.JSONDecodeError, Fault):
                return decode_header(orjson.loads(beginning[: opening.end()] + b"]}")).hardware
        return table_of(path, read_bytes(path)).hardware

    return read_finished(path, read)


def read_bytes(path: Path) -> bytes:
    """Read the file. TableError if it cannot be read or is too large for a table."""
    try:
        return read_at_most(path, MAX_BYTES)
    except OSError as error:
        remedy = " (name files in it)" if isinstance(error, IsADirectoryError) else ""
        raise TableError(f"cannot be read: {error.strerror}{remedy}", path=path) from error


def parse(path: Path, data: bytes, most: int) -> Any:
    """Parse the bytes of the file as JSON. TableError if they are none, or have more values than ``most``."""
    _require_size(path, data)
    if data.startswith(_SAFETENSORS, 4):
        raise TableError("a model, not a table (names of models end with .safetensors)", path=path)
    if data.startswith(_LFS_POINTER):
        raise TableError("a pointer of Git LFS, not a table (`git lfs pull` fetches the table)", path=path)
    if has_more_values(data, most):
        raise TableError(f"more than {most} values, and not a table that can be read row by row", path=path)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if not data.strip():
            raise TableError("is empty (expected a table, which is a JSON object)", path=path) from None
        try:
            data.decode()
        except UnicodeDecodeError as wrong:
            place = place_at(data, wrong.start)
            remedy = "expected a table, which is JSON; `build` makes one of a dataset"
            reason = f"byte 0x{data[wrong.start]:02x} is not UTF-8 ({remedy})"
            raise TableError(reason, path=path, **place._asdict()) from None
        line = data.decode().split("\n")[error.lineno - 1]
        remedy = _NO_JSON.get(line[error.colno - 1 : error.colno]) or csv_remedy(data)
        reason = f"not JSON: {error.msg}{remedy}"
        if line.startswith("<<<<<<< "):
            reason = "git left a merge conflict here (`resolve` decides it, with --ours, --theirs or --best)"
        raise TableError(reason, path=path, line=error.lineno, column=error.colno) from None


_NO_COMMENT = " (JSON has no comments: say it in the note of a row)"

_NO_JSON = {
    "\ufeff": " (save it as UTF-8 without a byte order mark)",
    "<": " (of a web page, download the file itself)",
    "'": " (texts stand in double quotes)",
    "N": " (leave out a field whose value is not known)",
    "#": _NO_COMMENT,
    "/": _NO_COMMENT,
}
"""Remedies, by the character at which a file is no JSON any more."""


def _require_size(path: Path, data: bytes) -> None:
    """Raise TableError for bytes, such as those of standard input, that are too large for a table."""
    if len(data) > MAX_BYTES:
        reason = f"cannot be read: too large (allowed: {MAX_BYTES >> 20} MiB)"
        raise TableError(reason, path=path) from OSError(str(path))


def located(path: Path, data: bytes, faults: Iterable[Fault]) -> list[TableError]:
    """Return the faults of a document as errors with their places in its file."""
    positions = Positions(data)
    return [
        TableError(
            fault.reason, path=path, where=dotted(fault.path), note=fault.note, **positions.place(fault.path)._asdict()
        )
        for fault in faults
    ]


class Rows:
    """The good rows of a file, and the faults of the others by number. TableError if there are too many of either."""

    def __init__(self, path: Path, rows: Iterable[Any]) -> None:
        self.entries: list[Entry] = []
        self.faults: dict[int, Fault] = {}
        decoder = RowDecoder()
        for number, row in enumerate(rows):
            if number >= MAX_ENTRIES:
                raise _too_many_rows(path)
            try:
                if type(row) is ROW:
                    self.entries.append(decoder.entry(row))
                else:
                    self.entries.append(decoder.row(row, explain=len(self.faults) < EXPLAINED))
            except Fault as fault:
                self.faults[number] = fault.inside("entries", number)
                if len(self.faults) > MAX_WRONG:
                    first = next(iter(self.faults.values()))
                    reason = f"{first.reason}; and so on: more than {MAX_WRONG} rows are wrong, so that none is used"
                    raise TableError(reason, path=path, where=dotted(first.path)) from None


def _too_many_rows(path: Path) -> TableError:
    return TableError(f"too many (allowed: {MAX_ENTRIES})", path=path, where="entries")


def decode_header(document: object) -> Table:
    """Return the table without its entries. Fault has the first mistake, the version before others."""
    require_version(document)
    try:
        return _header(msgspec.convert(whole_numbers(document, 2), HEAD))
    except ValidationError as error:
        raise first_broken_rule(document, str(error)) from None


def _header(head: Any) -> Table:
    name, arch, sm_count, aliases = msgspec.structs.astuple(head.hardware)
    provenance = {} if head.provenance is None else msgspec.structs.asdict(head.provenance)
    known = {field: value for field, value in provenance.items() if value is not None}
    schema = SCHEMA if head.schema is None else head.schema
    return Table(Hardware(name, arch, sm_count, tuple(aliases or ())), (), known, schema=schema)


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


_DEPTH = 3  # nesting of numbers in a row: in an object, in a list, in a field

_new = tuple.__new__
_astuple = msgspec.structs.astuple
_PLAIN_DTYPES = (None, *DOMAINS[GEMMS[0]].dtypes)


class _KnownConfigs(dict[tuple[Any, ...], Config]):
    """The configs of a template, by the values of all its tunables: equal configs are the same object."""

    def __init__(self, template: str) -> None:
        super().__init__()
        self._template = template

    def __missing__(self, values: tuple[Any, ...]) -> Config:
        names = TEMPLATES[self._template].names
        config = self[values] = Config.make(self._template, dict(zip(names, values, strict=True)))
        return config


class RowDecoder:
    """Makes entries of rows, and shares equal configs between them."""

    def __init__(self) -> None:
        self._configs = {kind: _KnownConfigs(template) for template, kind in CONFIGS.items()}
        self._kinds: set[tuple[Any, ...]] = set()  # the fields and the given sizes of rows without a conflict

    def row(self, row: object, *, explain: bool = True) -> Entry:
        """Decode a parsed row. Fault has the first mistake, in words unless ``explain`` is False."""
        try:
            entry = self.entry(msgspec.convert(whole_numbers(row, _DEPTH), ROW))
        except ValidationError as error:
            raise first_broken_rule(row, str(error), "entry") if explain else Fault(str(error)) from None
        if any("\ud800" <= letter <= "\udfff" for letter in entry.note or ""):
            raise Fault(f"{shown(entry.note)} is not Unicode (a lone surrogate cannot be written)", "note")
        return entry

    def entry(self, row: Any) -> Entry:
        """Make the entry of a decoded row. Fault has the first conflict between its fields."""
        # fmt: off
        (
            op, dtype, layout, align, epilogue, variant, b, m, n, k, h, g, v, x, y, r, loads,
            n_align, problems, configs, note,
        ) = _astuple(row)
        # fmt: on
        candidates = self._candidates(configs)
        # This condition is cheap, and false for most rows.
        if (
            op not in GEMMS
            or dtype not in _PLAIN_DTYPES
            or not (variant is h is g is v is x is y is r is loads is n_align is None)
            or (b is not None and b[0] > b[1])
            or (m is not None and m[0] > m[1])
            or (n is not None and n[0] > n[1])
            or (k is not None and k[0] > k[1])
        ):
            sizes = b, m, n, k, h, g, v, x, y, r, loads
            kind = op, dtype, layout, align, epilogue, variant, *[size is None for size in sizes]
            is_ordered = all(size is None or size[0] <= size[1] for size in sizes)
            if kind not in self._kinds or not is_ordered or n_align is not None:
                for fault in mismatches(row):
                    raise fault
                self._kinds.add(kind)
        # fmt: off
        return _new(Entry, (
            op, dtype, layout, align, b, m, n, k, candidates, problems, note, epilogue, variant, h, g, v,
            n_align, x, y, r, loads,
        ))
        # fmt: on

    def _candidates(self, configs: Sequence[Any]) -> tuple[Candidate, ...]:
        known = self._configs
        candidates = {}
        for config in configs:
            values = _astuple(config)
            shared = known[type(config)][values[:-1]]
            candidates[id(shared)] = _new(Candidate, (shared, values[-1]))
        if len(candidates) < len(configs):
            found = [known[type(config)][_astuple(config)[:-1]] for config in configs]
            number = next(number for number, config in enumerate(found) if config in found[:number])
            raise Fault(f"{found[number]} is listed twice", "configs", number)
        return tuple(candidates.values())

    def readable(self, row: Mapping[str, Any]) -> tuple[Entry, list[Fault]]:
        """Decode the good fields of a bad row, and find faults of these fields together."""
        fields: dict[str, Any] = {}
        faults: list[Fault] = []
        for name in filter(row.__contains__, ROW_FIELDS):
            with suppress(ValidationError):
                fields[name] = msgspec.convert(whole_numbers(row[name], _DEPTH - 1), ROW_FIELDS[name])
        try:
            fields["candidates"] = self._candidates(fields.pop("configs", ()))
        except Fault as fault:
            fields["candidates"] = ()
            faults.append(fault)
        entry = Entry._make(map(fields.get, Entry._fields))
        return entry, [*faults, *mismatches(entry, known="op" in fields or "op" not in row)]


def decode_entry(row: object) -> Entry:
    """Decode a parsed row. Fault has the first mistake in words."""
    return RowDecoder().row(row)


def mismatches(row: Any, *, known: bool = True) -> Iterator[Fault]:
    """Find fields of a row or an entry in conflict: ranges in the wrong order, values that its ``known`` op lacks."""
    for name in SIZE_FIELDS:
        low, high = getattr(row, name) or (0, 0)
        if low > high:
            yield Fault(f"[{low}, {high}] ends before it begins (allowed: [lowest, highest])", name)
    if not known:
        return
    ops = MATMULS if row.op is None else (row.op,)
    for name in SIZE_FIELDS:
        may_be_one = name == "b" and row.op not in GENERATED
        if getattr(row, name) is not None and name not in OP_SIZES[ops[0]] and not may_be_one:
            yield Fault(f"is no size of {row.op or 'GEMMs'} (allowed: {', '.join(OP_SIZES[ops[0]])})", name)
            return
    if row.op in GENERATED and row.align is not None:
        yield Fault(f"is not for {row.op}, which has no alignment (leave it out)", "align")
    for place, domain in enumerate(Domain._fields):
        name = domain.removesuffix("s")
        value = getattr(row, name)
        having = tuple(op for op in ops if value is None or value in DOMAINS[op][place])
        if not having:
            allowed = dict.fromkeys(each for op in ops for each in DOMAINS[op][place] if each)
            said = f"allowed: {', '.join(allowed)}" if allowed else f"{row.op or 'a GEMM'} has no {domain}"
            yield Fault(f"{value!r} is not for {row.op or 'such problems'} ({said})", name)
            return
        ops = having
    if row.n_align is not None and (row.op not in GEMMS or row.dtype is None):
        yield Fault(f"needs an op (allowed: {', '.join(GEMMS)}) and a dtype", "n_align")
    elif row.n_align is not None and row.n is not None:
        low, high = row.n
        columns = aligned_columns(row.op, row.dtype)
        if low == high:
            yield Fault("is for a range of n (leave it out)", "n_align")
        elif row.n_align == 16 and high // columns * columns < low:
            yield Fault(f"no n from {low} to {high} is a multiple of {columns}", "n_align")


_paused = False  # whether this module paused garbage collection


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause the search for cycles, which loading does not make. Then all objects count as old."""
    global _paused
    if not gc.isenabled():
        yield
        return
    _paused = True
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # else the program keeps frozen objects
            gc.freeze()
            gc.unfreeze()
        gc.enable()
        _paused = False


@in_forked_children
def _collect_again() -> None:
    """Switch garbage collection on. The thread that paused it is not in the forked process."""
    if _paused:
        gc.enable()
