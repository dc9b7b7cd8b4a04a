"""A dataset: one file of timings, whatever its format, and its bytes, compact or not."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgpack
import zstandard

from diode_lut.dataset.record import Header, Lost, Record, Timing, lost_text
from diode_lut.errors import DatasetError, printable
from diode_lut.files import open_regular

_log = logging.getLogger(__name__)

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
"""The first bytes of a compact dataset: our own stream inside one zstd frame."""

_COMPACT_BYTES = 1 << 10
"""Compressed bytes that are decompressed at once: zstd makes at most 32 MB of them, whatever a file claims."""

_PLAIN_BYTES = 1 << 16
"""Largest chunk of a stream."""

_MAX_WINDOW_BYTES = 32 << 20
"""Farthest place before a byte that its zstd frame may refer to."""

_MAX_RATIO = 200
_RATIO_FREE_BYTES = 4 << 20
"""Timings shrink to about a tenth. A file that grows to more than _MAX_RATIO times its size, these bytes apart, was
made to exhaust memory."""


class Readable(Protocol):
    """A binary file that is open for reading."""

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes, at most ``size``; none at the end of the file."""


Records = Callable[[Readable, "Counter[str]", "list[Lost]"], Iterator[Record]]
"""Yields the records of an open file, and adds to what was skipped, by reason, and to the damaged places."""


class Dataset:
    """A file of timings. Iterating reads the file from its beginning, in bounded memory, and yields Records.

    ``skipped`` counts the timings that the last iteration could not represent, by reason: ``{"dtype int8": 3}`` for
    three timings of that dtype. ``lost`` are the damaged places that it passed over; they are logged once, when an
    iteration ends. Iterating raises DatasetError where nothing behind the damage can be read.
    """

    def __init__(self, path: Path, header: Header, records: Records, contents: bytes | None = None) -> None:
        self.path = path
        self.header = header
        self.skipped: Counter[str] = Counter()
        self.lost: list[Lost] = []
        self._logged: list[Lost] = []
        self._records = records
        self._contents = contents
        self._digest = ""

    def __iter__(self) -> Iterator[Record]:
        self.skipped.clear()
        self.lost.clear()
        with opened(self.path, self._contents) as source:
            file = _Hashing(source)
            yield from self._records(file, self.skipped, self.lost)
            self._digest = file.digest()
        if self.lost and self.lost != self._logged:
            self._logged = list(self.lost)
            _log.warning("%s: %s", printable(str(self.path)), lost_text(self.lost))

    @property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the bytes that the last complete iteration read; without one, of the file."""
        if not self._digest:
            with opened(self.path, self._contents) as file:
                self._digest = _Hashing(file).digest()
        return self._digest


def opened(path: Path, contents: bytes | None) -> BinaryIO:
    """The file, to be read; or its contents, which are not on disk."""
    return open_regular(path) if contents is None else BytesIO(contents)


class _Hashing:
    """Passes on what is read of a file, and hashes it."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        """See Readable."""
        data = self._file.read(size)
        self._hash.update(data)
        return data

    def digest(self) -> str:
        """SHA-256 of the whole file, in hexadecimal; reads the rest of it."""
        while self.read(1 << 20):
            pass
        return self._hash.hexdigest()


def chunks(path: Path, file: Readable) -> Iterator[bytes]:
    """The stream in the file, decompressed if it is compact; DatasetError if its frame is damaged or has no end."""
    start = file.read(_COMPACT_BYTES)
    if start.startswith(ZSTD_MAGIC):
        yield from _decompressed(path, start, file)
    elif start:
        yield start + file.read(_PLAIN_BYTES - len(start))
        yield from iter(lambda: file.read(_PLAIN_BYTES), b"")


def _decompressed(path: Path, start: bytes, file: Readable) -> Iterator[bytes]:
    frame = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompressobj()
    compact = plain = 0
    chunk = start
    try:
        while chunk and not frame.eof:
            data = frame.decompress(chunk)
            compact, plain = compact + len(chunk), plain + len(data)
            if plain > _MAX_RATIO * compact + _RATIO_FREE_BYTES:
                raise DatasetError(f"{path}: damaged: grows to more than {_MAX_RATIO} times its size")
            yield from (data[at : at + _PLAIN_BYTES] for at in range(0, len(data), _PLAIN_BYTES))
            chunk = b"" if frame.eof else file.read(_COMPACT_BYTES)
    except zstandard.ZstdError as error:
        raise DatasetError(f"{path}: damaged: {error}") from error
    if not frame.eof:
        raise DatasetError(f"{path}: cut off: its zstd frame has no end (fetch or pack it again)")
    if frame.unused_data or file.read(1):
        raise DatasetError(f"{path}: more follows the end of its zstd frame: not written by the pack command")


MAX_BYTES = 1 << 30
"""Size limit of a JSON file, because its whole text is in memory."""

MAX_VALUE_BYTES = 4 << 20
"""Size limit of a value that is decoded at once: its objects may take a hundred times as much memory."""

_USUAL_VALUE_BYTES = 64 << 10
"""Nearly all values are smaller."""


class Cursor(Protocol):
    """A place in a document. Its methods raise ValueError, or msgpack's UnpackException, on a damaged document."""

    def enter(self) -> Iterator[Any]:
        """The keys of the map that begins here; after each key, its value must be entered or taken."""

    def value(self) -> Any:
        """Take the value that begins here."""

    def end(self) -> None:
        """ValueError if anything of the document is left."""


class JsonCursor:
    """Walks through the text of a JSON file, which may hold NaN and Infinity, as Python's json writes them."""

    def __init__(self, file: Readable) -> None:
        data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"too large (allowed: {MAX_BYTES >> 20} MiB)")
        self._text = data.decode("utf-8")
        self._position = 0
        self._decoder = json.JSONDecoder()

    def enter(self) -> Iterator[Any]:
        """See Cursor."""
        self._take("{")
        more = self._peek() != "}"
        if not more:
            self._take("}")
        while more:
            key = self.value()
            self._take(":")
            yield key
            more = self._peek() == ","
            self._take("," if more else "}")

    def value(self) -> Any:
        """See Cursor."""
        self._peek()
        with suppress(ValueError):
            return self._decoded(_USUAL_VALUE_BYTES)
        return self._decoded(MAX_VALUE_BYTES)

    def end(self) -> None:
        """See Cursor."""
        if self._peek():
            raise json.JSONDecodeError("Extra data", self._text, self._position)

    def _decoded(self, most: int) -> Any:
        """The value that begins here; ValueError if it is longer than ``most`` characters."""
        text = self._text[self._position : self._position + most]
        try:
            value, end = self._decoder.raw_decode(text)
        except json.JSONDecodeError as error:
            raise json.JSONDecodeError(error.msg, self._text, self._position + error.pos) from None
        if end == most:
            raise ValueError(f"a value of more than {most >> 20} MiB")
        self._position += end
        return value

    def _peek(self) -> str:
        match = _SPACE.match(self._text, self._position)
        assert match is not None
        self._position = match.end()
        return self._text[self._position : self._position + 1]

    def _take(self, expected: str) -> None:
        if self._peek() != expected:
            raise json.JSONDecodeError(f"Expecting '{expected}'", self._text, self._position)
        self._position += 1


class MsgpackCursor:
    """Walks through a msgpack file."""

    def __init__(self, file: Readable) -> None:
        self._unpacker = msgpack.Unpacker(file, max_buffer_size=MAX_VALUE_BYTES)

    def enter(self) -> Iterator[Any]:
        """See Cursor."""
        for _ in range(self._unpacker.read_map_header()):
            yield self.value()

    def value(self) -> Any:
        """See Cursor."""
        return self._unpacker.unpack()

    def end(self) -> None:
        """See Cursor."""
        if next(self._unpacker, None) is not None:
            raise ValueError("more follows the document")


_SPACE = re.compile(r"[ \t\r\n]*")


def as_lines(dataset: Dataset) -> Iterator[str]:
    """The header, then a line for each problem and stage, and one for each config, the fastest first."""
    hardware, *software = dataset.header
    yield printable(str(hardware))
    yield from (
        printable(f"{name}: {value}") for name, value in zip(dataset.header._fields[1:], software, strict=True) if value
    )
    for record in dataset:
        yield f"{record.problem} {record.stage}"
        yield from (f"  {_timing_text(timing)}" for timing in fastest_first(record))


def as_document(dataset: Dataset) -> dict[str, Any]:
    """``{"header": {...}, "records": [{problem, "stage", "timings": [{config, "ns"} or {config, "reason"}]}]}``."""
    header = {name: value for name, value in dataset.header._asdict().items() if value}
    return {
        "header": {**header, "hardware": dataset.header.hardware._asdict()},
        "records": [_record(record) for record in dataset],
    }


def fastest_first(record: Record) -> Iterable[Timing]:
    """The timings in the order of their times; failures come last."""
    return sorted(record.timings, key=lambda timing: math.inf if timing.ns is None else timing.ns)


def _timing_text(timing: Timing) -> str:
    return f"{timing.config}: {timing.reason if timing.ns is None else f'{timing.ns / 1000:.2f} us'}"


def _record(record: Record) -> dict[str, Any]:
    timings = [
        {**timing.config.to_json(), **({"reason": timing.reason} if timing.ns is None else {"ns": timing.ns})}
        for timing in fastest_first(record)
    ]
    return {**record.problem.to_json(), "stage": record.stage, "timings": timings}
