"""Frames: the form in which a dataset stores its header and records, so that damage is found and costs one record.

A frame is a msgpack object of type ext 32: ``C9``, the length in 4 bytes, the kind in one byte; then the CRC-32 of
these 6 bytes, the CRC-32 of the body, and the body, which is msgpack again. Numbers are big-endian. The first checksum
says where the frame ends even if its body is damaged, and whether the last frame of a file is incomplete: only then may
it be cut off. Behind damage, reading goes on at the next frame whose checksums are right.
"""

from __future__ import annotations

import logging
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgpack

from diode_lut.dataset.dataset import ZSTD_MAGIC, Dataset, JsonCursor, MsgpackCursor, Readable, chunks, opened
from diode_lut.dataset.record import (
    MAGIC,
    UNFRAMED,
    Header,
    Lost,
    Record,
    RecordDecoder,
    header_from_wire,
    header_to_wire,
    record_to_wire,
)
from diode_lut.dataset.torch_diode import open_torch_diode
from diode_lut.errors import DatasetError, printable
from diode_lut.hardware import Hardware
from diode_lut.problem import OPS

MAX_RECORD_BYTES = 2 << 20
"""No record is larger: a search over ten thousand configs takes half a megabyte."""

HEADER, RECORD = b"HR"
"""The kinds of frames."""

HEADERS = 2
"""Copies of the header at the start of a dataset: a dataset without a readable header cannot be used."""

_EXT_32 = 0xC9
_BEGINNING = struct.Struct(">BIB")
_CHECKSUMS = struct.Struct(">II")
_HEAD_BYTES = _BEGINNING.size + _CHECKSUMS.size
_BEGINNINGS = re.compile(rb"\xc9\x00[\x00-\x20]..[HR]", re.DOTALL)

_MAX_FUTILE_BYTES = 256 << 20
"""Most bytes whose checksum is computed in vain. After these a damaged frame is skipped whole: a file that needs more
was made to take time."""


class _Head(NamedTuple):
    kind: int
    size: int
    """Bytes of the whole frame."""
    checksum: int
    """Of the body."""


def frame(kind: int, body: bytes) -> bytes:
    """The body in a frame of this kind; DatasetError if it is too large."""
    if len(body) > MAX_RECORD_BYTES:
        raise DatasetError(f"a record of {len(body)} bytes (allowed: {MAX_RECORD_BYTES})")
    beginning = _BEGINNING.pack(_EXT_32, _CHECKSUMS.size + len(body), kind)
    return beginning + _CHECKSUMS.pack(crc32(beginning), crc32(body)) + body


def header_bytes(header: Header) -> bytes:
    """The beginning of a stream: all copies of the header."""
    return frame(HEADER, msgpack.packb(header_to_wire(header))) * HEADERS


def record_bytes(record: Record) -> bytes:
    """The record as a frame."""
    return frame(RECORD, msgpack.packb(record_to_wire(record)))


def holds_frames(beginning: bytes) -> bool:
    """Whether a file with this beginning is made of frames, some of which may be damaged."""
    return next(_heads(beginning), None) is not None or _may_begin(beginning)


class Frames:
    """The kind and the body of each frame in a stream, which is read once, in bounded memory.

    Damaged places are added to ``lost``. After the last frame, ``torn`` is the number of bytes of an incomplete frame
    at the end of the stream, and ``end`` the offset at which that begins.
    """

    def __init__(self, chunks: Iterable[bytes], lost: list[Lost]) -> None:
        self.lost = lost
        self.torn = 0
        self.end = 0
        self._window = _Window(chunks)
        self._counts = {HEADER: 0, RECORD: 0}

    @property
    def records(self) -> int:
        """Number of records so far, including lost ones."""
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
        self._finish(torn)

    def _finish(self, torn: int) -> None:
        """Count the rest of the stream, behind the last frame, as an incomplete frame or as damaged."""
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
    """The part of a stream that is in memory: what lies before the last requested place is dropped."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._data = bytearray()
        self._begin = 0

    @property
    def end(self) -> int:
        """Offset of the first byte of the stream that was not read yet."""
        return self._begin + len(self._data)

    def take(self, start: int, end: int) -> bytes | None:
        """The bytes of the stream from ``start`` to ``end``; None if it ends before, or ``start`` was dropped."""
        while self.end < end and self._grow():
            pass
        if self.end < end or start < self._begin:
            return None
        return bytes(self._data[start - self._begin : end - self._begin])

    def next_head(self, at: int) -> tuple[int, _Head] | None:
        """The offset and head of the next frame, from ``at`` on, whose head is not damaged; None without one."""
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
        """Whether there was more of the stream."""
        chunk = next(self._chunks, b"")
        self._data += chunk
        return bool(chunk)


def _heads(data: bytes | bytearray) -> Iterator[tuple[int, _Head]]:
    """The offsets at which frames may begin: those of all heads with a right checksum, whatever follows them."""
    for match in _BEGINNINGS.finditer(data):
        head = _head(data, match.start())
        if head is not None:
            yield match.start(), head


def _head(data: bytes | bytearray, start: int = 0) -> _Head | None:
    """The head at an offset, if one with a right checksum is there."""
    if start + _HEAD_BYTES > len(data) or data[start] != _EXT_32:
        return None
    _, length, kind = _BEGINNING.unpack_from(data, start)
    checksum, body_checksum = _CHECKSUMS.unpack_from(data, start + _BEGINNING.size)
    is_frame = kind in (HEADER, RECORD) and _CHECKSUMS.size <= length <= _CHECKSUMS.size + MAX_RECORD_BYTES
    if not is_frame or crc32(data[start : start + _BEGINNING.size]) != checksum:
        return None
    return _Head(kind, _BEGINNING.size + length, body_checksum)


def _may_begin(rest: bytes) -> bool:
    """Whether the rest may be the beginning of a frame, which is too short to have its whole head."""
    beginning, checksum = rest[: _BEGINNING.size], rest[_BEGINNING.size :][:4]
    like = beginning + b"\xc9\x00\x00\x00\x00R"[len(beginning) :]
    whole = _CHECKSUMS.pack(crc32(beginning), 0)[: len(checksum)] == checksum
    return len(rest) < _HEAD_BYTES and _BEGINNINGS.fullmatch(like) is not None and whole


_UNFRAMED_BEGINNINGS = re.compile(rb"\x93\x98(?:%s)" % b"|".join(msgpack.packb(op) for op in OPS))
"""How a record begins: a list of three, whose first is a list of eight, whose first is the op."""

_LONGEST_BEGINNING = 2 + max(len(msgpack.packb(op)) for op in OPS)

_MAX_ATTEMPTS = 1000
"""Most places at which reading resumes. After these the rest counts as lost, so that no file takes too much time."""

_END = object()


class Unframed:
    """The header's object, undecoded, and the records of a stream, which is read once, in bounded memory.

    Damaged places are added to ``lost``.
    """

    def __init__(self, chunks: Iterable[bytes], decode: Callable[[Any], Record], lost: list[Lost]) -> None:
        self.lost = lost
        self._chunks = iter(chunks)
        self._decode = decode
        self._data = bytearray()
        self._start = self._end = self._origin = 0
        self._unpacker: Any = None
        self._begin_at(0)

    def header(self) -> Any:
        """The first object, to be taken first; None if the stream ends within it. Raises what msgpack does."""
        header = self._object()
        self._drop(self._end)
        return None if header is _END else header

    def records(self) -> Iterator[Record]:
        """The records that are not damaged."""
        number, gap, attempts = 1, -1, 0
        while True:
            record = self._record()
            if record is not None:
                if gap >= 0:
                    self.lost.append(Lost(number, gap, self._start))
                    number, gap = number + 1, -1
                self._drop(self._end)
                number += 1
                yield record
            elif not self._data and gap < 0:
                return
            else:
                gap, attempts = self._start if gap < 0 else gap, attempts + 1
                if not self._find(self._start + 1, attempts < _MAX_ATTEMPTS):
                    self.lost.append(Lost(number, gap, self._start))
                    return

    def _record(self) -> Record | None:
        """The record that begins here, and ends at ``_end``; None if there is none. Errors of the chunks come out."""
        while True:
            try:
                wire = self._unpacked()
                if wire is not _END:
                    return self._decode(wire)
            except (DatasetError, ValueError, msgpack.UnpackException):
                return None
            if not self._feed():
                return None

    def _object(self) -> Any:
        while (wire := self._unpacked()) is _END and self._feed():
            pass
        return wire

    def _unpacked(self) -> Any:
        """The next object of what is in memory, which ends at ``_end``."""
        for wire in self._unpacker:
            self._end = self._origin + self._unpacker.tell()
            return wire
        return _END

    def _feed(self) -> bool:
        """Whether there was more of the stream."""
        chunk = self._grow()
        try:
            self._unpacker.feed(chunk)
        except (ValueError, msgpack.UnpackException):  # more than a record may have
            return False
        return bool(chunk)

    def _find(self, start: int, search: bool) -> bool:
        """Whether a record may begin anywhere from ``start`` on, where reading then goes on; else all is dropped."""
        while True:
            self._drop(start)
            if search and (match := _UNFRAMED_BEGINNINGS.search(self._data)):
                self._begin_at(start + match.start())
                return True
            start = max(start, self._start + len(self._data) - (_LONGEST_BEGINNING - 1 if search else 0))
            if not self._grow():
                self._drop(self._start + len(self._data))
                return False

    def _begin_at(self, start: int) -> None:
        self._drop(start)
        self._origin = self._end = start
        self._unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=MAX_RECORD_BYTES + len(self._data))
        self._unpacker.feed(self._data)

    def _drop(self, until: int) -> None:
        """Forget what lies before this place."""
        del self._data[: until - self._start]
        self._start = until

    def _grow(self) -> bytes:
        """The next chunk of the stream; empty at its end."""
        chunk = next(self._chunks, b"")
        self._data += chunk
        return chunk


_log = logging.getLogger(__name__)

_BEGINNING_BYTES = 4 << 10
"""The copies of a header are shorter."""


def read_dataset(
    path: Path, *, hardware: Hardware | None = None, layout: str = "nn", contents: bytes | None = None
) -> Dataset:
    """The dataset in ``path``: our own stream, compact or not, or torch-diode's JSON or msgpack.

    torch-diode's files say neither the architecture of a device nor the layout of the operands. So of such a file
    the timings of ``hardware`` are read, by default those of the known GPU that the file or its name says; one of its
    names or aliases must match. All are read with ``layout`` (``nn`` is
    what torch-diode's own collector multiplies). Our own files say both, and the arguments are ignored. ``contents``
    are those of a file that is not on disk; ``path`` is then only what messages call it.

    Raises DatasetError for a file that is not a dataset, OSError for one that cannot be read.
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
        if MAGIC.encode() in start[:256] or start.startswith(ZSTD_MAGIC) or holds_frames(start):
            return _stream(path, file, contents)
        if _begins_with_map(start):
            return open_torch_diode(path, file, MsgpackCursor, hardware, layout, contents)
        raise DatasetError(f"{path}: not a dataset: it begins with {start[:16]!r}")


def is_dataset(contents: bytes) -> bool:
    """Whether these are the contents of a dataset, by how they begin."""
    start = contents[:_BEGINNING_BYTES]
    if start.lstrip()[:1] == b"{":
        return b'"schema_version"' not in start and b'"operation"' in start
    return bool(start) and (start.startswith(ZSTD_MAGIC) or holds_frames(start) or _begins_with_map(start))


def _begins_with_map(start: bytes) -> bool:
    """Whether a msgpack map is there; safetensors, whose header comes after 8 bytes, may begin with the same byte."""
    return (start[0] & 0xF0 == 0x80 or start[0] in (0xDE, 0xDF)) and not start.startswith(b"{", 8)


def open_stream(path: Path, contents: bytes | None = None) -> Dataset:
    """The dataset in a file of our own format, compact or not; DatasetError if its header cannot be read."""
    with opened(path, contents) as file:
        return _stream(path, file, contents)


def _stream(path: Path, file: Readable, contents: bytes | None) -> Dataset:
    header, framed = read_header(path, file)
    return Dataset(path, header, partial(_framed_records if framed else _unframed_records, path, header), contents)


def read_header(path: Path, file: Readable) -> tuple[Header, bool]:
    """The header at the beginning of our own stream, and whether the stream is made of frames; else DatasetError."""
    pieces = chunks(path, file)
    start = next(pieces, b"")
    framed = holds_frames(start)
    read = _framed_header if framed else _unframed_header
    return read(path, chain((start,), pieces)), framed


def _framed_header(path: Path, pieces: Iterable[bytes]) -> Header:
    frames = Frames(pieces, [])
    body = next((body for kind, body in islice(frames, HEADERS) if kind == HEADER), None)
    if body is None and frames.lost:
        raise DatasetError(f"{path}: damaged: no copy of its header can be read, so the hardware is unknown")
    try:
        return header_from_wire(None if body is None else _unpacked(body))
    except DatasetError as error:
        raise DatasetError(f"{path}: {error}") from None


def _unframed_header(path: Path, pieces: Iterable[bytes]) -> Header:
    try:
        wire = Unframed(pieces, RecordDecoder().decode, []).header()
    except (ValueError, msgpack.UnpackException) as error:
        what = str(error) or type(error).__name__
        raise DatasetError(f"{path}: byte 0: not a diode_lut dataset, or damaged: {what}") from error
    try:
        return header_from_wire(wire, UNFRAMED)
    except DatasetError as error:
        raise DatasetError(f"{path}: {error}") from None


def _framed_records(
    path: Path, header: Header, file: Readable, _skipped: Counter[str], lost: list[Lost]
) -> Iterator[Record]:
    decoder = RecordDecoder()
    frames = Frames(chunks(path, file), lost)
    for kind, body in frames:
        if kind == HEADER:
            _require_header(path, header, header_from_wire(_unpacked(body)))
        if kind == RECORD:
            try:
                record = decoder.decode(_unpacked(body))
            except DatasetError as error:
                raise DatasetError(f"{path}: record {frames.records}: {error}") from None
            yield record
    if frames.torn:
        name = printable(str(path))
        _log.warning("%s: the last record was cut off by a crash: its %d bytes are left out", name, frames.torn)


def _unframed_records(
    path: Path, header: Header, file: Readable, _skipped: Counter[str], lost: list[Lost]
) -> Iterator[Record]:
    stream = Unframed(chunks(path, file), RecordDecoder().decode, lost)
    _require_header(path, header, header_from_wire(stream.header(), UNFRAMED))
    yield from stream.records()


def _require_header(path: Path, known: Header, found: Header) -> None:
    """DatasetError unless the file still has the header that was read before: its records are for that hardware."""
    if found != known:
        raise DatasetError(f"{path}: was replaced by another dataset while it was read: run the command again")


def _unpacked(body: bytes) -> Any:
    try:
        return msgpack.unpackb(body, use_list=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise DatasetError(f"not msgpack: {str(error) or type(error).__name__}") from error
