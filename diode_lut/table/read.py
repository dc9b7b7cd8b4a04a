"""From files to tables.

A file in canonical form is parsed a piece at a time: all rows of a large table at once, as dictionaries, would take
several times the memory of the table itself. It is cut before rows without a look at what is in them. If the head,
closed with an empty list, and each piece, between brackets, are valid JSON, then so is the file, and it means the same.
Where that does not work out, the file is parsed as a whole.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from diode_lut.errors import TableError
from diode_lut.problem import Hardware
from diode_lut.table.decode import Header, decode_entry, decode_header
from diode_lut.table.entry import Entry
from diode_lut.table.fault import Fault
from diode_lut.table.position import Positions, dotted, place_at
from diode_lut.table.recall import Recall
from diode_lut.table.table import Table

MAX_BYTES = 256 * 2**20
MAX_ENTRIES = 1_000_000
HEAD_BYTES = 2**16
"""Where the entries of a file in canonical form begin, at the latest, for its hardware to be read quickly."""
PIECE_BYTES = 2**18
"""How much of a file in canonical form is parsed at once, about."""

Piece = tuple[bytes, list[Any]]
"""Some rows of a table: their text, and what it parses to."""

_OPENING = b'\n"entries": ['
_ROW = b'\n{"'
_CLOSING = b"\n]\n}\n"


def read_table(path: Path) -> Table:
    """The table in the file; TableError if the file as a whole is none.

    A row that is wrong is left out, and the table's ``errors`` say why.
    """
    data = read_bytes(path)
    with _no_garbage_collection():
        opening = data.find(_OPENING)
        if opening >= 0 and data.startswith(_ROW, opening + len(_OPENING)) and data.endswith(_CLOSING):
            with suppress(orjson.JSONDecodeError, Fault):
                return _table(path, data, decode_header(_head(data, opening)), _pieces(data, opening))
        document = parse(path, data)
        return _table(path, data, _header(path, data, document), [(data, document["entries"])])


def read_hardware(path: Path) -> Hardware:
    """The hardware that the table in the file is for; TableError if the header is not that of a table.

    Of a file in canonical form only the beginning is read.
    """
    beginning = read_bytes(path, HEAD_BYTES)
    opening = beginning.find(_OPENING)
    if opening >= 0:
        with suppress(orjson.JSONDecodeError, Fault):
            return decode_header(_head(beginning, opening)).hardware
    data = read_bytes(path)
    return _header(path, data, parse(path, data)).hardware


def read_bytes(path: Path, limit: int | None = None) -> bytes:
    """The file, or its first ``limit`` bytes; TableError if it cannot be read or is too large for a table."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1 if limit is None else limit)
    except OSError as error:
        raise TableError(f"cannot be read: {error.strerror}", path=path) from error
    if len(data) > MAX_BYTES:
        raise TableError(f"too large for a table (allowed: {MAX_BYTES >> 20} MiB)", path=path)
    return data


def parse(path: Path, data: bytes) -> Any:
    """The JSON document in the bytes of the file; TableError if there is none."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if not data.strip():
            raise TableError("is empty (expected a table, which is a JSON object)", path=path) from None
        try:
            data.decode()
        except UnicodeDecodeError as wrong:
            place = place_at(data, wrong.start)
            reason = f"byte 0x{data[wrong.start]:02x} is not UTF-8 (expected a table, which is JSON)"
            raise TableError(reason, path=path, **place._asdict()) from None
        raise TableError(f"not JSON: {error.msg}", path=path, line=error.lineno, column=error.colno) from None


def located(path: Path, data: bytes, faults: Iterable[Fault]) -> list[TableError]:
    """The faults of a document, as errors that name the places in the file it was parsed from."""
    positions = Positions(data)
    return [
        TableError(fault.reason, path=path, where=dotted(fault.path), **positions.place(fault.path)._asdict())
        for fault in faults
    ]


def _header(path: Path, data: bytes, document: Any) -> Header:
    try:
        return decode_header(document)
    except Fault as fault:
        raise located(path, data, [fault])[0] from None


def _head(data: bytes, opening: int) -> Any:
    """A file without its entries, which begin at ``opening``."""
    return orjson.loads(data[:opening] + _OPENING + b"]}")


def _pieces(data: bytes, opening: int) -> Iterator[Piece]:
    """The rows of a file, many at a time. Each piece begins with a row, so that none is empty."""
    start = opening + len(_OPENING)
    stop = len(data) - len(_CLOSING)
    while start < stop:
        comma = data.find(b"," + _ROW, start + PIECE_BYTES, stop)
        end = stop if comma < 0 else comma
        text = b"[" + data[start:end] + b"]"
        yield text, orjson.loads(text)
        start = end + 1


def decode_rows(path: Path, pieces: Iterable[Piece]) -> tuple[list[Entry], dict[int, Fault]]:
    """The rows of the file that are good, and what is wrong with the others, by number; TableError if too many."""
    recall = Recall()
    entries: list[Entry] = []
    faults: dict[int, Fault] = {}
    for piece, rows in pieces:
        literals = b"true" in piece or b"false" in piece or b"null" in piece
        decode = decode_entry if literals else recall.decode
        for row in rows:
            try:
                entries.append(decode(row))
            except Fault as fault:  # noqa: PERF203 (free where nothing is raised)
                number = len(entries) + len(faults)
                faults[number] = fault.inside("entries", number)
        if len(entries) + len(faults) > MAX_ENTRIES:
            raise TableError(f"too many (allowed: {MAX_ENTRIES})", path=path, where="entries")
    return entries, faults


def _table(path: Path, data: bytes, header: Header, pieces: Iterable[Piece]) -> Table:
    entries, faults = decode_rows(path, pieces)
    return Table(
        header.hardware,
        entries,
        header.provenance,
        schema=header.schema,
        path=path,
        digest=hashlib.sha256(data).hexdigest(),
        errors=located(path, data, faults.values()) if faults else (),
        skipped=tuple(faults),
    )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pauses the search for cycles, of which loading makes none, and which grows with the number of objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
