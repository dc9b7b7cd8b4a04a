"""Timing kernels on a GPU: cold L2 cache, interleaved, so that drifting clocks meet all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Times = npt.NDArray[np.float64]
"""Nanoseconds."""

_FLUSHES = 4
"""The memory written between two kernels, in units of the L2 cache. That takes the GPU longer than it takes the CPU
to launch the next kernel, so that no launch is measured."""

_LEAD_CYCLES = 1_000_000
"""How long the GPU waits before a round, about half a millisecond, for the CPU to get ahead."""


class Bench:
    """Times functions that launch kernels on the current CUDA device."""

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties()
        size = _FLUSHES * int(getattr(properties, "L2_cache_size", 64 << 20))
        self._flushed = torch.empty(size, dtype=torch.int8, device="cuda")
        self._events: list[tuple[Any, Any]] = []
        self._order = np.random.default_rng(0)

    def once(self, function: Callable[[], object]) -> float:
        """Nanoseconds of one call, roughly: the CPU's time to launch is in it."""
        ((start, end),) = self._some_events(1)
        start.record()
        function()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e6

    def rounds(self, functions: Sequence[Callable[[], object]], count: int) -> Times:
        """Nanoseconds of each function (columns) in each of ``count`` rounds (rows), in a new order in each round."""
        times = np.empty((count, len(functions)))
        for row in times:
            order = self._order.permutation(len(functions))
            events = self._some_events(len(functions))
            torch.cuda._sleep(_LEAD_CYCLES)  # type: ignore[no-untyped-call]
            for number, (start, end) in zip(order, events, strict=True):
                self._flushed.zero_()
                start.record()
                functions[number]()
                end.record()
            torch.cuda.synchronize()
            row[order] = [start.elapsed_time(end) * 1e6 for start, end in events]
        return times

    def _some_events(self, count: int) -> list[tuple[Any, Any]]:
        while len(self._events) < count:
            self._events.append((_event(), _event()))
        return self._events[:count]


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
