"""What is learned: for each problem, how the times of configs compare with that of aten."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from diode_lut.dataset import Record
from diode_lut.dataset.combine import combined
from diode_lut.kernels.config import ATEN, Config
from diode_lut.problem import Problem


class Target(NamedTuple):
    """``times`` are logarithms of times over aten's, ``best`` is the least of them; ``failed`` configs have none."""

    problem: Problem
    times: dict[Config, float]
    best: float
    failed: frozenset[Config] = frozenset()


def targets_of(records: Iterable[Record]) -> list[Target]:
    """One for each problem on which aten was timed, in order."""
    return [target for record in combined(records) if (target := _target(record)) is not None]


def _target(record: Record) -> Target | None:
    times = {timing.config: timing.ns for timing in record.timings if timing.ns is not None}
    if ATEN not in times:
        return None
    relative = {config: math.log(ns / times[ATEN]) for config, ns in times.items()}
    failed = frozenset(timing.config for timing in record.timings if timing.ns is None)
    return Target(record.problem, relative, min(relative.values()), failed)
