"""Reading a dataset: its format, its header, and its records one by one."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgpack

from diode_lut.dataset.cursor import JsonCursor, MsgpackCursor
from diode_lut.dataset.dataset import ZSTD_MAGIC, Dataset, Readable, chunks, opened
from diode_lut.dataset.frames import HEADER, HEADERS, RECORD, Frames, holds_frames
from diode_lut.dataset.record import MAGIC, UNFRAMED, Header, Lost, Record, RecordDecoder, header_from_wire
from diode_lut.dataset.torch_diode import open_torch_diode
from diode_lut.dataset.unframed import Unframed
from diode_lut.domain.errors import DatasetError
from diode_lut.domain.hardware import Hardware
from diode_lut.domain.printable import printable

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
