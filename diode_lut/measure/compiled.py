"""Timing several kernels for one problem, in rounds in which each has its turn."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from diode_lut.dataset import Record, Timing
from diode_lut.errors import CollectError
from diode_lut.hardware import detect_hardware
from diode_lut.measure import attention
from diode_lut.measure import gemm as grouped
from diode_lut.measure.gemm import matmul_precision
from diode_lut.measure.programs import Program, generate
from diode_lut.measure.search_space import Outcome, Task, Watch, candidates
from diode_lut.problem import ATTENTION, GROUPED, Problem
from diode_lut.templates.config import Config

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


_COMPILING_PROBLEMS = 2
"""Problems that are compiled in the background while one is timed; each has dozens of configs."""


class Function(Protocol):
    """What is compiled; it is pickled."""

    @property
    def problem(self) -> Problem:
        """The problem that it computes."""

    def compute(self, *operands: torch.Tensor) -> Any:
        """The result, or several of them."""


class Check(Protocol):
    """Compares results with those of float64."""

    def passes(self, launch: Callable[[], Sequence[torch.Tensor]]) -> bool:
        """Whether all elements of one launch's results are right."""


class CompiledOps(NamedTuple):
    """How problems of some ops are measured: a function with its operands on a device, and a check of its results.

    ``make`` raises CollectError where the operands do not fit in memory.
    """

    make: Callable[[Problem, str], tuple[Function, tuple[torch.Tensor, ...]]]
    check: Callable[[Problem, Sequence[torch.Tensor]], Check]


_KINDS = {
    **dict.fromkeys(ATTENTION, CompiledOps(attention.make_attention, attention.AttentionCheck)),
    **dict.fromkeys(GROUPED, CompiledOps(grouped.make_grouped, grouped.GroupedMmCheck)),
}

COMPILED = tuple(_KINDS)
"""The ops that are measured here."""


class _Prepared(NamedTuple):
    """A task with its operands, and the programs of its configs, which are compiled in the background."""

    task: Task
    operands: tuple[torch.Tensor, ...]
    programs: dict[Config, Program]


def measure(tasks: Sequence[Task], device: str, watch: Watch, search_space: str, stage: str) -> Iterator[Outcome]:
    """A Measurer of COMPILED at a stage, ``sweep`` or ``final``; tasks without configs get all candidates."""
    hardware = detect_hardware(device)
    bench = Bench()
    waiting: deque[_Prepared] = deque()
    for task in tasks:
        configs = task.configs or tuple(candidates(task.problem, hardware, search_space))
        try:
            waiting.append(_prepare(task._replace(configs=configs), device))
        except CollectError as error:
            torch.cuda.empty_cache()
            yield Outcome(task.problem, "skipped", reason=str(error))
        if len(waiting) > _COMPILING_PROBLEMS:
            yield _measure(waiting.popleft(), watch, bench, stage)
    while waiting:
        yield _measure(waiting.popleft(), watch, bench, stage)


def _prepare(task: Task, device: str) -> _Prepared:
    function, operands = _KINDS[task.problem.op].make(task.problem, device)
    shapes = [(tuple(each.shape), each.stride(), each.dtype) for each in operands]
    place = operands[0].device
    programs = {config: Program(partial(generate_code, function, shapes, place, config)) for config in task.remaining}
    for program in programs.values():
        program.compile()
    return _Prepared(task, operands, programs)


def generate_code(function: Function, shapes: Sequence[Any], device: torch.device, config: Config) -> str:
    """Inductor's code for a function of tensors with these shapes, strides and types; runs in any process."""
    tensors = [torch.empty_strided(shape, stride, dtype=dtype, device="meta") for shape, stride, dtype in shapes]
    with matmul_precision(function.problem.dtype):
        return generate(function.compute, tensors, device, config)


def _measure(prepared: _Prepared, watch: Watch, bench: Bench, stage: str) -> Outcome:
    problem = prepared.task.problem
    try:
        with matmul_precision(problem.dtype):
            timings = _timings(prepared, watch, bench)
    except (CollectError, RuntimeError) as error:  # such as too little memory
        torch.cuda.empty_cache()
        return Outcome(problem, "skipped", reason=str(error).splitlines()[0])
    return Outcome(problem, "measured", Record(problem, timings, stage))


def _timings(prepared: _Prepared, watch: Watch, bench: Bench) -> tuple[Timing, ...]:
    problem, operands = prepared.task.problem, prepared.operands
    check = _KINDS[problem.op].check(problem, operands)
    launches: dict[Config, Callable[[], Sequence[torch.Tensor]]] = {}
    failures: list[Timing] = []
    for config, program in prepared.programs.items():
        reason = program.load() or watch.failure(problem, config, partial(check.passes, program.run(operands)))
        if reason is None:
            launches[config] = program.run(operands)
        else:
            failures.append(Timing(config, None, reason))
    with watch(problem):
        times = medians(list(launches.values()), bench) if launches else []
    return (*(Timing.of(config, round(ns)) for config, ns in zip(launches, times, strict=True)), *failures)
