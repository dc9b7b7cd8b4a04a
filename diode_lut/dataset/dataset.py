"""A dataset: a file of timings in any format, the bytes in it, and its text for people."""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import zstandard

from diode_lut.dataset.record import Header, Lost, Record, Timing, lost_text
from diode_lut.errors import DatasetError, printable
from diode_lut.files import open_regular

_log = logging.getLogger(__name__)

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
"""The first bytes of a compact dataset, which is a stream in a zstd frame."""

_COMPACT_BYTES = 1 << 10
"""Number of compressed bytes read at a time. zstd makes at most 32 MB of them, whatever a file claims."""

_PLAIN_BYTES = 1 << 16
"""Largest chunk of a stream."""

_MAX_WINDOW_BYTES = 32 << 20
"""Largest distance back to which a zstd frame may refer."""

_MAX_RATIO = 200
_RATIO_FREE_BYTES = 4 << 20
"""Timings shrink to about a tenth. A file with more than these bytes and _MAX_RATIO times its own size was made to
exhaust memory."""


class Readable(Protocol):
    """A binary file open for reading."""

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, at most ``size``, or none at the end of the file."""


RecordReader = Callable[[Readable, "Counter[str]", "list[Lost]"], Iterator[Record]]
"""Yields the records of an open file, counts skipped timings by reason, and lists damaged places."""


class Dataset:
    """A file of timings. Iterating reads the file from its beginning, in bounded memory, and yields Records.

    ``skipped`` counts the timings of the last iteration without a place in our format, by reason, as in ``{"dtype
    int8": 3}``. ``lost`` has the damaged places it passed over. They are logged once, at the end of an iteration.
    Iterating raises DatasetError if nothing can be read after the damage.
    """

    def __init__(self, path: Path, header: Header, records: RecordReader, contents: bytes | None = None) -> None:
        self.path = path
        self.header = header
        self.skipped: Counter[str] = Counter()
        self.lost: list[Lost] = []
        self._logged: list[Lost] = []
        self._records = records
        self._contents = contents
        self._digest = ""

    def __iter__(self) -> Iterator[Record]:
        self.skipped.clear()
        self.lost.clear()
        with opened(self.path, self._contents) as source:
            file = _Hashing(source)
            yield from self._records(file, self.skipped, self.lost)
            self._digest = file.digest()
        if self.lost and self.lost != self._logged:
            self._logged = list(self.lost)
            _log.warning("%s: %s", printable(str(self.path)), lost_text(self.lost))

    @property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the bytes read by the last complete iteration, or else of the file."""
        if not self._digest:
            with opened(self.path, self._contents) as file:
                self._digest = _Hashing(file).digest()
        return self._digest


def opened(path: Path, contents: bytes | None) -> BinaryIO:
    """Open the file, or its contents if they are not on disk."""
    return open_regular(path) if contents is None else BytesIO(contents)


class _Hashing:
    """A Readable with a hash of the bytes read."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        return data

    def digest(self) -> str:
        """Read the rest, and return the SHA-256 of the whole file in hexadecimal."""
        while self.read(1 << 20):
            pass
        return self._hash.hexdigest()


def chunks(path: Path, file: Readable) -> Iterator[bytes]:
    """Yield the stream in the file, decompressed if it is compact. DatasetError if its zstd frame is not whole."""
    chunk = file.read(_COMPACT_BYTES)
    if not chunk.startswith(ZSTD_MAGIC):
        if chunk:
            yield chunk + file.read(_PLAIN_BYTES - len(chunk))
            yield from iter(lambda: file.read(_PLAIN_BYTES), b"")
        return
    frame = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompressobj()
    compact = plain = 0
    try:
        while chunk and not frame.eof:
            data = frame.decompress(chunk)
            compact, plain = compact + len(chunk), plain + len(data)
            if plain > _MAX_RATIO * compact + _RATIO_FREE_BYTES:
                raise DatasetError(f"{path}: damaged: grows to more than {_MAX_RATIO} times its size")
            yield from (data[at : at + _PLAIN_BYTES] for at in range(0, len(data), _PLAIN_BYTES))
            chunk = b"" if frame.eof else file.read(_COMPACT_BYTES)
    except zstandard.ZstdError as error:
        raise DatasetError(f"{path}: damaged: {error}") from error
    if not frame.eof:
        raise DatasetError(f"{path}: cut off: its zstd frame has no end (fetch or pack it again)")
    if frame.unused_data or file.read(1):
        raise DatasetError(f"{path}: more follows the end of its zstd frame: not written by the pack command")


def as_lines(dataset: Dataset) -> Iterator[str]:
    """Yield the header, then a line for each problem and stage, and for each of its configs, the fastest first."""
    hardware, *software = dataset.header
    yield printable(str(hardware))
    for name, value in zip(dataset.header._fields[1:], software, strict=True):
        if value:
            yield printable(f"{name}: {value}")
    for record in dataset:
        yield f"{record.problem} {record.stage}"
        for timing in fastest_first(record):
            yield f"  {timing.config}: {timing.reason if timing.ns is None else f'{timing.ns / 1000:.2f} us'}"


def as_document(dataset: Dataset) -> dict[str, Any]:
    """Return ``{"header": {...}, "records": [{problem, "stage", "timings": [{config, "ns" or "reason"}]}]}``."""
    header = {name: value for name, value in dataset.header._asdict().items() if value}
    records = []
    for record in dataset:
        timings = [
            {**timing.config.to_json(), **({"reason": timing.reason} if timing.ns is None else {"ns": timing.ns})}
            for timing in fastest_first(record)
        ]
        records.append({**record.problem.to_json(), "stage": record.stage, "timings": timings})
    return {"header": {**header, "hardware": dataset.header.hardware._asdict()}, "records": records}


def fastest_first(record: Record) -> Iterable[Timing]:
    """Return the timings in the order of their times, failures last."""
    return sorted(record.timings, key=lambda timing: math.inf if timing.ns is None else timing.ns)
