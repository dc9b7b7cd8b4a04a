"""Writing a dataset, and appending to one without losing anything that is in it."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import NamedTuple, final

import msgpack
import zstandard

from diode_lut.dataset.dataset import ZSTD_MAGIC, Dataset, chunks
from diode_lut.dataset.read import (
    RECORD,
    Frames,
    Unframed,
    frame,
    header_bytes,
    holds_frames,
    read_header,
    record_bytes,
)
from diode_lut.dataset.record import (
    MAX_NS,
    MIN_NS,
    SOFTWARE,
    STAGES,
    Header,
    Lost,
    Record,
    RecordDecoder,
    Timing,
    lost_text,
    record_to_wire,
)
from diode_lut.errors import DatasetError
from diode_lut.files import append, is_at, open_to_append, write_atomically
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config

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


_STATIC_GAIN = 1.012
"""Time of a Triton kernel that has the sizes as arguments, over that of the same compiled for these sizes.

The median over all configs with both times on an H200. It is used where a problem has none of them.
"""


def combined(records: Iterable[Record]) -> Iterator[Record]:
    """One record for each problem, in order, as if everything had been timed in the final stage.

    Final times count as they are. Others are scaled by what the configs with both times have in common on the problem
    (their median), so that a config which had no chance in the sweep still has a place after those that had. Several
    times of a config in one stage are combined by their median; a config that failed anywhere has failed.
    """
    times: defaultdict[Problem, tuple[_Times, _Times]] = defaultdict(lambda: (defaultdict(list), defaultdict(list)))
    failed: defaultdict[Problem, dict[Config, Timing]] = defaultdict(dict)
    for record in records:
        stage = times[record.problem][record.stage == "final"]
        for timing in record.timings:
            if timing.ns is None:
                failed[record.problem].setdefault(timing.config, timing)
            else:
                stage[timing.config].append(timing.ns)
    for problem in sorted(times):
        sweep, final = ({config: median(ns) for config, ns in stage.items()} for stage in times[problem])
        scales = {pad: _scale(sweep, final, pad) for pad in {config.pad for config in sweep}}
        together = {config: ns * scales[config.pad] for config, ns in sweep.items()} | final
        timings = {config: Timing(config, ns) for config, ns in together.items()} | failed[problem]
        yield Record(problem, tuple(timings[config] for config in sorted(timings)), "final")


_Times = defaultdict[Config, list[float]]


def _scale(sweep: Mapping[Config, float], final: Mapping[Config, float], pad: int) -> float:
    """Final times over those of the sweep, of configs with this ``pad``."""
    both = [config for config in final if config in sweep and config.pad == pad and config.template != ATEN.template]
    if both:
        return median(final[config] / sweep[config] for config in both)
    return final[ATEN] / sweep[ATEN] / _STATIC_GAIN if ATEN in final and ATEN in sweep else 1.0


class Packed(NamedTuple):
    """Contents of a packed file: the number of problems, of timings by stage, and of copies that were left out."""

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
    """Write all records of the datasets, sorted, into one compact file, which replaces an existing one.

    Equal records are stored once. Other records of the same problem all stay, because building takes the median. The
    same records give the same bytes, whatever their order and number of files. The header has the earliest date,
    and who measured: ``measured_by``, by default all whom the datasets name. ``progress`` passes on the records of a
    dataset. DatasetError if hardware or software differ between datasets.
    """
    header = _common_header(datasets)
    header = header._replace(measured_by=measured_by or header.measured_by)
    records: set[tuple[Problem, int, bytes]] = set()
    timings: Counter[str] = Counter()
    read = 0
    for dataset in datasets:
        for record in progress(dataset):
            read += 1
            key = record.problem, STAGES.index(record.stage), _pack(record)
            if key not in records:
                records.add(key)
                timings[record.stage] += len(record.timings)
    write_compact(path, (header_bytes(header), *(frame(RECORD, packed) for _, _, packed in sorted(records))))
    return Packed(len({problem for problem, _, _ in records}), timings, read - len(records))


_LEVEL = 12
"""Of zstd. Files of higher levels are 10 % smaller and take thirty times as long to write."""


def write_compact(path: Path, chunks: Iterable[bytes]) -> None:
    """Write the stream to a compact file, which replaces an existing one."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compressobj()
    write_atomically(path, b"".join((*map(compressor.compress, chunks), compressor.flush())))


def _pack(record: Record) -> bytes:
    timings = sorted(record.timings, key=_order)
    packed: bytes = msgpack.packb(record_to_wire(record._replace(timings=tuple(timings))))
    return packed


def _order(timing: Timing) -> tuple[Config, float, str]:
    return timing.config, timing.ns or 0.0, timing.reason or ""


def _common_header(datasets: Sequence[Dataset]) -> Header:
    """The header of all datasets together, or DatasetError with the names of two that differ."""
    first, *others = sorted(datasets, key=lambda dataset: (dataset.header, dataset.path))
    for other in others:
        _check_same(first, other)
    names = {name for dataset in datasets for name in (dataset.header.hardware.name, *dataset.header.hardware.aliases)}
    hardware = first.header.hardware
    return first.header._replace(
        hardware=hardware._replace(aliases=tuple(sorted(names - {hardware.name}))),
        measured_on=min(dataset.header.measured_on for dataset in datasets),
        measured_by=", ".join(sorted({dataset.header.measured_by for dataset in datasets} - {""})),
    )


def _check_same(one: Dataset, other: Dataset) -> None:
    if not one.header.hardware.same_device(other.header.hardware):
        raise DatasetError(f"{other.path}: {other.header.hardware}, but {one.path}: {one.header.hardware}")
    for name in SOFTWARE:
        values = getattr(one.header, name), getattr(other.header, name)
        if values[0] != values[1]:
            raise DatasetError(
                f"{other.path}: {name} {values[1]!r}, but {one.path}: {values[0]!r} (pack them into different files)"
            )
