"""Frames: the form in which a dataset stores its header and records, so that damage is found and costs one record.

A frame is a msgpack object of type ext 32: ``C9``, the length in 4 bytes, the kind in one byte; then the CRC-32 of
these 6 bytes, the CRC-32 of the body, and the body, which is msgpack again. Numbers are big-endian. The first checksum
says where the frame ends even if its body is damaged, and whether the last frame of a file is incomplete: only then may
it be cut off. Behind damage, reading goes on at the next frame whose checksums are right.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from zlib import crc32

import msgpack

from diode_lut.dataset.record import Header, Lost, Record, header_to_wire, record_to_wire
from diode_lut.domain.errors import DatasetError

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
