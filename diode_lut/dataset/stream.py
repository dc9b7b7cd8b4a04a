"""Our own dataset files: msgpack objects one after another, a header and then a record for each problem measured."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, final

import msgpack

from diode_lut.dataset.codec import MAGIC, RecordDecoder, header_from_wire, header_to_wire, record_to_wire
from diode_lut.dataset.compact import is_compact, read_chunks
from diode_lut.dataset.dataset import Dataset
from diode_lut.dataset.record import SOFTWARE, Header, Record
from diode_lut.errors import DatasetError
from diode_lut.files import append, is_at, open_to_append, write_atomically
from diode_lut.printable import printable

MAX_RECORD_BYTES = 2 << 20
"""No record is larger: a search over ten thousand configs takes half a megabyte."""

_log = logging.getLogger(__name__)


def open_stream(path: Path) -> Dataset:
    """The dataset in a file of our own format, compact or not, or DatasetError if its header is not one."""
    return Dataset(path, _read_header(path), lambda _: _records(path))


@final
class DatasetWriter:
    """Appends records to a dataset file, which is made if there is none; to be used in a ``with`` statement.

    Every record is on the disk when ``append`` returns, so that a crash costs the record in hand and no other. What a
    crash left of a record at the end of an existing file is cut off. DatasetError is raised if that file is not a
    dataset, is a compact one, or was measured on other hardware or with other software than ``header`` says.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.header = header
        self._decoder = RecordDecoder()

    def __enter__(self) -> DatasetWriter:
        self._file = self._opened()
        try:
            self._begin()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, record: Record) -> None:
        """Write the record, or raise DatasetError if a reader would refuse it, or if the file is not there any more.

        OSError, from a full disk for example, leaves the file as it was.
        """
        wire = record_to_wire(record)
        if self._decoder.decode(wire) != record:
            raise DatasetError(f"{self.path}: a timing of {record.problem} has a time that is none and no reason")
        if not is_at(self._file, self.path):
            raise DatasetError(f"{self.path}: removed or replaced while it was written: run again")
        append(self._file, msgpack.packb(wire))

    def _opened(self) -> FileIO:
        try:
            if not self.path.exists() or self.path.stat().st_size == 0:
                write_stream(self.path, self.header, ())  # readers never see a part of it
            return open_to_append(self.path)
        except BlockingIOError as error:
            raise DatasetError(f"{self.path}: {error.strerror}") from error

    def _begin(self) -> None:
        """Leave a header and whole records; a header that a power cut left unfinished is no more than none."""
        header: bytes = msgpack.packb(header_to_wire(self.header))
        if self._ends_in_header(header[: len(MAGIC) + 2]):
            self._file.truncate(0)
            append(self._file, header)
        if is_compact(self.path):
            raise DatasetError(f"{self.path}: a compact dataset, to which nothing can be appended: use another file")
        self._check_header()
        self._file.truncate(_end(self.path))

    def _ends_in_header(self, beginning: bytes) -> bool:
        """Whether there is nothing in the file but a part of a header, all of which begin alike."""
        self._file.seek(0)
        found = self._file.read(len(beginning))
        return beginning.startswith(found) and (found != beginning or next(iter(_Objects(self.path)), None) is None)

    def _check_header(self) -> None:
        found = _read_header(self.path)
        if not found.hardware.same_device(self.header.hardware):
            raise DatasetError(f"{self.path}: measured on {found.hardware}, this is {self.header.hardware}")
        for name in SOFTWARE:
            was, is_now = getattr(found, name), getattr(self.header, name)
            if was != is_now:
                raise DatasetError(f"{self.path}: measured with {name} {was!r}, this is {is_now!r}: use another file")


def write_stream(path: Path, header: Header, records: Iterable[Record]) -> None:
    """Write a whole dataset, which replaces an existing file."""
    wires = (header_to_wire(header), *map(record_to_wire, records))
    write_atomically(path, b"".join(map(msgpack.packb, wires)))


def _records(path: Path) -> Iterator[Record]:
    decoder = RecordDecoder()
    stream = _Objects(path)
    objects = iter(stream)
    next(objects)  # the header
    for number, wire in enumerate(objects, 1):
        try:
            record = decoder.decode(wire)
        except DatasetError as error:
            raise DatasetError(f"{path}: record {number}: {error}") from None
        yield record
    if stream.torn:
        _log.warning(
            "%s: the last record was cut off by a crash: its %d bytes are left out", printable(str(path)), stream.torn
        )


class _Objects:
    """The header and the records of a file, undecoded.

    ``end`` is where in the stream the last one that was read ends, ``torn`` how many bytes are known to follow it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.end = 0
        self.torn = 0

    def __iter__(self) -> Iterator[Any]:
        unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=MAX_RECORD_BYTES)
        fed = 0
        try:
            for chunk in read_chunks(self.path):
                unpacker.feed(chunk)
                fed += len(chunk)
                for wire in unpacker:
                    self.end = unpacker.tell()
                    yield wire
                self.torn = fed - self.end
        except (ValueError, msgpack.UnpackException) as error:
            what = str(error) or type(error).__name__
            raise DatasetError(f"{self.path}: byte {self.end}: not a diode_lut dataset, or damaged: {what}") from error


def _end(path: Path) -> int:
    """Where the last whole record ends."""
    objects = _Objects(path)
    deque(objects, maxlen=0)
    return objects.end


def _read_header(path: Path) -> Header:
    wire = next(iter(_Objects(path)), None)
    try:
        return header_from_wire(wire)
    except DatasetError as error:
        raise DatasetError(f"{path}: {error}") from None
