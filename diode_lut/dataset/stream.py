"""Our own dataset files: msgpack objects one after another, a header and then a record for each problem measured."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, final

import msgpack

from diode_lut.dataset.codec import RecordDecoder, header_from_wire, header_to_wire, record_to_wire
from diode_lut.dataset.dataset import Dataset
from diode_lut.dataset.record import Header, Record
from diode_lut.errors import DatasetError
from diode_lut.files import write_atomically

MAX_RECORD_BYTES = 16 << 20
"""No record is larger: a search over ten thousand configs takes half a megabyte."""

_log = logging.getLogger(__name__)


def open_stream(path: Path) -> Dataset:
    """The dataset in a file of our own format, or DatasetError if its header is not one."""
    return Dataset(path, _read_header(path), lambda _: _records(path))


@final
class DatasetWriter:
    """Appends records to a dataset file, which is made if there is none; to be used in a ``with`` statement.

    Every record is on the disk when ``append`` returns, so that a crash costs the record in hand and no other. What a
    crash left of a record at the end of an existing file is cut off. DatasetError is raised if that file is not a
    dataset, or was measured on other hardware or with other software than ``header`` says.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.header = header
        self._decoder = RecordDecoder()

    def __enter__(self) -> DatasetWriter:
        if not self.path.exists() or self.path.stat().st_size == 0:
            write_atomically(self.path, msgpack.packb(header_to_wire(self.header)))
        self._check_header()
        self._file = self.path.open("r+b")
        self._file.truncate(max(end for end, _ in _objects(self.path)))
        self._file.seek(0, os.SEEK_END)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, record: Record) -> None:
        """Write the record, or raise DatasetError if a reader would refuse it."""
        wire = record_to_wire(record)
        if self._decoder.decode(wire) != record:
            raise DatasetError(f"{self.path}: a timing of {record.problem} has a time that is none and no reason")
        self._file.write(msgpack.packb(wire))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _check_header(self) -> None:
        found = _read_header(self.path)
        if not found.hardware.same_device(self.header.hardware):
            raise DatasetError(f"{self.path}: measured on {found.hardware}, this is {self.header.hardware}")
        for name in ("torch", "triton", "cuda", "driver", "benchmarker"):
            was, is_now = getattr(found, name), getattr(self.header, name)
            if was != is_now:
                raise DatasetError(f"{self.path}: measured with {name} {was!r}, this is {is_now!r}: use another file")


def _records(path: Path) -> Iterator[Record]:
    decoder = RecordDecoder()
    objects = _objects(path)
    end, _ = next(objects)  # the header
    for number, (position, wire) in enumerate(objects, 1):
        end = position
        try:
            record = decoder.decode(wire)
        except DatasetError as error:
            raise DatasetError(f"{path}: record {number}: {error}") from None
        yield record
    torn = path.stat().st_size - end
    if torn:
        _log.warning("%s: the last record was cut off by a crash: its %d bytes are left out", path, torn)


def _objects(path: Path) -> Iterator[tuple[int, Any]]:
    """The header and the records, undecoded, each with the position in the file at which it ends."""
    end = 0
    with path.open("rb") as file:
        unpacker = msgpack.Unpacker(file, use_list=False, max_buffer_size=MAX_RECORD_BYTES)
        try:
            for wire in unpacker:
                end = unpacker.tell()
                yield end, wire
        except (ValueError, msgpack.UnpackException) as error:
            what = str(error) or type(error).__name__
            raise DatasetError(f"{path}: byte {end}: not a diode_lut dataset, or damaged: {what}") from error


def _read_header(path: Path) -> Header:
    _, wire = next(_objects(path), (0, None))
    try:
        return header_from_wire(wire)
    except DatasetError as error:
        raise DatasetError(f"{path}: {error}") from None
