"""What a dataset holds: a Header, then Records of Timings."""

from __future__ import annotations

from typing import NamedTuple

from diode_lut.kernels.config import Config
from diode_lut.problem import Hardware, Problem

REASONS = ("compile", "shared_memory", "out_of_memory", "launch", "timeout", "wrong_result", "invalid_time")
"""Why a config has no time: it does not compile; it needs more shared memory than the device has; the tensors do not
fit in memory; the kernel does not start, or dies; it takes too long; its result is not the product; the benchmarker
answered something that is no time (not from MIN_NS to MAX_NS)."""

MIN_NS, MAX_NS = 1.0, 1e12
"""Nanoseconds that one execution of a product can take: from about a clock cycle to a quarter of an hour."""


STAGES = ("autotune", "sweep", "final")
"""How the times of a record were taken: by Inductor's autotuner; quickly, on kernels that many problems share; or
carefully, on the very kernels that users will run. Where a problem has final times, only those decide."""


class Header(NamedTuple):
    """What a dataset was measured on and with.

    ``torch``, ``triton``, ``cuda`` and ``driver`` are versions as their makers write them, empty where there is none;
    ``benchmarker`` says in words what took the times; ``measured_on`` is the ISO date of the first record.
    """

    hardware: Hardware
    torch: str = ""
    triton: str = ""
    cuda: str = ""
    driver: str = ""
    benchmarker: str = ""
    measured_on: str = ""


SOFTWARE = ("torch", "triton", "cuda", "driver", "benchmarker")
"""The fields of a Header with which timings were taken: where one differs, they are not in one file."""


class Timing(NamedTuple):
    """One config on one problem: ``ns`` nanoseconds, or one of REASONS why there is no time; never both."""

    config: Config
    ns: float | None
    reason: str | None = None

    @classmethod
    def of(cls, config: Config, ns: float) -> Timing:
        """What a benchmark that answered ``ns`` means: anything but a time from MIN_NS to MAX_NS is a failure."""
        return cls(config, ns) if MIN_NS <= ns <= MAX_NS else cls(config, None, "invalid_time")


class Record(NamedTuple):
    """What one run measured for one problem, at one of STAGES. Building combines a problem's records."""

    problem: Problem
    timings: tuple[Timing, ...]
    stage: str = "autotune"
