"""Writing a dataset, and appending to one without losing anything that is in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import final

import msgpack

from diode_lut.dataset.dataset import ZSTD_MAGIC, chunks
from diode_lut.dataset.frames import Frames, header_bytes, holds_frames, record_bytes
from diode_lut.dataset.read import read_header
from diode_lut.dataset.record import (
    MAX_NS,
    MIN_NS,
    SOFTWARE,
    Header,
    Lost,
    Record,
    RecordDecoder,
    lost_text,
    record_to_wire,
)
from diode_lut.dataset.unframed import Unframed
from diode_lut.domain.errors import DatasetError
from diode_lut.io.files import append, is_at, open_to_append, write_atomically

_TIMES = f"allowed: {MIN_NS:g} to {MAX_NS:g} ns"


def write_stream(path: Path, header: Header, records: Iterable[Record]) -> None:
    """Write a whole dataset, which replaces an existing file."""
    write_atomically(path, b"".join((header_bytes(header), *map(record_bytes, records))))


@final
class DatasetWriter:
    """Appends records to a dataset file, in a ``with`` statement; a file that is missing is created.

    Every record is on the disk when ``append`` returns, so that a crash costs the current record and no other. An
    incomplete record at the end of an existing file is cut off if a crash provably left it; nothing else ever is.
    DatasetError if the file is not a dataset, is compact, is damaged and has no checksums, or has other hardware or
    software than ``header``.
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
        with suppress(OSError):  # all records are on the disk already
            self._file.close()

    def append(self, record: Record) -> None:
        """Write the record. DatasetError if readers would refuse it, or if the file was removed or replaced.

        OSError, for example for a full disk, leaves the file as it was.
        """
        wire = record_to_wire(record)
        if self._decoder.decode(wire) != record:
            raise DatasetError(f"{self.path}: a timing of {record.problem} has neither a reason nor a time ({_TIMES})")
        if not is_at(self._file, self.path):
            raise DatasetError(f"{self.path}: removed or replaced while it was written: run again")
        append(self._file, record_bytes(record) if self._framed else msgpack.packb(wire))

    def _opened(self) -> FileIO:
        try:
            return open_to_append(self.path, header_bytes(self.header))  # readers never see a part of it
        except BlockingIOError as error:
            raise DatasetError(f"{self.path}: {error.strerror}") from error

    def _begin(self) -> None:
        """Make sure that the next record can be appended."""
        if self._from_start().read(len(ZSTD_MAGIC)) == ZSTD_MAGIC:
            raise DatasetError(f"{self.path}: a compact dataset, to which nothing can be appended: use another file")
        beginning = next(chunks(self.path, self._from_start()), b"")
        self._framed = not beginning or holds_frames(beginning)
        if self._framed:
            self._cut_torn()
        else:
            self._check_header()
            self._require_whole()

    def _from_start(self) -> FileIO:
        """The open file, at its beginning."""
        self._file.seek(0)
        return self._file

    def _cut_torn(self) -> None:
        """Cut off an incomplete frame, also where a power cut left only a part of the header."""
        frames = Frames(chunks(self.path, self._from_start()), [])
        deque(frames, maxlen=0)
        if frames.end:
            self._check_header()
        if frames.torn:
            self._file.truncate(frames.end)
        if not frames.end:
            append(self._file, header_bytes(self.header))

    def _require_whole(self) -> None:
        lost: list[Lost] = []
        stream = Unframed(chunks(self.path, self._from_start()), self._decoder.decode, lost)
        stream.header()
        deque(stream.records(), maxlen=0)
        if lost:
            raise DatasetError(
                f"{self.path}: {lost_text(lost)}; without checksums nothing can be appended to it safely: "
                "use another file, build and pack take both"
            )

    def _check_header(self) -> None:
        found, _ = read_header(self.path, self._from_start())
        if not found.hardware.same_device(self.header.hardware):
            raise DatasetError(f"{self.path}: measured on {found.hardware}, this is {self.header.hardware}")
        for name in SOFTWARE:
            was, is_now = getattr(found, name), getattr(self.header, name)
            if was != is_now:
                raise DatasetError(f"{self.path}: measured with {name} {was!r}, this is {is_now!r}: use another file")
