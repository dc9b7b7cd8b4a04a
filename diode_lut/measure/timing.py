"""Timing launches on a GPU: the kernels of a problem take turns in rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median_low
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from diode_lut.dataset import Timing
from diode_lut.hook.versions import failure_reason
from diode_lut.measure.tasks import Watch
from diode_lut.problem import Problem
from diode_lut.templates.config import Config

Launch = Callable[[], object]

Nanoseconds = npt.NDArray[np.float64]

_FLUSHES = 4
"""Memory written between two kernels, in sizes of the L2 cache. Writing it takes longer than the CPU needs to launch
the next kernel, so launches are not measured."""

_LEAD_CYCLES = 1_000_000  # clock cycles, half a millisecond, that the GPU waits before a round, so the CPU gets ahead
_TRIES = 5  # maximum number of tries of a round if the CPU falls behind, each with twice the lead


class Bench:
    """Times launches of kernels on the current CUDA device."""

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties()
        size = _FLUSHES * int(getattr(properties, "L2_cache_size", 64 << 20))
        self._flushed = torch.empty(size, dtype=torch.int8, device="cuda")
        self._events: list[tuple[Any, Any]] = []
        self._order = np.random.default_rng(0)

    def once(self, function: Launch) -> float:
        """Return roughly the nanoseconds of a call, with the CPU's time to launch."""
        ((start, end),) = self._some_events(1)
        start.record()
        function()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e6

    def rounds(self, functions: Sequence[Launch], count: int) -> Nanoseconds:
        """Return nanoseconds of each function (columns) by round (rows), shuffled. Late rounds are tried again."""
        times = np.empty((count, len(functions)))
        lead = _LEAD_CYCLES
        for row in times:
            for _ in range(_TRIES):
                if self._round(functions, row, lead):
                    break
                lead = min(2 * lead, _LEAD_CYCLES << _TRIES)
        return times

    def _round(self, functions: Sequence[Launch], row: Nanoseconds, lead: int) -> bool:
        """Time each function once. Return False if the GPU got to a function before the CPU had launched it."""
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
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            self._events.append((start, end))
        return self._events[:count]


_SLOW_NS = 1_000_000
_SLOW_FACTOR = 2.0
"""A config gets no more launches if each of two takes longer than _SLOW_NS nanoseconds, and _SLOW_FACTOR times as long
as the fastest config."""

_QUICK_ROUNDS = ((math.inf, 2), (1.5, 2), (1.2, 4))
"""Pairs of a factor and the number of further rounds for the configs within this factor of the best.

About a launch in a thousand takes hundreds of times as long, because the CPU is busy elsewhere. So no decision rests
on a single launch, and of two the faster counts.
"""


def time_all(
    problem: Problem, launches: dict[Config, Launch], watch: Watch, bench: Bench, failures: list[Timing]
) -> dict[Config, float]:
    """Return quickly measured nanoseconds of each config. Failing configs are added to ``failures``."""
    first: dict[Config, float] = {}
    for config, launch in launches.items():
        try:
            with watch(problem, config):
                launch()  # may load the kernel
                first[config] = bench.once(launch)
        except RuntimeError as error:  # noqa: PERF203
            failures.append(Timing(config, None, failure_reason(error, "launch")))
    limit = max(_SLOW_FACTOR * min(first.values()), _SLOW_NS) if first else 0
    for config, ns in first.items():
        if ns > limit:
            with watch(problem, config):
                first[config] = min(ns, bench.once(launches[config]))
    running = [config for config, ns in first.items() if ns <= limit]
    times = {config: [ns] if ns > limit else [] for config, ns in first.items()}
    with watch(problem):
        for factor, rounds in _QUICK_ROUNDS:
            middle = {config: median_low(times[config] or [1.0]) for config in running}
            running = [config for config in running if middle[config] <= factor * min(middle.values())]
            measured = bench.rounds([launches[config] for config in running], rounds)
            for config, column in zip(running, measured.T.tolist(), strict=True):
                times[config] += column
    return {config: median_low(each) for config, each in times.items()}


_ROUNDS = 10
_MAX_ROUNDS = 60
_MAX_STANDARD_ERROR = 0.004  # of each contender's median, relative to it, until which rounds go on
_CONTENDER_FACTOR = 1.06  # configs within this factor of the best are contenders, and so is the baseline


def medians(launches: Sequence[Launch], bench: Bench) -> list[float]:
    """Return carefully measured median nanoseconds of each launch, the baseline first. Contenders get more rounds."""
    for launch in launches:
        launch()
    columns: list[Nanoseconds] = list(bench.rounds(launches, _ROUNDS).T)
    running = list(range(len(launches)))
    for _ in range(_ROUNDS, _MAX_ROUNDS, _ROUNDS):
        middle = np.array([np.median(column) for column in columns])
        running = [number for number in running if middle[number] <= _CONTENDER_FACTOR * middle.min() or number == 0]
        if all(_standard_error(columns[number]) <= _MAX_STANDARD_ERROR * middle[number] for number in running):
            break
        more = bench.rounds([launches[number] for number in running], _ROUNDS)
        for number, column in zip(running, more.T, strict=True):
            columns[number] = np.concatenate([columns[number], column])
    return [float(np.median(column)) for column in columns]


def _standard_error(times: Nanoseconds) -> float:
    """Return the standard error of the median, from the median deviation, as for a normal distribution."""
    deviation = 1.4826 * float(np.median(np.abs(times - np.median(times))))
    return 1.2533 * deviation / math.sqrt(len(times))
