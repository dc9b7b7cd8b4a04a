"""Appending to a dataset, without losing anything that is in it."""

from __future__ import annotations

from collections import deque
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import final

import msgpack

from diode_lut.dataset.compact import is_compact, read_chunks
from diode_lut.dataset.frames import Frames
from diode_lut.dataset.read import header_bytes, is_framed, open_stream, read_header, record_bytes, write_stream
from diode_lut.dataset.record import MAX_NS, MIN_NS, SOFTWARE, Header, Record, RecordDecoder, in_words, record_to_wire
from diode_lut.domain.errors import DatasetError
from diode_lut.io.files import append, is_at, open_to_append

_TIMES = f"allowed: {MIN_NS:g} to {MAX_NS:g} ns"


@final
class DatasetWriter:
    """Appends records to a dataset file, which is made if there is none; to be used in a ``with`` statement.

    Every record is on the disk when ``append`` returns, so that a crash costs the record in hand and no other. What is
    provably a record that a crash left incomplete, at the end of an existing file, is cut off; nothing else ever is.
    DatasetError is raised if that file is not a dataset, is a compact one, is damaged and has no checksums, or was
    measured on other hardware or with other software than ``header`` says.
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
            raise DatasetError(f"{self.path}: a timing of {record.problem} has neither a reason nor a time ({_TIMES})")
        if not is_at(self._file, self.path):
            raise DatasetError(f"{self.path}: removed or replaced while it was written: run again")
        append(self._file, record_bytes(record) if self._framed else msgpack.packb(wire))

    def _opened(self) -> FileIO:
        try:
            if not self.path.exists() or self.path.stat().st_size == 0:
                write_stream(self.path, self.header, ())  # readers never see a part of it
            return open_to_append(self.path)
        except BlockingIOError as error:
            raise DatasetError(f"{self.path}: {error.strerror}") from error

    def _begin(self) -> None:
        """Make sure that the next record can be appended."""
        if is_compact(self.path):
            raise DatasetError(f"{self.path}: a compact dataset, to which nothing can be appended: use another file")
        self._framed = is_framed(self.path)
        if self._framed:
            self._cut_torn()
        else:
            self._check_header()
            self._require_whole()

    def _cut_torn(self) -> None:
        """Leave whole frames, also where a power cut left nothing but a part of the header."""
        frames = Frames(read_chunks(self.path), [])
        deque(frames, maxlen=0)
        if frames.end:
            self._check_header()
        if frames.torn:
            self._file.truncate(frames.end)
        if not frames.end:
            append(self._file, header_bytes(self.header))

    def _require_whole(self) -> None:
        dataset = open_stream(self.path)
        deque(dataset, maxlen=0)
        if dataset.lost:
            raise DatasetError(
                f"{self.path}: {in_words(dataset.lost)}; without checksums nothing can be appended to it safely: "
                "use another file, build and pack take both"
            )

    def _check_header(self) -> None:
        found = read_header(self.path)
        if not found.hardware.same_device(self.header.hardware):
            raise DatasetError(f"{self.path}: measured on {found.hardware}, this is {self.header.hardware}")
        for name in SOFTWARE:
            was, is_now = getattr(found, name), getattr(self.header, name)
            if was != is_now:
                raise DatasetError(f"{self.path}: measured with {name} {was!r}, this is {is_now!r}: use another file")
