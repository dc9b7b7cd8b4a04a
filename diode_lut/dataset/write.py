"""Writing datasets: appending without loss, packing several into a compact file, and combining stages."""

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

from diode_lut.dataset.dataset import (
    MAX_NS,
    MIN_NS,
    SOFTWARE,
    STAGES,
    ZSTD_MAGIC,
    Dataset,
    Header,
    Record,
    RecordDecoder,
    Timing,
    chunks,
    record_to_wire,
)
from diode_lut.dataset.read import (
    RECORD,
    Frames,
    frame,
    header_bytes,
    holds_frames,
    read_header,
    record_bytes,
)
from diode_lut.errors import DatasetError
from diode_lut.files import append, is_at, open_to_append, write_atomically
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config

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
            self._prepare()
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
        if self._decoder.decode(record_to_wire(record)) != record:
            raise DatasetError(f"{self.path}: a timing of {record.problem} has neither a reason nor a time ({_TIMES})")
        if not is_at(self._file, self.path):
            raise DatasetError(f"{self.path}: removed or replaced while it was written: run again")
        append(self._file, record_bytes(record))

    def _prepare(self) -> None:
        """Check the header, and cut off an incomplete frame, also if a power cut left only a part of the header."""
        if self._from_start().read(len(ZSTD_MAGIC)) == ZSTD_MAGIC:
            raise DatasetError(f"{self.path}: a compact dataset, to which nothing can be appended: use another file")
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
        if not frames.end:
            append(self._file, header_bytes(self.header))

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
    header = _common_header(datasets)
    header = header._replace(measured_by=measured_by or header.measured_by)
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
    write_compact(path, (header_bytes(header), *(frame(RECORD, body) for _, _, body in sorted(records))))
    return Packed(len({problem for problem, _, _ in records}), timings, read - len(records))


_LEVEL = 12
"""Level of zstd. Files of higher levels are 10 % smaller and take thirty times as long to write."""


def write_compact(path: Path, chunks: Iterable[bytes]) -> None:
    """Write the stream to a compact file. It replaces an existing file."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compressobj()
    write_atomically(path, b"".join((*map(compressor.compress, chunks), compressor.flush())))


def _common_header(datasets: Sequence[Dataset]) -> Header:
    """Return the header of all datasets together, or raise DatasetError with the paths of two that differ."""
    one, *others = sorted(datasets, key=lambda dataset: (dataset.header, dataset.path))
    for other in others:
        if not one.header.hardware.same_device(other.header.hardware):
            raise DatasetError(f"{other.path}: {other.header.hardware}, but {one.path}: {one.header.hardware}")
        for name in SOFTWARE:
            values = getattr(one.header, name), getattr(other.header, name)
            if values[0] != values[1]:
                remedy = "pack them into different files"
                raise DatasetError(f"{other.path}: {name} {values[1]!r}, but {one.path}: {values[0]!r} ({remedy})")
    headers = [dataset.header for dataset in datasets]
    names = {name for header in headers for name in (header.hardware.name, *header.hardware.aliases)}
    hardware = one.header.hardware
    return one.header._replace(
        hardware=hardware._replace(aliases=tuple(sorted(names - {hardware.name}))),
        measured_on=min(header.measured_on for header in headers),
        measured_by=", ".join(sorted({header.measured_by for header in headers} - {""})),
    )


_STATIC_GAIN = 1.012
"""Time of a Triton kernel with sizes as arguments, relative to the same kernel compiled for these sizes.

The median over all configs with both times on an H200. It is used for problems without such configs.
"""


def combined(records: Iterable[Record]) -> Iterator[Record]:
    """Yield a record for each problem, in order, as if all configs had been timed in the final stage.

    Final times count as they are. Others are scaled by the median ratio of the configs with both times on the problem,
    so a config without a chance in the sweep still has its place after the finalists. Several times of a config in a
    stage become their median. A config that failed once has failed.
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
    """Return final times over times of the sweep, for configs with this ``pad``."""
    both = [config for config in final if config in sweep and config.pad == pad and config.template != ATEN.template]
    if both:
        return median(final[config] / sweep[config] for config in both)
    return final[ATEN] / sweep[ATEN] / _STATIC_GAIN if ATEN in final and ATEN in sweep else 1.0
