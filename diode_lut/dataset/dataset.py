"""Datasets in memory: headers and records, a file as an iterable of them, its text for people, and their msgpack."""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import zstandard

from diode_lut.errors import DatasetError, ProblemError, printable
from diode_lut.files import open_regular
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.templates.config import TEMPLATES, Config
from diode_lut.templates.template import SMALLEST_BLOCK

_log = logging.getLogger(__name__)

REASONS = ("compile", "shared_memory", "out_of_memory", "launch", "timeout", "wrong_result", "invalid_time")
"""Why a config has no time: it does not compile, it needs more shared memory than the device has, the tensors do not
fit in memory, the kernel does not start or dies, it takes too long, its result is wrong, or the benchmarker's result
is not from MIN_NS to MAX_NS."""

MIN_NS, MAX_NS = 1.0, 1e12  # of an execution, in nanoseconds: about a clock cycle, and a quarter of an hour

NS_PER_MS = 1e6

STAGES = ("autotune", "sweep", "final")
"""How the times of a record were taken: by Inductor's autotuner, quickly on kernels shared by many problems (sweep), or
carefully on the kernels users will run (final). If a problem has final times, only these count."""


class Header(NamedTuple):
    """The hardware and software of a dataset.

    ``torch``, ``triton``, ``cuda`` and ``driver`` are versions, ``benchmarker`` names the method of timing,
    ``measured_on`` is the ISO date of the first record, and ``measured_by`` is a name for those who measured. Unknown
    values are empty.
    """

    hardware: Hardware
    torch: str = ""
    triton: str = ""
    cuda: str = ""
    driver: str = ""
    benchmarker: str = ""
    measured_on: str = ""
    measured_by: str = ""


SOFTWARE = ("torch", "triton", "cuda", "driver", "benchmarker")  # header fields that all timings of a file share


class Timing(NamedTuple):
    """The time of a config on a problem in nanoseconds, or one of REASONS if it has none."""

    config: Config
    ns: float | None
    reason: str | None = None

    @classmethod
    def of(cls, config: Config, ns: float) -> Timing:
        """Return the timing for a benchmark's result. Anything but a time from MIN_NS to MAX_NS is a failure."""
        return cls(config, ns) if MIN_NS <= ns <= MAX_NS else cls(config, None, "invalid_time")

    @classmethod
    def of_milliseconds(cls, config: Config, ms: Any) -> Timing:
        """Return the timing for the milliseconds of another tool, which may be any JSON value."""
        known = type(ms) in (int, float) and ms <= MAX_NS  # larger integers may be no floating-point numbers
        return cls.of(config, ms * NS_PER_MS if known else math.nan)


class Record(NamedTuple):
    """The timings of a run for a problem, at one of STAGES. Building combines the records of a problem."""

    problem: Problem
    timings: tuple[Timing, ...]
    stage: str = "autotune"

    @property
    def times(self) -> dict[Config, float]:
        """The nanoseconds of all configs that have a time."""
        return {config: ns for config, ns, _ in self.timings if ns is not None}


_MAX_PLACES = 5  # maximum number of damaged places in a message


class Lost(NamedTuple):
    """A damaged place: the bytes from ``start`` to ``end`` (exclusive) of the stream cannot be read.

    ``record`` is the number of the first lost record, counted from 1, or 0 for a copy of the header. A long place may
    have held several records.
    """

    record: int
    start: int
    end: int

    def __str__(self) -> str:
        what = f"record {self.record}" if self.record else "a copy of the header"
        return f"{what} (bytes {self.start} to {self.end})"


ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # the first bytes of a compact dataset, which is a stream in a zstd frame
_COMPACT_BYTES = 1 << 10  # compressed bytes read at a time. zstd makes at most 32 MB of them, whatever a file claims
_PLAIN_BYTES = 1 << 16  # largest chunk of a stream
_MAX_WINDOW_BYTES = 32 << 20  # largest distance back to which a zstd frame may refer

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
            some = ", ".join(map(str, self.lost[:_MAX_PLACES]))
            more = f" and {len(self.lost) - _MAX_PLACES} more places" if len(self.lost) > _MAX_PLACES else ""
            name = printable(str(self.path))
            _log.warning("%s: damaged: %s%s cannot be read and are left out", name, some, more)

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


MAGIC = "diode_lut_dataset"
VERSION = 2

_MAX_EXACT = 2**53  # up to this, every integer is a floating-point number

_OPTIONAL = "measured_by"
_TEXTS = tuple(name for name in Header._fields if name not in ("hardware", _OPTIONAL))

_PROBLEM_FIELDS = range(len(Problem._fields) - len(Problem._field_defaults), len(Problem._fields) + 1)
"""Numbers of values of a problem: epilogue and variant are left out if it has none."""


def header_to_wire(header: Header) -> dict[str, Any]:
    """Return the map at the beginning of a file. Its first key is MAGIC."""
    hardware = {**header.hardware._asdict(), "aliases": list(header.hardware.aliases)}
    wire = {MAGIC: VERSION, **header._asdict(), "hardware": hardware}
    return wire if header.measured_by else {name: value for name, value in wire.items() if name != _OPTIONAL}


def header_from_wire(wire: Any) -> Header:
    """Return the header, or raise DatasetError with the value at fault. None is a file cut off within its header."""
    if wire is None:
        raise DatasetError("ends within its header: cut off before anything was measured (remove it)")
    if not isinstance(wire, dict) or MAGIC not in wire:
        raise DatasetError(f"the first object has no {MAGIC!r}: not a dataset")
    version = wire[MAGIC]
    if type(version) is not int or version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        remedy = "written by a newer diode_lut: upgrade" if newer else "not a version that ever existed"
        raise DatasetError(f"{MAGIC}: expected {VERSION}, found {version!r} ({remedy})")
    texts = {_OPTIONAL: wire.get(_OPTIONAL, ""), **{name: wire.get(name) for name in _TEXTS}}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise DatasetError(f"{name}: {_shortened(value)} is not a text")
    unknown = wire.keys() - {MAGIC, *Header._fields}
    if unknown:
        raise DatasetError(f"{min(map(str, unknown))}: a header has no such field")
    hardware = wire.get("hardware")
    if not isinstance(hardware, dict):
        raise DatasetError(f"hardware: {_shortened(hardware)} is not a map")
    try:
        return Header(Hardware.from_json(hardware), **texts)
    except ProblemError as error:
        raise DatasetError(f"hardware: {error}") from None


def record_to_wire(record: Record) -> tuple[Any, ...]:
    """Return the record as nested tuples. Whole numbers become integers, which take less space."""

    def short(ns: float) -> float:
        return int(ns) if -_MAX_EXACT < ns < _MAX_EXACT and ns == int(ns) else float(ns)

    timings = tuple((config, reason if ns is None else short(ns)) for config, ns, reason in record.timings)
    return tuple(record.problem.stored().values()), timings, record.stage


class RecordDecoder:
    """Decodes the tuples of ``record_to_wire``. Equal configs, and equal problems in a row, become the same object."""

    def __init__(self) -> None:
        self._configs: dict[Config, Config] = {}
        self._last: tuple[Any, Problem | None] = None, None

    def decode(self, wire: Any) -> Record:
        """Return the record, or raise DatasetError with the value at fault."""
        match wire:
            case (tuple(values), tuple(timings), stage) if len(values) in _PROBLEM_FIELDS:
                if stage not in STAGES:
                    raise DatasetError(f"stage: {_shortened(stage)} is none of {', '.join(STAGES)}")
                known, problem = self._last
                if problem is None or values != known:
                    try:
                        problem = Problem.checked(*values)
                    except ProblemError as error:
                        raise DatasetError(str(error)) from None
                    self._last = values, problem
                return Record(problem, tuple(map(self._timing, timings)), stage)
        raise DatasetError(f"{_shortened(wire)} is not [problem, timings, stage]")

    def _timing(self, wire: Any) -> Timing:
        try:
            config, outcome = wire
            config = self._configs[config]
        except (KeyError, TypeError, ValueError):  # a config that is new, or not a config
            config, outcome = self._new_config(wire)
        if type(outcome) is int or type(outcome) is float:
            if MIN_NS <= outcome <= MAX_NS:
                return Timing(config, outcome)  # as Timing.of does: calling it a million times would take longer
            return Timing.of(config, outcome)
        if outcome in REASONS:
            return Timing(config, None, outcome)
        raise DatasetError(f"{config}: {_shortened(outcome)} is neither a time nor one of {', '.join(REASONS)}")

    def _new_config(self, wire: Any) -> tuple[Config, Any]:
        match wire:
            case ((str(name), tuple(values)), outcome):
                template = TEMPLATES.get(name)
                names = template.names if template else ()
                required = len(template.required) if template else 0
                if not required <= len(values) <= len(names):
                    allowed = ", ".join(names) or "nothing"
                    raise DatasetError(f"{name}: {_shortened(values)} are not values of {allowed}")
                try:
                    config = Config.from_json({"template": name, **dict(zip(names, values, strict=False))})
                except ProblemError as error:
                    raise DatasetError(str(error)) from None
                return self._configs.setdefault(config, config), outcome
        raise DatasetError(f"{_shortened(wire)} is not [config, time] or [config, reason]")


def _shortened(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        text = "a deeply nested value"
    return text if len(text) <= 80 else f"{text[:77]}..."


SWEEP = "diode_lut sweep 2"
"""The benchmarker of ``collect``. Since this sweep, kernels mask the rows of a block of 16 that A has not."""


def current_records(
    datasets: Iterable[Dataset], records_of: Callable[[Dataset], Iterable[Record]] = iter
) -> Iterator[Record]:
    """Yield the records of all datasets, but no times of kernels that changed before their problem was timed again."""
    again: set[Problem] = set()
    for dataset in sorted(datasets, key=lambda each: each.header.benchmarker != SWEEP):
        is_current = dataset.header.benchmarker == SWEEP
        for record in records_of(dataset):
            problem, timings = record.problem, record.timings
            if is_current:
                again.add(problem)
            elif problem in again and problem.m % SMALLEST_BLOCK:
                timings = tuple(each for each in timings if not each.config.masks_rows)
            yield record._replace(timings=timings)
