"""The header and records of a dataset, their form in msgpack, and damaged places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from diode_lut.errors import DatasetError, ProblemError
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.templates.config import TEMPLATES, Config

REASONS = ("compile", "shared_memory", "out_of_memory", "launch", "timeout", "wrong_result", "invalid_time")
"""Why a config has no time: it does not compile; it needs more shared memory than the device has; the tensors do not
fit in memory; the kernel does not start, or dies; it takes too long; its result is wrong; the benchmarker's result is
no time from MIN_NS to MAX_NS."""

MIN_NS, MAX_NS = 1.0, 1e12
"""Shortest and longest time of one execution, in nanoseconds: about a clock cycle, and a quarter of an hour."""

NS_PER_MS = 1e6

STAGES = ("autotune", "sweep", "final")
"""How the times of a record were taken: by Inductor's autotuner; quickly, on kernels that many problems share; or
carefully, on the kernels that users will run. Where a problem has final times, only those count."""


class Header(NamedTuple):
    """The hardware and software of a dataset.

    ``torch``, ``triton``, ``cuda`` and ``driver`` are versions, empty where there is none; ``benchmarker`` names the
    method of timing; ``measured_on`` is the ISO date of the first record. ``measured_by`` is who measured, as they
    want to be named; empty if that is not said.
    """

    hardware: Hardware
    torch: str = ""
    triton: str = ""
    cuda: str = ""
    driver: str = ""
    benchmarker: str = ""
    measured_on: str = ""
    measured_by: str = ""


SOFTWARE = ("torch", "triton", "cuda", "driver", "benchmarker")
"""The fields of a Header that are the same for all timings of a file, besides the hardware."""


class Timing(NamedTuple):
    """One config on one problem: its time in nanoseconds, or one of REASONS why it has none; never both."""

    config: Config
    ns: float | None
    reason: str | None = None

    @classmethod
    def of(cls, config: Config, ns: float) -> Timing:
        """The timing for a benchmark's result: anything but a time from MIN_NS to MAX_NS is a failure."""
        return cls(config, ns) if MIN_NS <= ns <= MAX_NS else cls(config, None, "invalid_time")

    @classmethod
    def of_milliseconds(cls, config: Config, ms: Any) -> Timing:
        """The same for the milliseconds of other tools, which may be anything that JSON can hold."""
        known = type(ms) in (int, float) and ms <= MAX_NS  # larger integers may be no floating-point numbers
        return cls.of(config, ms * NS_PER_MS if known else math.nan)


class Record(NamedTuple):
    """The timings of one run for one problem, at one of STAGES. Building combines the records of a problem."""

    problem: Problem
    timings: tuple[Timing, ...]
    stage: str = "autotune"


_MAX_PLACES = 5
"""Most damaged places that a message lists."""


class Lost(NamedTuple):
    """A damaged place: the bytes from ``start`` to ``end`` (exclusive) of the stream could not be read.

    ``record`` is the number of the first lost record, counted from 1; 0 stands for a copy of the header. A place that
    is longer than a record may have held several.
    """

    record: int
    start: int
    end: int

    def __str__(self) -> str:
        what = f"record {self.record}" if self.record else "a copy of the header"
        return f"{what} (bytes {self.start} to {self.end})"


def lost_text(lost: Sequence[Lost]) -> str:
    """One line for all damaged places, with a list of the first ones."""
    more = f" and {len(lost) - _MAX_PLACES} more places" if len(lost) > _MAX_PLACES else ""
    return f"damaged: {', '.join(map(str, lost[:_MAX_PLACES]))}{more} cannot be read and are left out"


MAGIC = "diode_lut_dataset"
VERSION = 2
UNFRAMED = 1
"""The version before, without checksums, which can still be read."""

_MAX_EXACT = 2**53
"""Up to here every integer is a floating-point number."""

_OPTIONAL = "measured_by"
_TEXTS = tuple(name for name in Header._fields if name not in ("hardware", _OPTIONAL))

_PROBLEM_FIELDS = range(len(Problem._fields) - len(Problem._field_defaults), len(Problem._fields) + 1)
"""Numbers of values of a problem: it is stored without its epilogue and variant if there is none."""


def header_to_wire(header: Header, version: int = VERSION) -> dict[str, Any]:
    """The map at the beginning of a file; its first key is MAGIC."""
    hardware = {**header.hardware._asdict(), "aliases": list(header.hardware.aliases)}
    wire = {MAGIC: version, **header._asdict(), "hardware": hardware}
    return wire if header.measured_by else {name: value for name, value in wire.items() if name != _OPTIONAL}


def header_from_wire(wire: Any, version: int = VERSION) -> Header:
    """The header, or DatasetError saying what was found instead; None is a file that ends within its header."""
    if wire is None:
        raise DatasetError("ends within its header: cut off before anything was measured (remove it)")
    if not isinstance(wire, dict) or MAGIC not in wire:
        raise DatasetError(f"the first object has no {MAGIC!r}: not a dataset")
    if type(wire[MAGIC]) is not int or wire[MAGIC] != version:
        remedy = "written by a newer diode_lut: upgrade" if _newer(wire[MAGIC]) else "not a version that ever existed"
        raise DatasetError(f"{MAGIC}: expected {version}, found {wire[MAGIC]!r} ({remedy})")
    texts = {_OPTIONAL: wire.get(_OPTIONAL, ""), **{name: wire.get(name) for name in _TEXTS}}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise DatasetError(f"{name}: {_shortened(value)} is not a text")
    unknown = wire.keys() - {MAGIC, *Header._fields}
    if unknown:
        raise DatasetError(f"{min(map(str, unknown))}: a header has no such field")
    return Header(_hardware(wire.get("hardware")), **texts)


def record_to_wire(record: Record) -> tuple[Any, ...]:
    """The record as nested tuples."""
    timings = tuple((config, reason if ns is None else _short(ns)) for config, ns, reason in record.timings)
    return tuple(record.problem.stored().values()), timings, record.stage


def _short(ns: float) -> float:
    """The same number, as an integer where that takes less space."""
    return int(ns) if -_MAX_EXACT < ns < _MAX_EXACT and ns == int(ns) else float(ns)


class RecordDecoder:
    """Decodes what ``record_to_wire`` returns. Equal configs, and equal problems in a row, become the same object."""

    def __init__(self) -> None:
        self._configs: dict[Config, Config] = {}
        self._last: tuple[Any, Problem | None] = None, None

    def decode(self, wire: Any) -> Record:
        """The record, or DatasetError naming the value at fault."""
        match wire:
            case (tuple(problem), tuple(timings), stage) if len(problem) in _PROBLEM_FIELDS:
                if stage not in STAGES:
                    raise DatasetError(f"stage: {_shortened(stage)} is none of {', '.join(STAGES)}")
                return Record(self._problem(problem), tuple(map(self._timing, timings)), stage)
        raise DatasetError(f"{_shortened(wire)} is not [problem, timings, stage]")

    def _problem(self, wire: tuple[Any, ...]) -> Problem:
        known, found = self._last
        if found is None or wire != known:
            try:
                found = Problem.checked(*wire)
            except ProblemError as error:
                raise DatasetError(str(error)) from None
            self._last = wire, found
        return found

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
            case ((str(template), tuple(values)), outcome):
                config = _config(template, values)
                return self._configs.setdefault(config, config), outcome
        raise DatasetError(f"{_shortened(wire)} is not [config, time] or [config, reason]")


def _config(template: str, values: tuple[Any, ...]) -> Config:
    names = TEMPLATES[template].names if template in TEMPLATES else ()
    required = len(TEMPLATES[template].required) if template in TEMPLATES else 0
    if not required <= len(values) <= len(names):
        raise DatasetError(f"{template}: {_shortened(values)} are not values of {', '.join(names) or 'nothing'}")
    try:
        return Config.from_json({"template": template, **dict(zip(names, values, strict=False))})
    except ProblemError as error:
        raise DatasetError(str(error)) from None


def _hardware(wire: Any) -> Hardware:
    if not isinstance(wire, dict):
        raise DatasetError(f"hardware: {_shortened(wire)} is not a map")
    try:
        return Hardware.from_json(wire)
    except ProblemError as error:
        raise DatasetError(f"hardware: {error}") from None


def _newer(version: Any) -> bool:
    return isinstance(version, int) and version > VERSION


def _shortened(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        text = "a deeply nested value"
    return text if len(text) <= 80 else f"{text[:77]}..."
