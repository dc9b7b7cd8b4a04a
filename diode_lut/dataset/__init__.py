"""Datasets: files of timings with the hardware and software of the measurement. Here they are read and written.

A dataset of our own is a sequence of frames, to find damage, and to append without loss: two copies of the header, then
the records. A frame is a msgpack object of type ext 32: ``C9``, the length in 4 bytes, the kind in a byte, then the
CRC-32 of these 6 bytes, the CRC-32 of the body, and the body, which is msgpack again. Numbers are big-endian. The first
checksum shows where the frame ends even if its body is damaged, and whether the last frame of a file is incomplete:
only then may it be cut off. After damage, reading goes on at the next frame whose checksums are right.
"""

from __future__ import annotations

import logging
import re
import struct
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from io import FileIO
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, final
from zlib import crc32

import msgpack
import zstandard

from diode_lut.dataset.dataset import (
    MAGIC,
    MAX_NS,
    MIN_NS,
    REASONS,
    SOFTWARE,
    STAGES,
    SWEEP,
    ZSTD_MAGIC,
    Dataset,
    Header,
    Lost,
    Readable,
    Record,
    RecordDecoder,
    Timing,
    chunks,
    current_records,
    header_from_wire,
    header_to_wire,
    opened,
    record_to_wire,
)
from diode_lut.dataset.torch_diode import open_torch_diode
from diode_lut.errors import DatasetError, csv_remedy, printable
from diode_lut.files import append, is_at, open_to_append, write_atomically
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem

__all__ = ["REASONS", "SOFTWARE", "STAGES", "SWEEP", "Dataset", "Header", "Lost", "Record", "Timing", "current_records"]

_log = logging.getLogger(__name__)

MAX_RECORD_BYTES = 2 << 20  # maximum size of a record: a search over ten thousand configs takes half a megabyte
HEADER, RECORD = b"HR"  # the kinds of frames
HEADERS = 2  # copies of the header at the start of a dataset, which cannot be used without it

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
    size: int  # bytes of the whole frame
    checksum: int  # of the body


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
    """Return whether a file with this beginning is made of frames, perhaps damaged."""
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
    """Return whether the rest may be the beginning of a frame, too short for a whole head."""
    beginning, checksum = rest[: _BEGINNING.size], rest[_BEGINNING.size :][:4]
    like = beginning + b"\xc9\x00\x00\x00\x00R"[len(beginning) :]
    whole = _CHECKSUMS.pack(crc32(beginning), 0)[: len(checksum)] == checksum
    return len(rest) < _HEAD_BYTES and _BEGINNINGS.fullmatch(like) is not None and whole


_BEGINNING_BYTES = 4 << 10  # Number of bytes by which a file is recognised. The copies of a header are shorter


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
            return open_torch_diode(path, file, True, hardware, layout, contents)
        if MAGIC.encode() in start[:256] or _begins_stream(start):
            return _stream(path, file, contents)
        if _begins_with_map(start):
            return open_torch_diode(path, file, False, hardware, layout, contents)
        raise DatasetError(f"{path}: not a dataset: it begins with {start[:16]!r}{csv_remedy(start)}")


def is_dataset(contents: bytes) -> bool:
    """Return whether these contents begin as a dataset does."""
    start = contents[:_BEGINNING_BYTES]
    if start.lstrip()[:1] == b"{":
        return b'"schema_version"' not in start and b'"operation"' in start
    return bool(start) and (_begins_stream(start) or _begins_with_map(start))


def _begins_stream(start: bytes) -> bool:
    """Return whether our own format begins here, compact or not, perhaps damaged."""
    return start.startswith(ZSTD_MAGIC) or holds_frames(start)


def _begins_with_map(start: bytes) -> bool:
    """Return whether a msgpack map begins here. A safetensors file may begin alike, but has ``{`` after eight bytes."""
    return (start[0] & 0xF0 == 0x80 or start[0] in (0xDE, 0xDF)) and not start.startswith(b"{", 8)


def open_stream(path: Path, contents: bytes | None = None) -> Dataset:
    """Return the dataset in a file of our own format, compact or not. DatasetError if its header cannot be read."""
    with opened(path, contents) as file:
        start = file.read(_BEGINNING_BYTES)
        file.seek(0)
        if start and not _begins_stream(start):
            found = f"it begins with {start[:16]!r}{csv_remedy(start)}"
            raise DatasetError(f"{path}: not a dataset in diode_lut's own format: {found}")
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


_TIMES = f"allowed: {MIN_NS:g} to {MAX_NS:g} ns"


def write_stream(path: Path, header: Header, records: Iterable[Record]) -> None:
    """Write a whole dataset. It replaces an existing file."""
    write_atomically(path, b"".join((header_bytes(header), *map(record_bytes, records))))


@final
class DatasetWriter:
    """Appends records to a dataset file, in a ``with`` statement. A missing file is created.

    Each record is on the disk when ``append`` returns, so a crash costs no other record. An incomplete record at the
    end of an existing file is cut off if a crash provably left it. Nothing else ever is. DatasetError if the file is
    not a dataset, is compact, or has other hardware or software than ``header``.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.header = header
        self._decoder = RecordDecoder()

    def __enter__(self) -> DatasetWriter:
        try:
            self._file = open_to_append(self.path, header_bytes(self.header))  # readers never see a part of it
        except BlockingIOError as error:
            raise DatasetError(f"{self.path}: {error.strerror}") from error
        try:
            if self._from_start().read(len(ZSTD_MAGIC)) == ZSTD_MAGIC:
                reason = "a compact dataset, to which nothing can be appended: use another file"
                raise DatasetError(f"{self.path}: {reason}")
            beginning = next(chunks(self.path, self._from_start()), b"")
            if beginning and not holds_frames(beginning):
                raise DatasetError(f"{self.path}: not a dataset: it begins with {beginning[:16]!r}")
            frames = Frames(chunks(self.path, self._from_start()), [])
            deque(frames, maxlen=0)
            if frames.end:
                found = read_header(self.path, self._from_start())
                if not found.hardware.same_device(self.header.hardware):
                    raise DatasetError(f"{self.path}: measured on {found.hardware}, this is {self.header.hardware}")
                for name in SOFTWARE:
                    was, is_now = getattr(found, name), getattr(self.header, name)
                    if was != is_now:
                        differs = f"measured with {name} {was!r}, this is {is_now!r}"
                        raise DatasetError(f"{self.path}: {differs}: use another file")
            if frames.torn:
                self._file.truncate(frames.end)
            if not frames.end:  # also if a power cut left only a part of the header
                append(self._file, header_bytes(self.header))
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # all records are on the disk already
            self._file.close()

    def append(self, record: Record) -> None:
        """Write the record. DatasetError if readers would refuse it. After an OSError the file is as it was."""
        if self._decoder.decode(record_to_wire(record)) != record:
            raise DatasetError(f"{self.path}: a timing of {record.problem} has neither a reason nor a time ({_TIMES})")
        if not is_at(self._file, self.path):
            raise DatasetError(f"{self.path}: removed or replaced while it was written: run again")
        append(self._file, record_bytes(record))

    def _from_start(self) -> FileIO:
        self._file.seek(0)
        return self._file


class Packed(NamedTuple):
    """Contents of a packed file: the number of problems, of timings by stage, and of copies left out."""

    problems: int
    timings: Counter[str]
    copies: int


def pack(
    datasets: Sequence[Dataset],
    path: Path,
    progress: Callable[[Dataset], Iterable[Record]] = iter,
    *,
    measured_by: str = "",
) -> Packed:
    """Write all records of the datasets, sorted, into a compact file. It replaces an existing file.

    Equal records are stored once. Other records of the same problem all stay, because building takes the median. The
    same records give the same bytes, whatever their order and number of files. The header has the earliest date and
    ``measured_by``, by default the names in all datasets. ``progress`` passes on the records of a dataset. DatasetError
    if hardware or software differ between datasets.
    """
    one, *others = sorted(datasets, key=lambda dataset: (dataset.header, dataset.path))
    for other in others:
        if not one.header.hardware.same_device(other.header.hardware):
            raise DatasetError(f"{other.path}: {other.header.hardware}, but {one.path}: {one.header.hardware}")
        for name in SOFTWARE:
            values = getattr(one.header, name), getattr(other.header, name)
            if values[0] != values[1]:
                remedy = "pack them into different files"
                raise DatasetError(f"{other.path}: {name} {values[1]!r}, but {one.path}: {values[0]!r} ({remedy})")
    headers, hardware = [dataset.header for dataset in datasets], one.header.hardware
    names = {name for header in headers for name in (header.hardware.name, *header.hardware.aliases)}
    header = one.header._replace(
        hardware=hardware._replace(aliases=tuple(sorted(names - {hardware.name}))),
        measured_on=min(header.measured_on for header in headers),
        measured_by=measured_by or ", ".join(sorted({header.measured_by for header in headers} - {""})),
    )
    records: set[tuple[Problem, int, bytes]] = set()
    timings: Counter[str] = Counter()
    read = 0
    for dataset in datasets:
        for record in progress(dataset):
            read += 1
            in_order = tuple(sorted(record.timings, key=lambda each: (each.config, each.ns or 0.0, each.reason or "")))
            body = msgpack.packb(record_to_wire(record._replace(timings=in_order)))
            key = record.problem, STAGES.index(record.stage), body
            if key not in records:
                records.add(key)
                timings[record.stage] += len(record.timings)
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compressobj()
    parts = header_bytes(header), *(frame(RECORD, body) for _, _, body in sorted(records))
    write_atomically(path, b"".join((*map(compressor.compress, parts), compressor.flush())))
    return Packed(len({problem for problem, _, _ in records}), timings, read - len(records))


_LEVEL = 12  # Level of zstd. Files of higher levels are 10 % smaller and take thirty times as long to write
