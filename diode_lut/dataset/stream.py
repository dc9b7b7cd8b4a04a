"""Our own files: frames one after another, the header twice and then a record for each problem measured."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgpack

from diode_lut.dataset.codec import UNFRAMED, RecordDecoder, header_from_wire, header_to_wire, record_to_wire
from diode_lut.dataset.compact import read_chunks
from diode_lut.dataset.dataset import Dataset
from diode_lut.dataset.frames import HEADER, HEADERS, RECORD, Frames, frame, holds_frames
from diode_lut.dataset.lost import Lost
from diode_lut.dataset.record import Header, Record
from diode_lut.dataset.unframed import Unframed
from diode_lut.errors import DatasetError
from diode_lut.files import write_atomically
from diode_lut.printable import printable

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
