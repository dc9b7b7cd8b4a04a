"""Attention as tensors and as a function of them, for every variant, and its measurement at both stages of a sweep.

One mask and one modification of scores stand for each class. Each config is compiled for each problem: Inductor
generates a program for it, with the config forced, in the background.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from diode_lut.collect.exact_attention import Check, Exact
from diode_lut.collect.gemm import matmul_precision
from diode_lut.collect.modifications import MASK_MODS, SCORE_MODS, Modification, captured_by, with_captured
from diode_lut.collect.rounds import Bench, medians
from diode_lut.collect.search_space import candidates
from diode_lut.collect.tasks import Outcome, Task
from diode_lut.collect.watch import Watch
from diode_lut.dataset import Record, Timing
from diode_lut.domain.errors import CollectError
from diode_lut.domain.hardware import detect_hardware
from diode_lut.domain.problem import Problem
from diode_lut.domain.variants import Modifications
from diode_lut.inductor.names import failure_reason
from diode_lut.inductor.problems import TORCH_DTYPES
from diode_lut.inductor.program import Program, generate
from diode_lut.kernels.config import Config

_NO_MASK_BLOCK = 1 << 30
"""The block size that PyTorch gives attention without a mask."""

_COMPILING_PROBLEMS = 2
"""Problems that are compiled in the background while one is timed; each has dozens of configs."""


class Attention(NamedTuple):
    """What is compiled: ``parts`` is the block mask as the operator takes it, with ``torch.Tensor`` for each tensor.

    The operands are queries, keys and values, for a backward pass also the result, the logarithms of its sums
    and its gradient, then what masks and scores capture, then the tensors of the block mask.
    """

    problem: Problem
    parts: tuple[Any, ...]

    def compute(self, *operands: torch.Tensor) -> Any:
        """The result, or the gradients of queries, keys and values."""
        modifications = Modifications.of(self.problem.variant)
        mask, score = MASK_MODS[modifications.mask], SCORE_MODS[modifications.score]
        captured = list(operands[self._inputs :])
        of_mask = (captured.pop(0),) if modifications.mask == "captured" else ()
        of_score = (captured.pop(0),) if modifications.score == "captured" else ()
        parts = iter(captured)
        block_mask = (*(next(parts) if part is torch.Tensor else part for part in self.parts), mask)
        rest = (block_mask, 1 / math.sqrt(self.problem.k), _options(self.problem), of_score, of_mask)
        if not self._is_backward:
            return torch.ops.higher_order.flex_attention(*operands[:3], score, *rest)[0]
        forward, joint = _graphs(score, operands[0], of_score)
        gradients = torch.ops.higher_order.flex_attention_backward(*operands[:6], None, forward, joint, *rest)
        return tuple(gradients[:3])

    @property
    def _is_backward(self) -> bool:
        return self.problem.op == "flex_attention_backward"

    @property
    def _inputs(self) -> int:
        return 6 if self._is_backward else 3


def _options(problem: Problem) -> dict[str, Any]:
    """The kernel options that PyTorch has for attention by default, and for the op where it would take another."""
    off = ("PRESCALE_QK", "ROWS_GUARANTEED_SAFE", "BLOCKS_ARE_CONTIGUOUS", "OUTPUT_LOGSUMEXP", "OUTPUT_MAX")
    forced = {"FORCE_USE_FLEX_ATTENTION": problem.op != "flex_decoding"}
    return {**dict.fromkeys(off, False), "WRITE_DQ": True, **forced}


def _graphs(score: Modification, query: torch.Tensor, captured: tuple[torch.Tensor, ...]) -> tuple[Any, Any]:
    """The modification of scores, and its gradient, as graphs; which device they are for is not in them."""
    from torch._higher_order_ops.flex_attention import create_fw_bw_graph

    scores = torch.empty((), dtype=query.dtype, requires_grad=True)
    b, h, m, n = (torch.empty((), dtype=torch.int32) for _ in range(4))
    buffers = tuple(torch.empty(each.shape, dtype=each.dtype) for each in captured)
    return create_fw_bw_graph(score, (scores, b, h, m, n), buffers)


def make_attention(problem: Problem, device: str) -> tuple[Attention, tuple[torch.Tensor, ...]]:
    """The problem's function, and normally distributed operands; CollectError if they do not fit in memory."""
    try:
        captured = captured_by(problem, device)
        block_mask = _block_mask(problem, captured, device)
        *parts, _ = block_mask.as_tuple()
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        shape = tuple(torch.Tensor if isinstance(part, torch.Tensor) else part for part in parts)
        inputs = _inputs(problem, captured, device)
    except RuntimeError as error:
        raise CollectError(f"no operands of this size: {str(error).splitlines()[0]}") from error
    return Attention(problem, shape), (*inputs, *captured.values(), *tensors)


def _block_mask(problem: Problem, captured: dict[str, torch.Tensor], device: str) -> BlockMask:
    modifications = Modifications.of(problem.variant)
    if modifications.mask == "full":
        ones = torch.ones(1, 1, 1, dtype=torch.int32, device=device)
        lengths, size = (problem.m, problem.n), _NO_MASK_BLOCK
        return BlockMask.from_kv_blocks(ones, torch.zeros_like(ones)[None], BLOCK_SIZE=size, seq_lengths=lengths)
    mask = with_captured(MASK_MODS[modifications.mask], captured.get("mask"))
    return create_block_mask(mask, None, None, problem.m, problem.n, device=device)


def _inputs(problem: Problem, captured: dict[str, torch.Tensor], device: str) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values; for a backward pass also the result, the logarithms of its sums, and its gradient."""
    shared = problem.h // problem.g
    shapes = (problem.h, problem.m, problem.k), (shared, problem.n, problem.k), (shared, problem.n, problem.v)
    dtype = TORCH_DTYPES[problem.dtype]
    query, key, value = (torch.randn(problem.b, *shape, dtype=dtype, device=device) for shape in shapes)
    if problem.op != "flex_attention_backward":
        return query, key, value
    result = query.new_empty(*query.shape[:-1], problem.v)
    sums = torch.empty(query.shape[:-1], dtype=torch.float32, device=device)
    for batch in range(problem.b):
        for head in range(shared):
            exact = Exact.of(problem, (query, key, value), captured, batch, head)
            of_head = slice(head * problem.g, (head + 1) * problem.g)
            result[batch, of_head], sums[batch, of_head] = exact.result.to(dtype), exact.sums.float()
    return query, key, value, result, sums, torch.randn_like(result)


class _Prepared(NamedTuple):
    """A task with its operands, and the programs of its configs, which are compiled in the background."""

    task: Task
    operands: tuple[torch.Tensor, ...]
    programs: dict[Config, Program]


def measure(tasks: Sequence[Task], device: str, watch: Watch, search_space: str, stage: str) -> Iterator[Outcome]:
    """A Measurer of attention at a stage, ``sweep`` or ``final``; tasks without configs get all candidates."""
    hardware = detect_hardware(device)
    bench = Bench()
    waiting: deque[_Prepared] = deque()
    with matmul_precision(tasks[0].problem.dtype):
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
    function, operands = make_attention(task.problem, device)
    shapes = [(tuple(each.shape), each.stride(), each.dtype) for each in operands]
    failed = {timing.config for timing in task.failed}
    place = operands[0].device
    programs = {
        config: Program(partial(generate_attention, function, shapes, place, config))
        for config in task.configs
        if config not in failed
    }
    for program in programs.values():
        program.compile()
    return _Prepared(task, operands, programs)


def generate_attention(function: Attention, shapes: Sequence[Any], device: torch.device, config: Config) -> str:
    """Inductor's code for an attention of tensors with these shapes, strides and types; runs in any process."""
    tensors = [torch.empty_strided(shape, stride, dtype=dtype, device="meta") for shape, stride, dtype in shapes]
    with matmul_precision(function.problem.dtype):
        return generate(function.compute, tensors, device, config)


def _measure(prepared: _Prepared, watch: Watch, bench: Bench, stage: str) -> Outcome:
    problem = prepared.task.problem
    try:
        timings = _timings(prepared, watch, bench)
    except (CollectError, RuntimeError) as error:  # such as too little memory
        torch.cuda.empty_cache()
        return Outcome(problem, "skipped", reason=str(error).splitlines()[0])
    return Outcome(problem, "measured", Record(problem, timings, stage))


def _timings(prepared: _Prepared, watch: Watch, bench: Bench) -> tuple[Timing, ...]:
    problem, operands = prepared.task.problem, prepared.operands
    check = Check(problem, operands)
    launches: dict[Config, Callable[[], Sequence[torch.Tensor]]] = {}
    failures: list[Timing] = []
    for config, program in prepared.programs.items():
        reason = program.load() or _failure(problem, config, program.run(operands), check, watch)
        if reason is None:
            launches[config] = program.run(operands)
        else:
            failures.append(Timing(config, None, reason))
    with watch(problem):
        times = medians(list(launches.values()), bench) if launches else []
    return (*(Timing.of(config, round(ns)) for config, ns in zip(launches, times, strict=True)), *failures)


def _failure(
    problem: Problem, config: Config, launch: Callable[[], Sequence[torch.Tensor]], check: Check, watch: Watch
) -> str | None:
    try:
        with watch(problem, config):
            right = check.passes(launch())
    except RuntimeError as error:
        return failure_reason(error, "launch")
    return None if right else "wrong_result"
