"""Reading a dataset, record by record, and what of it could not be read."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgpack

from diode_lut.dataset.compact import ZSTD_MAGIC, read_chunks
from diode_lut.dataset.cursor import JsonCursor, MsgpackCursor
from diode_lut.dataset.dataset import Dataset
from diode_lut.dataset.frames import HEADER, HEADERS, RECORD, Frames, frame, holds_frames
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
from diode_lut.dataset.unframed import Unframed
from diode_lut.domain.errors import DatasetError
from diode_lut.domain.hardware import Hardware
from diode_lut.domain.printable import printable
from diode_lut.io.bounded import open_regular
from diode_lut.io.files import write_atomically

_log = logging.getLogger(__name__)


def open_stream(path: Path) -> Dataset:
    """The dataset in a file of our own format, compact or not, or DatasetError if its header is not one."""
    records = _records if is_framed(path) else _unframed_records
    return Dataset(path, read_header(path), lambda _, lost: records(path, lost))


def is_framed(path: Path) -> bool:
    """Whether the records of the stream are in frames, as all are that are written now."""
    return holds_frames(next(read_chunks(path), b""))


def read_header(path: Path) -> Header:
    """The header, or DatasetError if it is not one."""
    try:
        return _framed_header(path) if is_framed(path) else header_from_wire(_first_object(path), UNFRAMED)
    except DatasetError as error:
        raise DatasetError(f"{path}: {error}") from None


def write_stream(path: Path, header: Header, records: Iterable[Record]) -> None:
    """Write a whole dataset, which replaces an existing file."""
    write_atomically(path, b"".join((header_bytes(header), *map(record_bytes, records))))


def header_bytes(header: Header) -> bytes:
    """What a stream begins with."""
    return frame(HEADER, msgpack.packb(header_to_wire(header))) * HEADERS


def record_bytes(record: Record) -> bytes:
    """The record as it is in a stream."""
    return frame(RECORD, msgpack.packb(record_to_wire(record)))


def _framed_header(path: Path) -> Header:
    frames = Frames(read_chunks(path), [])
    body = next((body for kind, body in islice(frames, HEADERS) if kind == HEADER), None)
    if body is None and frames.lost:
        raise DatasetError("damaged: no copy of its header can be read, so nobody knows what was measured")
    return header_from_wire(None if body is None else _unpacked(body))


def _first_object(path: Path) -> Any:
    try:
        return Unframed(read_chunks(path), RecordDecoder().decode, []).header()
    except (ValueError, msgpack.UnpackException) as error:
        what = str(error) or type(error).__name__
        raise DatasetError(f"byte 0: not a diode_lut dataset, or damaged: {what}") from error


def _records(path: Path, lost: list[Lost]) -> Iterator[Record]:
    decoder = RecordDecoder()
    frames = Frames(read_chunks(path), lost)
    for kind, body in frames:
        if kind == RECORD:
            try:
                record = decoder.decode(_unpacked(body))
            except DatasetError as error:
                raise DatasetError(f"{path}: record {frames.records}: {error}") from None
            yield record
    if frames.torn:
        name = printable(str(path))
        _log.warning("%s: the last record was cut off by a crash: its %d bytes are left out", name, frames.torn)


def _unframed_records(path: Path, lost: list[Lost]) -> Iterator[Record]:
    stream = Unframed(read_chunks(path), RecordDecoder().decode, lost)
    stream.header()
    yield from stream.records()


def _unpacked(body: bytes) -> Any:
    try:
        return msgpack.unpackb(body, use_list=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise DatasetError(f"not msgpack: {str(error) or type(error).__name__}") from error


_BEGINNING_BYTES = 4 << 10
"""The copies of a header are shorter."""


def read_dataset(path: Path, *, hardware: Hardware | None = None, layout: str = "nn") -> Dataset:
    """The dataset in ``path``: our own stream, as it is or compact, or torch-diode's JSON or msgpack.

    torch-diode's files say neither what the architecture of a device is nor how its inputs were laid out. So of such
    a file the timings of ``hardware`` are read, which one of its names or aliases must match, all with ``layout``
    (``nn`` is what torch-diode's own collector multiplies). Our own files say it themselves, and both are ignored.

    Raises DatasetError for a file that is not a dataset, OSError for one that cannot be read.
    """
    with open_regular(path) as file:
        start = file.read(_BEGINNING_BYTES)
    if not start:
        raise DatasetError(f"{path}: the file is empty")
    if b'"schema_version"' in start[:256]:
        raise DatasetError(f"{path}: a table, not a dataset")
    if start.lstrip()[:1] == b"{":
        return open_torch_diode(path, JsonCursor, hardware, layout)
    if MAGIC.encode() in start[:256] or start.startswith(ZSTD_MAGIC) or holds_frames(start):
        return open_stream(path)
    if _begins_with_map(start):
        return open_torch_diode(path, MsgpackCursor, hardware, layout)
    raise DatasetError(f"{path}: not a dataset: it begins with {start[:16]!r}")


def _begins_with_map(start: bytes) -> bool:
    return start[0] & 0xF0 == 0x80 or start[0] in (0xDE, 0xDF)
