"""Datasets of version 1: msgpack objects one after another, without checksums. They are read, and appended to if whole.

After damage, reading goes on at the next bytes with which a record can begin. A changed time that is still a valid time
is not noticed, and an incomplete record at the end looks like a damaged one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgpack

from diode_lut.dataset.frames import MAX_RECORD_BYTES
from diode_lut.dataset.record import Lost, Record
from diode_lut.domain.errors import DatasetError
from diode_lut.domain.ops import OPS

_BEGINNINGS = re.compile(rb"\x93\x98(?:%s)" % b"|".join(msgpack.packb(op) for op in OPS))
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
            if search and (match := _BEGINNINGS.search(self._data)):
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
