"""Careful timing of several kernels for one problem, in rounds in which each has its turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from diode_lut.collect.gemm import Bench, Times

_ROUNDS = 10
_MAX_ROUNDS = 60
_MAX_STANDARD_ERROR = 0.004
"""Rounds go on until the standard error of each contender's median is at most this fraction of the median."""

_CONTENDER_FACTOR = 1.06
"""Configs within this factor of the best are contenders; so is the baseline."""


def medians(launches: Sequence[Callable[[], object]], bench: Bench) -> list[float]:
    """Median nanoseconds of each launch, the first of which is the baseline's.

    Contenders get as many rounds as their medians need.
    """
    for launch in launches:
        launch()
    times = [bench.rounds(launches, _ROUNDS)]
    running = list(range(len(launches)))
    columns: list[Times] = list(times[0].T)
    for _ in range(_ROUNDS, _MAX_ROUNDS, _ROUNDS):
        middle = np.array([np.median(column) for column in columns])
        running = [number for number in running if middle[number] <= _CONTENDER_FACTOR * middle.min() or number == 0]
        if all(_standard_error(columns[number]) <= _MAX_STANDARD_ERROR * middle[number] for number in running):
            break
        more = bench.rounds([launches[number] for number in running], _ROUNDS)
        for number, column in zip(running, more.T, strict=True):
            columns[number] = np.concatenate([columns[number], column])
    return [float(np.median(column)) for column in columns]


def _standard_error(times: Times) -> float:
    """The standard error of the median, from the median deviation, as for a normal distribution."""
    deviation = 1.4826 * float(np.median(np.abs(times - np.median(times))))
    return 1.2533 * deviation / math.sqrt(len(times))
