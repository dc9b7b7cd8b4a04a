"""Attention as tensors and as a function of them, for every variant.

One mask and one modification of scores stand for each class.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from diode_lut.collect.exact_attention import Exact
from diode_lut.collect.modifications import MASK_MODS, SCORE_MODS, Modification, captured_by, with_captured
from diode_lut.domain.errors import CollectError
from diode_lut.domain.problem import Problem
from diode_lut.domain.variants import Modifications
from diode_lut.inductor.problems import TORCH_DTYPES

_NO_MASK_BLOCK = 1 << 30
"""The block size that PyTorch gives attention without a mask."""


class CompiledAttention(NamedTuple):
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


def make_attention(problem: Problem, device: str) -> tuple[CompiledAttention, tuple[torch.Tensor, ...]]:
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
    return CompiledAttention(problem, shape), (*inputs, *captured.values(), *tensors)


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
