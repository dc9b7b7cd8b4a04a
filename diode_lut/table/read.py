"""From files to tables.

A file is parsed a piece at a time: all rows of a large table at once, as dictionaries, would take several times the
memory of the table itself. It is cut before what looks like the first row. If the head, closed with an empty list, and
each piece, between brackets, are valid JSON, then so is the file, and it means the same. Where that does not work out,
a file that is not too large is parsed as a whole.

Before anything is parsed its values are counted, as far as brackets and commas tell: few bytes can be many objects.
"""

from __future__ import annotations

import gc
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from diode_lut.bounded import has_more_values, read_at_most
from diode_lut.errors import TableError
from diode_lut.problem import Hardware
from diode_lut.table.decode import MAX_ENTRIES, Header, decode_entry, decode_header
from diode_lut.table.entry import Entry
from diode_lut.table.fault import Fault
from diode_lut.table.position import Landmark, Positions, dotted, place_at
from diode_lut.table.recall import Recall
from diode_lut.table.table import MAX_BYTES, Table

MAX_VALUES = 1_000_000
"""In what is parsed at once, which is less than the file where the rows are all written in the same way."""
MAX_WRONG = 10_000
"""With more rows that are wrong the file is none of ours."""
HEAD_BYTES = 2**16
"""Where the entries of a file in canonical form begin, at the latest, for its hardware to be read quickly."""
PIECE_BYTES = 2**18
"""How much of a file is parsed at once, about."""

Piece = tuple[bytes, list[Any]]
"""Some rows of a table: their text, and what it parses to."""

_OPENING = re.compile(rb'"entries"\s*:\s*\[(\s*)(\{\s*")[^"\\]*"')
_CLOSING = re.compile(rb"\s*\]\s*\}\s*\Z")
_CLOSING_BYTES = 64
_SAFETENSORS = b"\0\0\0\0{"
"""How a safetensors file goes on after 4 bytes: the rest of its header's length, and the header."""
_ROW = b'"configs"'
"""What every row has once."""


def read_table(path: Path) -> Table:
    """The table in the file; TableError if the file as a whole is none.

    A row that is wrong is left out, and the table's ``errors`` say why.
    """
    data = read_bytes(path)
    if data.count(_ROW) > MAX_ENTRIES:
        raise _too_many_rows(path)
    with _no_garbage_collection():
        opening = _OPENING.search(data)
        closing = _CLOSING.search(data, len(data) - _CLOSING_BYTES)
        if opening and closing:
            with suppress(orjson.JSONDecodeError, Fault):
                header = decode_header(_head(data, opening))
                landmarks: list[Landmark] = []
                pieces = _pieces(path, data, opening, closing.start(), landmarks)
                return _table(path, data, header, pieces, landmarks)
        document = parse(path, data, MAX_VALUES)
        return _table(path, data, _header(path, data, document), [(data, document["entries"])])


def read_hardware(path: Path) -> Hardware:
    """The hardware that the table in the file is for; TableError if the header is not that of a table.

    Where the rows come last, as in canonical form, only the beginning is read.
    """
    beginning = _read(path, HEAD_BYTES)
    opening = _OPENING.search(beginning)
    if opening:
        with suppress(orjson.JSONDecodeError, Fault):
            return decode_header(_head(beginning, opening)).hardware
    data = read_bytes(path)
    return _header(path, data, parse(path, data, MAX_VALUES)).hardware


def read_bytes(path: Path) -> bytes:
    """The file; TableError if it cannot be read or is too large for a table."""
    try:
        return read_at_most(path, MAX_BYTES)
    except OSError as error:
        raise TableError(f"cannot be read: {error.strerror}", path=path) from error


def parse(path: Path, data: bytes, most: int) -> Any:
    """The JSON document in the bytes of the file; TableError if there is none, or one of more values than ``most``."""
    if data.startswith(_SAFETENSORS, 4):
        raise TableError("a model, not a table (names of models end with .safetensors)", path=path)
    if has_more_values(data, most):
        remedy = "if it is a table, write it with jq . or fmt, the rows last"
        raise TableError(f"not JSON, or more than {most} values that can only be read at once ({remedy})", path=path)
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
        TableError(
            fault.reason,
            path=path,
            where=dotted(fault.path),
            note=fault.note,
            **positions.place(fault.path)._asdict(),
        )
        for fault in faults
    ]


def _header(path: Path, data: bytes, document: Any) -> Header:
    try:
        return decode_header(document)
    except Fault as fault:
        raise located(path, data, [fault])[0] from None


def _read(path: Path, size: int) -> bytes:
    """The beginning of a file."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise TableError(f"cannot be read: {error.strerror}", path=path) from error


def _head(data: bytes, opening: re.Match[bytes]) -> Any:
    """A file without its rows."""
    head = data[: opening.start(1)] + b"]}"
    if has_more_values(head, MAX_VALUES):
        raise Fault("too many values")
    return orjson.loads(head)


def _pieces(path: Path, data: bytes, opening: re.Match[bytes], stop: int, landmarks: list[Landmark]) -> Iterator[Piece]:
    """The rows of a file, many at a time. Each piece begins with a row, so that none is empty, and is a landmark.

    Rows begin as the first does: after the same white space; where there is none, with the same name.
    """
    start, count = opening.start(1), 0
    row = b"," + (opening[1] + opening[2] if opening[1] else data[opening.start(2) : opening.end()])
    while start < stop:
        comma = data.find(row, start + PIECE_BYTES, stop)
        end = stop if comma < 0 else comma
        text = b"[" + data[start:end] + b"]"
        if has_more_values(text, MAX_VALUES):
            raise TableError(f"more than {MAX_VALUES} values where rows should be", path=path, where="entries")
        rows = orjson.loads(text)
        landmarks.append(Landmark(count, start))
        yield text, rows
        start, count = end + 1, count + len(rows)


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
                if number >= MAX_ENTRIES:
                    raise _too_many_rows(path) from None
                if len(faults) > MAX_WRONG:
                    raise _wrong(path, faults) from None
        if len(entries) + len(faults) > MAX_ENTRIES:
            raise _too_many_rows(path)
    return entries, faults


def _too_many_rows(path: Path) -> TableError:
    return TableError(f"too many (allowed: {MAX_ENTRIES})", path=path, where="entries")


def _wrong(path: Path, faults: dict[int, Fault]) -> TableError:
    """That there is hardly a good row."""
    first = next(iter(faults.values()))
    reason = f"{first.reason}; and so on: more than {MAX_WRONG} rows are wrong, so that none is used"
    return TableError(reason, path=path, where=dotted(first.path))


def _table(
    path: Path, data: bytes, header: Header, pieces: Iterable[Piece], landmarks: Sequence[Landmark] = ()
) -> Table:
    """The table of the pieces; ``landmarks`` may be known only when all of them were seen."""
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
        landmarks=landmarks,
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
