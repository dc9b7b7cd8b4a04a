"""What becomes of generated grouped matmuls that are compiled and run."""

from math import prod
from pathlib import Path
from random import Random
from typing import Any

import torch

from tests.fuzzing.grouped import FOLLOWING, GroupedCase
from tests.fuzzing.op_check import executed_op
from tests.fuzzing.operands import elements, filled
from tests.fuzzing.outcome import Outcome
from tests.fuzzing.runs import Run

MOST_ELEMENTS = 2**25  # maximum elements of a tensor that is really made
SCALE = 1 / 4  # standard deviation of the operands' values

GRADIENTS = 0.25
"""The share of cases with gradients, where Inductor does not try its own kernels for them.

With tensor descriptors for a result's gradient whose rows are not aligned, these fault in torch 2.11.
"""


def executed_grouped(case: GroupedCase, device: str, directory: Path) -> Outcome:
    """The outcome of compiling it and running it, a part of the cases with gradients of both operands."""
    if max(map(elements, case.inputs)) > MOST_ELEMENTS:
        return Outcome("void", "too large")
    random = Random(f"grouped run {case.seed}/{case.number}")
    backward = random.random() < GRADIENTS and case.mode == "default"
    a, b, ends = case.inputs
    limits = torch.tensor(_ends(random, a.shape[0], prod(ends.shape)), dtype=torch.int32)

    def function(*tensors: Any) -> list[Any]:
        return [case.compute(*tensors)]

    def run() -> Run:
        tensors = [filled(a, device, SCALE), filled(b, device, SCALE), limits.to(device)]
        for dimension in a.dynamic:
            torch._dynamo.maybe_mark_dynamic(tensors[0], dimension)
        return Run.of(tensors, function, lambda *each: [_exact(case, *each)], backward=backward)

    return executed_op(case, device, directory, function, run, backward=backward)


def _ends(random: Random, rows: int, groups: int) -> list[int]:
    """Where each group of rows ends: anywhere, so that many are empty if there are few rows."""
    return [*sorted(random.randint(0, rows) for _ in range(groups - 1)), rows]


def _exact(case: GroupedCase, a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The result by one matmul for each group."""
    starts = [0, *ends.tolist()]
    rows = a * 2 if case.before else a
    parts = [rows[start:end] @ each for start, end, each in zip(starts, starts[1:], b, strict=False)]
    return FOLLOWING[case.following](torch.cat(parts))
