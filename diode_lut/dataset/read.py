"""Reading datasets: the frames that find damage, and the choice of a reader by the beginning of a file.

A dataset is a sequence of frames: two copies of the header, then the records. A frame is a msgpack object of type
ext 32: ``C9``, the length in 4 bytes, the kind in a byte, then the CRC-32 of these 6 bytes, the CRC-32 of the body, and
the body, which is msgpack again. Numbers are big-endian. The first checksum shows where the frame ends even if its body
is damaged, and whether the last frame of a file is incomplete: only then may it be cut off. After damage, reading goes
on at the next frame whose checksums are right.
"""

from __future__ import annotations

import logging
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgpack

from diode_lut.dataset.dataset import ZSTD_MAGIC, Dataset, Readable, chunks, opened
from diode_lut.dataset.record import (
    MAGIC,
    Header,
    Lost,
    Record,
    RecordDecoder,
    header_from_wire,
    header_to_wire,
    record_to_wire,
)
from diode_lut.dataset.torch_diode import JsonCursor, MsgpackCursor, open_torch_diode
from diode_lut.errors import DatasetError, printable
from diode_lut.hardware import Hardware

_log = logging.getLogger(__name__)

MAX_RECORD_BYTES = 2 << 20
"""Maximum size of a record: a search over ten thousand configs takes half a megabyte."""

HEADER, RECORD = b"HR"
"""The kinds of frames."""

HEADERS = 2
"""Copies of the header at the start of a dataset, which cannot be used without it."""

_EXT_32 = 0xC9
_BEGINNING = struct.Struct(">BIB")
_CHECKSUMS = struct.Struct(">II")
_HEAD_BYTES = _BEGINNING.size + _CHECKSUMS.size
_BEGINNINGS = re.compile(rb"\xc9\x00[\x00-\x20]..[HR]", re.DOTALL)

_MAX_FUTILE_BYTES = 256 << 20
"""Maximum number of bytes whose checksum is computed in vain. After these a damaged frame is skipped whole: a file that
needs more was made to take time."""


class _FrameHead(NamedTuple):
    kind: int
    size: int
    """Bytes of the whole frame."""
    checksum: int
    """Of the body."""


def frame(kind: int, body: bytes) -> bytes:
    """Return the body in a frame of this kind. DatasetError if it is too large."""
    if len(body) > MAX_RECORD_BYTES:
        raise DatasetError(f"a record of {len(body)} bytes (allowed: {MAX_RECORD_BYTES})")
    beginning = _BEGINNING.pack(_EXT_32, _CHECKSUMS.size + len(body), kind)
    return beginning + _CHECKSUMS.pack(crc32(beginning), crc32(body)) + body


def header_bytes(header: Header) -> bytes:
    """Return the beginning of a stream: all copies of the header."""
    return frame(HEADER, msgpack.packb(header_to_wire(header))) * HEADERS


def record_bytes(record: Record) -> bytes:
    """Return the record as a frame."""
    return frame(RECORD, msgpack.packb(record_to_wire(record)))


def holds_frames(beginning: bytes) -> bool:
    """Whether a file with this beginning is made of frames, perhaps damaged."""
    return next(_heads(beginning), None) is not None or _may_begin(beginning)


class Frames:
    """Iterates over the frames of a stream, in bounded memory, and yields kind and body of each.

    Damaged places are added to ``lost``. After the last frame, ``torn`` is the number of bytes of an incomplete frame
    at the end of the stream, and ``end`` the offset of its beginning.
    """

    def __init__(self, chunks: Iterable[bytes], lost: list[Lost]) -> None:
        self.lost = lost
        self.torn = 0
        self.end = 0
        self._window = _Window(chunks)
        self._counts = {HEADER: 0, RECORD: 0}

    @property
    def records(self) -> int:
        """Number of records so far, including those lost."""
        return self._counts[RECORD]

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        at, futile, claimed, torn = 0, 0, -1, -1
        while found := self._window.next_head(at):
            start, head = found
            if start == claimed:
                self._lose_until(start)
            body = self._window.take(start + _HEAD_BYTES, start + head.size)
            if body is None:
                torn, at = (start if torn < 0 else torn), start + 1
            elif crc32(body) == head.checksum:
                self._lose_until(start)
                self._counts[head.kind] += 1
                self.end = at = start + head.size
                torn = -1
                yield head.kind, body
            else:
                futile, claimed = futile + head.size, start + head.size
                at = start + 1 if futile < _MAX_FUTILE_BYTES else claimed
        # The rest, after the last frame, is an incomplete frame, or damaged.
        rest = self._window.take(self.end, self._window.end)
        if torn < 0 and rest and _may_begin(rest):
            torn = self.end
        self._lose_until(self._window.end if torn < 0 else torn)
        self.torn = self._window.end - self.end

    def _lose_until(self, place: int) -> None:
        if place > self.end:
            kind = HEADER if not self._counts[RECORD] and self._counts[HEADER] < HEADERS else RECORD
            self._counts[kind] += 1
            self.lost.append(Lost(self._counts[kind] if kind == RECORD else 0, self.end, place))
            self.end = place


class _Window:
    """The part of a stream in memory. Bytes before the last requested place are dropped."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._data = bytearray()
        self._begin = 0

    @property
    def end(self) -> int:
        """Offset of the first byte of the stream not read yet."""
        return self._begin + len(self._data)

    def take(self, start: int, end: int) -> bytes | None:
        """Return the bytes from ``start`` to ``end``, or None if the stream ends before or ``start`` was dropped."""
        while self.end < end and self._grow():
            pass
        if self.end < end or start < self._begin:
            return None
        return bytes(self._data[start - self._begin : end - self._begin])

    def next_head(self, at: int) -> tuple[int, _FrameHead] | None:
        """Return offset and head of the next frame, from ``at`` on, with an undamaged head, or None."""
        while True:
            del self._data[: at - self._begin]
            self._begin = at
            head = _head(self._data)
            found = next(_heads(self._data), None) if head is None else (0, head)
            if found is not None:
                return at + found[0], found[1]
            at = max(at, self.end - _HEAD_BYTES + 1)
            if not self._grow():
                return None

    def _grow(self) -> bool:
        """Read on, and return whether there was more."""
        chunk = next(self._chunks, b"")
        self._data += chunk
        return bool(chunk)


def _heads(data: bytes | bytearray) -> Iterator[tuple[int, _FrameHead]]:
    """Yield all heads with a right checksum and their offsets. A frame may begin there."""
    for match in _BEGINNINGS.finditer(data):
        head = _head(data, match.start())
        if head is not None:
            yield match.start(), head


def _head(data: bytes | bytearray, start: int = 0) -> _FrameHead | None:
    """Return the head at an offset if its checksum is right."""
    if start + _HEAD_BYTES > len(data) or data[start] != _EXT_32:
        return None
    _, length, kind = _BEGINNING.unpack_from(data, start)
    checksum, body_checksum = _CHECKSUMS.unpack_from(data, start + _BEGINNING.size)
    is_frame = kind in (HEADER, RECORD) and _CHECKSUMS.size <= length <= _CHECKSUMS.size + MAX_RECORD_BYTES
    if not is_frame or crc32(data[start : start + _BEGINNING.size]) != checksum:
        return None
    return _FrameHead(kind, _BEGINNING.size + length, body_checksum)


def _may_begin(rest: bytes) -> bool:
    """Whether the rest may be the beginning of a frame, too short for a whole head."""
    beginning, checksum = rest[: _BEGINNING.size], rest[_BEGINNING.size :][:4]
    like = beginning + b"\xc9\x00\x00\x00\x00R"[len(beginning) :]
    whole = _CHECKSUMS.pack(crc32(beginning), 0)[: len(checksum)] == checksum
    return len(rest) < _HEAD_BYTES and _BEGINNINGS.fullmatch(like) is not None and whole


_BEGINNING_BYTES = 4 << 10
"""Number of bytes by which a file is recognised. The copies of a header are shorter."""


def read_dataset(
    path: Path, *, hardware: Hardware | None = None, layout: str = "nn", contents: bytes | None = None
) -> Dataset:
    """Return the dataset in ``path``: our own stream, compact or not, or torch-diode's JSON or msgpack.

    torch-diode's files name neither the architecture of a device nor the layout of the operands. So the timings of
    ``hardware`` are read from such a file, which must use its name or an alias. The default is the known GPU in the
    file or its name. ``layout`` is assumed for all its problems; torch-diode's own collector multiplies ``nn``. Our own
    files have both, and the arguments are ignored. ``contents`` are the bytes of a file that is not on disk; ``path``
    is then its name in messages.

    Raises DatasetError if the file is not a dataset, and OSError if it cannot be read.
    """
    with opened(path, contents) as file:
        start = file.read(_BEGINNING_BYTES)
        file.seek(0)
        if not start:
            raise DatasetError(f"{path}: the file is empty")
        if b'"schema_version"' in start[:256]:
            raise DatasetError(f"{path}: a table, not a dataset")
        if start.lstrip()[:1] == b"{":
            return open_torch_diode(path, file, JsonCursor, hardware, layout, contents)
        if MAGIC.encode() in start[:256] or _begins_stream(start):
            return _stream(path, file, contents)
        if _begins_with_map(start):
            return open_torch_diode(path, file, MsgpackCursor, hardware, layout, contents)
        remedy = (
            " (`import timings` makes a dataset of CSV)"
            if start[:64].isascii() and b"," in start.replace(b";", b",")
            else ""
        )
        raise DatasetError(f"{path}: not a dataset: it begins with {start[:16]!r}{remedy}")


def is_dataset(contents: bytes) -> bool:
    """Whether these contents begin as a dataset does."""
    start = contents[:_BEGINNING_BYTES]
    if start.lstrip()[:1] == b"{":
        return b'"schema_version"' not in start and b'"operation"' in start
    return bool(start) and (_begins_stream(start) or _begins_with_map(start))


def _begins_stream(start: bytes) -> bool:
    """Whether our own format begins here, compact or not, perhaps damaged."""
    return start.startswith(ZSTD_MAGIC) or holds_frames(start)


def _begins_with_map(start: bytes) -> bool:
    """Whether a msgpack map begins here. A safetensors file may begin with the same byte, and has ``{`` after eight."""
    return (start[0] & 0xF0 == 0x80 or start[0] in (0xDE, 0xDF)) and not start.startswith(b"{", 8)


def open_stream(path: Path, contents: bytes | None = None) -> Dataset:
    """Return the dataset in a file of our own format, compact or not. DatasetError if its header cannot be read."""
    with opened(path, contents) as file:
        start = file.read(_BEGINNING_BYTES)
        file.seek(0)
        if start and not _begins_stream(start):
            raise DatasetError(f"{path}: not a dataset in diode_lut's own format: it begins with {start[:16]!r}")
        return _stream(path, file, contents)


def _stream(path: Path, file: Readable, contents: bytes | None) -> Dataset:
    header = read_header(path, file)
    return Dataset(path, header, partial(_records, path, header), contents)


def read_header(path: Path, file: Readable) -> Header:
    """Return the header at the beginning of our own stream, or raise DatasetError."""
    frames = Frames(chunks(path, file), [])
    body = next((body for kind, body in islice(frames, HEADERS) if kind == HEADER), None)
    if body is None and frames.lost:
        raise DatasetError(f"{path}: damaged: no copy of its header can be read, so the hardware is unknown")
    try:
        return header_from_wire(None if body is None else _unpacked(body))
    except DatasetError as error:
        raise DatasetError(f"{path}: {error}") from None


def _records(path: Path, header: Header, file: Readable, _skipped: Counter[str], lost: list[Lost]) -> Iterator[Record]:
    """Yield the records. DatasetError if the file has another header by now: its records are of other hardware."""
    decoder = RecordDecoder()
    frames = Frames(chunks(path, file), lost)
    for kind, body in frames:
        if kind == HEADER and header_from_wire(_unpacked(body)) != header:
            raise DatasetError(f"{path}: was replaced by another dataset while it was read: run the command again")
        if kind == RECORD:
            try:
                record = decoder.decode(_unpacked(body))
            except DatasetError as error:
                raise DatasetError(f"{path}: record {frames.records}: {error}") from None
            yield record
    if frames.torn:
        name = printable(str(path))
        _log.warning("%s: the last record was cut off by a crash: its %d bytes are left out", name, frames.torn)


def _unpacked(body: bytes) -> Any:
    try:
        return msgpack.unpackb(body, use_list=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise DatasetError(f"not msgpack: {str(error) or type(error).__name__}") from error
