"""From files to tables.

A file is parsed a chunk at a time: all rows of a large table at once, as dictionaries, would take several times the
memory of the table itself. It is cut before what looks like the first row. If the head, closed with an empty list, and
each chunk, between brackets, are valid JSON, then so is the file, and it means the same. Where that does not work out,
a file that is not too large is parsed as a whole.

Before anything is parsed its values are counted, as far as brackets and commas tell: few bytes can be many objects.
"""

from __future__ import annotations

import gc
import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from msgspec import MsgspecError

from diode_lut.errors import TableError
from diode_lut.files import has_more_values, open_regular, read_at_most, read_finished
from diode_lut.hardware import Hardware
from diode_lut.process import in_forked_children
from diode_lut.table.faults import Fault, Landmark, Positions, dotted, place_at
from diode_lut.table.format import MAX_ENTRIES, RowDecoder, TableHeader, decode_header
from diode_lut.table.row import Entry
from diode_lut.table.table import MAX_BYTES, Table

MAX_VALUES = 1_000_000
"""In what is parsed at once, which is less than the file where the rows are all written in the same way."""
MAX_WRONG = 10_000
"""With more rows that are wrong the file is none of ours."""
EXPLAINED = 500
"""Most wrong rows that are validated against the schema, which gives the best message in half a millisecond a row."""
HEAD_BYTES = 2**16
"""Where the entries of a file in canonical form begin, at the latest, for its hardware to be read quickly."""
PIECE_BYTES = 2**18
"""How much of a file is parsed at once, about."""


class Chunk(NamedTuple):
    """Some rows of a table, as a JSON list, and where the first begins in the file."""

    offset: int
    text: bytes


_OPENING = re.compile(rb'"entries"\s*:\s*\[(\s*)(\{\s*")[^"\\]*"')
_CLOSING = re.compile(rb"\s*\]\s*\}\s*\Z")
_CLOSING_BYTES = 64
_SAFETENSORS = b"\0\0\0\0{"
"""How a safetensors file goes on after 4 bytes: the rest of its header's length, and the header."""
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_ROW = b'"configs"'
"""What every row has once."""


def read_table(path: Path) -> Table:
    """The table in the file; TableError if the file as a whole is none.

    A row that is wrong is left out, and the table's ``errors`` say why. A damaged file that another program is writing
    is read again.
    """
    return read_finished(path, lambda path: table_of(path, read_bytes(path)), lambda table: bool(table.errors))


def table_of(path: Path, data: bytes) -> Table:
    """The table in the bytes that were read from the file; otherwise as ``read_table``."""
    _require_size(path, data)
    if data.count(_ROW) > MAX_ENTRIES:
        raise _too_many_rows(path)
    with _no_garbage_collection():
        opening = _OPENING.search(data)
        closing = _CLOSING.search(data, len(data) - _CLOSING_BYTES)
        if opening and closing:
            with suppress(orjson.JSONDecodeError, Fault):
                header = decode_header(_head(data, opening))
                rows = Rows(path)
                for chunk in _chunks(path, data, opening, closing.start()):
                    rows.add_chunk(chunk)
                return _table(path, data, header, rows)
        document = parse(path, data, MAX_VALUES)
        header = _header(path, data, document)
        rows = Rows(path)
        rows.add_parsed(document["entries"])
        return _table(path, data, header, rows)


def read_hardware(path: Path) -> Hardware:
    """The hardware that the table in the file is for; TableError if the header is not that of a table.

    Where the rows come last, as in canonical form, only the beginning is read. A damaged file that another program is
    writing is read again.
    """
    return read_finished(path, _hardware)


def _hardware(path: Path) -> Hardware:
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
    _require_size(path, data)
    if data.startswith(_SAFETENSORS, 4):
        raise TableError("a model, not a table (names of models end with .safetensors)", path=path)
    if data.startswith(_LFS_POINTER):
        raise TableError("a pointer of Git LFS, not a table (`git lfs pull` fetches the table)", path=path)
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
            remedy = "expected a table, which is JSON; `build` makes one of a dataset"
            reason = f"byte 0x{data[wrong.start]:02x} is not UTF-8 ({remedy})"
            raise TableError(reason, path=path, **place._asdict()) from None
        reason = f"not JSON: {error.msg}"
        if data.split(b"\n")[error.lineno - 1].startswith(b"<<<<<<< "):
            reason = "git left a merge conflict here (`resolve` decides it, with --ours, --theirs or --best)"
        raise TableError(reason, path=path, line=error.lineno, column=error.colno) from None


def _require_size(path: Path, data: bytes) -> None:
    """TableError for what was read elsewhere, such as from standard input, and is too large for a table."""
    if len(data) > MAX_BYTES:
        raise TableError(f"cannot be read: too large (allowed: {MAX_BYTES >> 20} MiB)", path=path) from OSError(
            str(path)
        )


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


def _header(path: Path, data: bytes, document: Any) -> TableHeader:
    try:
        return decode_header(document)
    except Fault as fault:
        raise located(path, data, [fault])[0] from None


def _read(path: Path, size: int) -> bytes:
    """The beginning of a file."""
    try:
        with open_regular(path) as file:
            return file.read(size)
    except OSError as error:
        raise TableError(f"cannot be read: {error.strerror}", path=path) from error


def _head(data: bytes, opening: re.Match[bytes]) -> Any:
    """A file without its rows."""
    head = data[: opening.start(1)] + b"]}"
    if has_more_values(head, MAX_VALUES):
        raise Fault("too many values")
    return orjson.loads(head)


def _chunks(path: Path, data: bytes, opening: re.Match[bytes], stop: int) -> Iterator[Chunk]:
    """The rows of a file, many at a time. Each chunk begins with a row, so that none is empty.

    Rows begin as the first does: after the same white space; where there is none, with the same name.
    """
    start = opening.start(1)
    row = b"," + (opening[1] + opening[2] if opening[1] else data[opening.start(2) : opening.end()])
    while start < stop:
        comma = data.find(row, start + PIECE_BYTES, stop)
        end = stop if comma < 0 else comma
        text = b"[" + data[start:end] + b"]"
        if has_more_values(text, MAX_VALUES):
            raise TableError(f"more than {MAX_VALUES} values where rows should be", path=path, where="entries")
        yield Chunk(start, text)
        start = end + 1


class Rows:
    """The good rows of a file, and the faults of the others by number.

    ``landmarks`` are the first rows of the chunks that were added.
    """

    def __init__(self, path: Path) -> None:
        self.entries: list[Entry] = []
        self.faults: dict[int, Fault] = {}
        self.landmarks: list[Landmark] = []
        self._path = path
        self._decoder = RowDecoder()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.entries) + len(self.faults)

    def add_chunk(self, chunk: Chunk) -> None:
        """Decode a chunk, at once if all rows are good. JSONDecodeError if it is no list; TableError if too many."""
        self.landmarks.append(Landmark(self.count, chunk.offset))
        try:
            entries = self._decoder.rows(chunk.text)
        except (MsgspecError, UnicodeDecodeError, Fault):
            self.add_parsed(orjson.loads(chunk.text))
        else:
            self.entries += entries
            if self.count > MAX_ENTRIES:
                raise _too_many_rows(self._path)

    def add_parsed(self, rows: list[Any]) -> None:
        """Decode rows one by one; TableError if there are too many, or too many that are wrong."""
        for row in rows:
            if self.count >= MAX_ENTRIES:
                raise _too_many_rows(self._path)
            try:
                self.entries.append(self._decoder.row(row, explain=len(self.faults) < EXPLAINED))
            except Fault as fault:
                self.faults[self.count] = fault.inside("entries", self.count)
                if len(self.faults) > MAX_WRONG:
                    raise _wrong(self._path, self.faults) from None


def _too_many_rows(path: Path) -> TableError:
    return TableError(f"too many (allowed: {MAX_ENTRIES})", path=path, where="entries")


def _wrong(path: Path, faults: dict[int, Fault]) -> TableError:
    """That there is hardly a good row."""
    first = next(iter(faults.values()))
    reason = f"{first.reason}; and so on: more than {MAX_WRONG} rows are wrong, so that none is used"
    return TableError(reason, path=path, where=dotted(first.path))


def _table(path: Path, data: bytes, header: TableHeader, rows: Rows) -> Table:
    return Table(
        header.hardware,
        rows.entries,
        header.provenance,
        schema=header.schema,
        path=path,
        digest=hashlib.sha256(data).hexdigest(),
        errors=located(path, data, rows.faults.values()) if rows.faults else (),
        skipped=tuple(rows.faults),
        landmarks=rows.landmarks,
    )


_paused = False
"""Whether garbage collection is paused here."""


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause the search for cycles, of which loading makes none, and which grows with the number of objects."""
    global _paused
    if not gc.isenabled():
        yield
        return
    _paused = True
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _paused = False


@in_forked_children
def _collect_again() -> None:
    """The thread that paused garbage collection is not in the forked process."""
    if _paused:
        gc.enable()
