"""Attention to measure: masks and scores, the function and its operands, and the check of results against float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch._higher_order_ops.flex_attention import create_fw_bw_graph
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from diode_lut.hook.problems import TORCH_DTYPES
from diode_lut.measure.gemm import enough_memory
from diode_lut.problem import Modifications, Problem

WINDOW = 1024  # number of keys seen by a query of a sliding window, itself included
_DOCUMENTS = 8  # number of documents in a sequence, all equally long

_SOFT_CAP = 20.0

Modification = Callable[..., Any]

# PyTorch passes all indices to each.
# ruff: noqa: ARG005

MASK_MODS: dict[str, Modification] = {
    "full": lambda b, h, m, n: b.new_ones(size=(), dtype=torch.bool),
    "causal": lambda b, h, m, n: m >= n,
    "computed": lambda b, h, m, n: (m >= n) & (m - n < WINDOW),
    "captured": lambda b, h, m, n, captured: captured[m] == captured[n],
}
"""The function of each mask, for as many queries as keys."""

SCORE_MODS: dict[str, Modification] = {
    "plain": lambda score, b, h, m, n: score,
    "computed": lambda score, b, h, m, n: torch.tanh(score / _SOFT_CAP) * _SOFT_CAP,
    "captured": lambda score, b, h, m, n, captured: score + captured[h],
}


def with_captured(modification: Modification, captured: torch.Tensor | None) -> Modification:
    """Return the modification as a function of the indices. It reads the tensor, if there is one."""
    return modification if captured is None else partial(modification, captured=captured)


_TOLERANCE = {"float16": 0.01, "bfloat16": 0.06, "tf32": 0.01, "float32": 1e-4}
"""By dtype: largest error of an element, over the largest element or 1, for normally distributed tensors."""

_CHUNK = 1024  # number of queries whose exact result is computed at a time, which bounds the memory


class Exact(NamedTuple):
    """The result of a head's queries and the binary logarithms of its sums, in float64, perhaps with gradients."""

    result: torch.Tensor
    sums: torch.Tensor
    gradients: tuple[torch.Tensor, ...] = ()

    @classmethod
    def of(
        cls,
        problem: Problem,
        inputs: Sequence[torch.Tensor],
        captured: dict[str, torch.Tensor],
        batch: int,
        head: int,
        gradient: torch.Tensor | None = None,
    ) -> Exact:
        """Compute the results of a head of keys and values of a batch, in chunks of queries."""
        of_head = slice(head * problem.g, (head + 1) * problem.g)
        queries = inputs[0][batch, of_head].double()
        key, value = (each[batch, head].double() for each in inputs[1:3])
        leaves = [each.requires_grad_(gradient is not None) for each in (queries, key, value)]
        results, sums = [], []
        for start in range(0, problem.m, _CHUNK):
            rows = slice(start, start + _CHUNK)
            # The scores of some queries, modified and masked
            modifications = Modifications.of(problem.variant)
            m = torch.tensor(range(problem.m)[rows], device=key.device)[:, None]
            n = torch.arange(problem.n, device=key.device)[None]
            heads = torch.arange(head * problem.g, (head + 1) * problem.g, device=key.device)[:, None, None]
            scores = queries[:, rows] @ key.T / math.sqrt(problem.k)
            modify = with_captured(SCORE_MODS[modifications.score], captured.get("score"))
            mask = with_captured(MASK_MODS[modifications.mask], captured.get("mask"))
            modified: torch.Tensor = modify(scores, m * 0, heads, m, n)
            scores = modified.masked_fill(~mask(m * 0, heads, m, n), -math.inf)
            total = torch.logsumexp(scores, -1)
            part = torch.exp(scores - torch.where(total.isinf(), 0.0, total)[..., None]) @ value
            if gradient is not None:
                part.backward(gradient[batch, of_head, rows].double())  # type: ignore[no-untyped-call]
            results.append(part.detach())
            sums.append(total.detach() / math.log(2))
        gradients = tuple(each.grad for each in leaves if each.grad is not None)
        return cls(torch.cat(results, 1), torch.cat(sums, 1), gradients)


class AttentionCheck:
    """Compares results with float64, for the first and the last head of keys and values."""

    def __init__(self, problem: Problem, operands: Sequence[torch.Tensor]) -> None:
        names = [name for name in ("mask", "score") if getattr(Modifications.of(problem.variant), name) == "captured"]
        backward = problem.op == "flex_attention_backward"
        captured = dict(zip(names, operands[6 if backward else 3 :], strict=False))
        self._tolerance = _TOLERANCE[problem.dtype]
        self._expected: list[tuple[int, tuple[Any, ...], torch.Tensor]] = []
        for batch, head in {(0, 0), (problem.b - 1, problem.h // problem.g - 1)}:
            of_head = slice(head * problem.g, (head + 1) * problem.g)
            exact = Exact.of(problem, operands, captured, batch, head, operands[5] if backward else None)
            found = exact.gradients if backward else (exact.result,)
            places: tuple[Any, ...] = (of_head, head, head)
            for number, (place, tensor) in enumerate(zip(places, found, strict=False)):
                self._expected.append((number, (batch, place), tensor))

    def passes(self, launch: Callable[[], Sequence[torch.Tensor]]) -> bool:
        """Return whether all elements of a launch's results are right. NaN never is."""
        results = launch()
        for number, place, wanted in self._expected:
            limit = self._tolerance * max(1.0, float(wanted.abs().max()))
            if not bool((results[number][place].double() - wanted).abs().max() <= limit):
                return False
        return True


_NO_MASK_BLOCK = 1 << 30  # PyTorch's block size for attention without a mask


def attention(problem: Problem, parts: Sequence[Any], *operands: torch.Tensor) -> Any:
    """Return the result, or the gradients of queries, keys and values.

    ``parts`` is the block mask as in the operator, with ``torch.Tensor`` for each tensor. The operands are queries,
    keys and values, for a backward pass also the result, the logarithms of its sums and its gradient, then the captured
    tensors of masks and scores, then the tensors of the block mask.
    """
    modifications = Modifications.of(problem.variant)
    mask, score = MASK_MODS[modifications.mask], SCORE_MODS[modifications.score]
    backward = problem.op == "flex_attention_backward"
    captured = list(operands[6 if backward else 3 :])
    of_mask = (captured.pop(0),) if modifications.mask == "captured" else ()
    of_score = (captured.pop(0),) if modifications.score == "captured" else ()
    tensors = iter(captured)
    block_mask = (*(next(tensors) if part is torch.Tensor else part for part in parts), mask)
    # PyTorch's default kernel options, and the op for which it would take another.
    off = ("PRESCALE_QK", "ROWS_GUARANTEED_SAFE", "BLOCKS_ARE_CONTIGUOUS", "OUTPUT_LOGSUMEXP", "OUTPUT_MAX")
    forced = problem.op != "flex_decoding"
    options = {**dict.fromkeys(off, False), "WRITE_DQ": True, "FORCE_USE_FLEX_ATTENTION": forced}
    rest = (block_mask, 1 / math.sqrt(problem.k), options, of_score, of_mask)
    if not backward:
        return torch.ops.higher_order.flex_attention(*operands[:3], score, *rest)[0]
    # The modification of scores and its gradient, as graphs, which do not depend on the device.
    scores = torch.empty((), dtype=operands[0].dtype, requires_grad=True)
    b, h, m, n = (torch.empty((), dtype=torch.int32) for _ in range(4))
    buffers = tuple(torch.empty(each.shape, dtype=each.dtype) for each in of_score)
    forward, joint = create_fw_bw_graph(score, (scores, b, h, m, n), buffers)
    gradients = torch.ops.higher_order.flex_attention_backward(*operands[:6], None, forward, joint, *rest)
    return tuple(gradients[:3])


@enough_memory()
def make_attention(problem: Problem, device: str) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """Return the problem's function, which can be pickled, and operands. CollectError if they do not fit in memory."""
    modifications, captured = Modifications.of(problem.variant), {}
    if modifications.mask == "captured":
        length = max(problem.m, problem.n)
        documents = torch.arange(length, dtype=torch.int32, device=device) * min(_DOCUMENTS, length) // length
        captured["mask"] = documents.to(torch.int32)
    if modifications.score == "captured":
        captured["score"] = torch.randn(problem.h, device=device)
    if modifications.mask == "full":
        ones = torch.ones(1, 1, 1, dtype=torch.int32, device=device)
        lengths, size = (problem.m, problem.n), _NO_MASK_BLOCK
        zeros = torch.zeros_like(ones)[None]
        block_mask = BlockMask.from_kv_blocks(ones, zeros, BLOCK_SIZE=size, seq_lengths=lengths)
    else:
        mask = with_captured(MASK_MODS[modifications.mask], captured.get("mask"))
        block_mask = create_block_mask(mask, None, None, problem.m, problem.n, device=device)
    *parts, _ = block_mask.as_tuple()
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    shape = tuple(torch.Tensor if isinstance(part, torch.Tensor) else part for part in parts)
    inputs = _inputs(problem, captured, device)
    return partial(attention, problem, shape), (*inputs, *captured.values(), *tensors)


def _inputs(problem: Problem, captured: dict[str, torch.Tensor], device: str) -> tuple[torch.Tensor, ...]:
    """Return queries, keys and values, and for a backward pass the result, the logarithms of its sums, its gradient."""
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
