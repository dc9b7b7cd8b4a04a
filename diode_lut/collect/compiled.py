"""Both stages of a sweep for ops whose configs are compiled for each problem: attention and grouped matmuls.

Inductor generates a program for each config, with the config forced, in the background.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from diode_lut.collect import attention, grouped
from diode_lut.collect.gemm import matmul_precision
from diode_lut.collect.rounds import Bench, medians
from diode_lut.collect.search_space import candidates
from diode_lut.collect.tasks import Outcome, Task, Watch
from diode_lut.dataset import Record, Timing
from diode_lut.domain.errors import CollectError
from diode_lut.domain.hardware import detect_hardware
from diode_lut.domain.ops import ATTENTION, GROUPED
from diode_lut.domain.problem import Problem
from diode_lut.inductor.program import Program, generate
from diode_lut.kernels.config import Config

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
