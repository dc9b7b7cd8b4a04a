"""Attention in float64, and comparisons with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from diode_lut.collect.modifications import MASK_MODS, SCORE_MODS, with_captured
from diode_lut.domain.problem import Problem
from diode_lut.domain.variants import Modifications

_TOLERANCE = {"float16": 0.01, "bfloat16": 0.06, "tf32": 0.01, "float32": 1e-4}
"""By dtype: largest error of an element, over the largest element or 1, for normally distributed tensors."""

_CHUNK = 1024
"""Queries that the exact result is computed for at a time, which bounds the memory that takes."""


class Exact(NamedTuple):
    """The result of the queries that share one head of keys and values, and the binary logarithms of its sums.

    Gradients of queries, keys and values, too, where the result's is given. Everything is float64.
    """

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
        """Those of one head of keys and values of a batch, a part of the queries at a time."""
        of_head = slice(head * problem.g, (head + 1) * problem.g)
        queries = inputs[0][batch, of_head].double()
        key, value = (each[batch, head].double() for each in inputs[1:3])
        leaves = [each.requires_grad_(gradient is not None) for each in (queries, key, value)]
        results, sums = [], []
        for start in range(0, problem.m, _CHUNK):
            rows = slice(start, start + _CHUNK)
            scores = _scores(problem, queries[:, rows], key, captured, range(problem.m)[rows], head)
            total = torch.logsumexp(scores, -1)
            part = torch.exp(scores - torch.where(total.isinf(), 0.0, total)[..., None]) @ value
            if gradient is not None:
                part.backward(gradient[batch, of_head, rows].double())  # type: ignore[no-untyped-call]
            results.append(part.detach())
            sums.append(total.detach() / math.log(2))
        gradients = tuple(each.grad for each in leaves if each.grad is not None)
        return cls(torch.cat(results, 1), torch.cat(sums, 1), gradients)


def _scores(
    problem: Problem,
    queries: torch.Tensor,
    key: torch.Tensor,
    captured: dict[str, torch.Tensor],
    rows: range,
    head: int,
) -> torch.Tensor:
    """The scores of some queries, modified and masked."""
    modifications = Modifications.of(problem.variant)
    m = torch.tensor(rows, device=key.device)[:, None]
    n = torch.arange(problem.n, device=key.device)[None]
    heads = torch.arange(head * problem.g, (head + 1) * problem.g, device=key.device)[:, None, None]
    scores = queries @ key.T / math.sqrt(problem.k)
    modify = with_captured(SCORE_MODS[modifications.score], captured.get("score"))
    mask = with_captured(MASK_MODS[modifications.mask], captured.get("mask"))
    modified: torch.Tensor = modify(scores, m * 0, heads, m, n)
    return modified.masked_fill(~mask(m * 0, heads, m, n), -math.inf)


class AttentionCheck:
    """Compares a program's results with those of float64, for the first and the last head of keys and values."""

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
        """Whether all elements of one launch's results are right; one that is NaN never is."""
        results = launch()
        return all(self._is_near(results[number][place], wanted) for number, place, wanted in self._expected)

    def _is_near(self, result: torch.Tensor, wanted: torch.Tensor) -> bool:
        limit = self._tolerance * max(1.0, float(wanted.abs().max()))
        return bool((result.double() - wanted).abs().max() <= limit)
