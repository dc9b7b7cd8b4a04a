"""Timing several kernels for one problem, in rounds in which each has its turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Times = npt.NDArray[np.float64]
"""Nanoseconds."""

_FLUSHES = 4
"""Memory written between two kernels, in sizes of the L2 cache. Writing it takes longer than the CPU needs to launch
the next kernel, so that launches are not measured."""

_LEAD_CYCLES = 1_000_000
"""Clock cycles, about half a millisecond, that the GPU waits before a round, so that the CPU gets ahead."""

_TRIES = 5
"""How often a round in which the CPU fell behind is tried, each time with twice the lead."""


class Bench:
    """Times functions that launch kernels on the current CUDA device."""

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties()
        size = _FLUSHES * int(getattr(properties, "L2_cache_size", 64 << 20))
        self._flushed = torch.empty(size, dtype=torch.int8, device="cuda")
        self._events: list[tuple[Any, Any]] = []
        self._order = np.random.default_rng(0)

    def once(self, function: Callable[[], object]) -> float:
        """Nanoseconds of one call, roughly: they include the CPU's time to launch."""
        ((start, end),) = self._some_events(1)
        start.record()
        function()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e6

    def rounds(self, functions: Sequence[Callable[[], object]], count: int) -> Times:
        """Nanoseconds of each function (columns) in each of ``count`` rounds (rows), in a new order in each round.

        A round in which the CPU fell behind the GPU is tried again, because it has timed the CPU.
        """
        times = np.empty((count, len(functions)))
        lead = _LEAD_CYCLES
        for row in times:
            for _ in range(_TRIES):
                if self._round(functions, row, lead):
                    break
                lead = min(2 * lead, _LEAD_CYCLES << _TRIES)
        return times

    def _round(self, functions: Sequence[Callable[[], object]], row: Times, lead: int) -> bool:
        """Time each function once; False if the GPU got to one of them before the CPU had launched it."""
        order = self._order.permutation(len(functions))
        events = self._some_events(len(functions))
        ahead = True
        torch.cuda._sleep(lead)  # type: ignore[no-untyped-call]
        for number, (start, end) in zip(order, events, strict=True):
            self._flushed.zero_()
            start.record()
            functions[number]()
            end.record()
            ahead = ahead and not start.query()
        torch.cuda.synchronize()
        row[order] = [start.elapsed_time(end) * 1e6 for start, end in events]
        return ahead

    def _some_events(self, count: int) -> list[tuple[Any, Any]]:
        while len(self._events) < count:
            self._events.append((_event(), _event()))
        return self._events[:count]


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


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
