"""The tensors that a matmul takes, and PyTorch's function of them, to be measured and to make kernels for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch._inductor.kernel_inputs import MMKernelInputs

from diode_lut.domain.ops import BATCHED, INTEGER, RESULT_OF_INTEGERS, SCALED, letters
from diode_lut.domain.problem import Problem
from diode_lut.domain.variants import Scaling
from diode_lut.inductor.problems import TORCH_DTYPES, operand_dtypes
from diode_lut.inductor.specialization import Specialization


class Part(NamedTuple):
    """One tensor: A or B, where ``letter`` is that of its layout, or else a bias or a scale, which has none."""

    role: str
    dtype: torch.dtype
    size: tuple[Any, ...]
    letter: str = ""

    @property
    def stride(self) -> tuple[Any, ...]:
        """Steps between its elements if it is packed."""
        *batch, rows, columns = (1, *self.size) if len(self.size) == 1 else self.size
        steps = (1, rows) if self.letter == "t" else (columns, 1)
        return (*(rows * columns for _ in batch), *steps)[-len(self.size) :]


Kind = Problem | Specialization
"""What decides, besides sizes, which tensors there are."""


def tensors_of(kind: Kind, b: Any, m: Any, n: Any, k: Any) -> list[Part]:
    """The tensors in the function's order: the bias, if there is one, A and B; of scaled_mm the rest is behind them."""
    batch = (b,) if kind.op in BATCHED else ()
    (letter_a, letter_b), (type_a, type_b) = letters(kind.layout), operand_dtypes(kind.dtype)
    operands = [Part("a", type_a, (*batch, m, k), letter_a), Part("b", type_b, (*batch, k, n), letter_b)]
    if kind.op in SCALED:
        scaling = Scaling.of(kind.variant)
        rows, columns = (m, n) if scaling.per == "row" else (1, 1)
        scales = [Part("scale", torch.float32, size) for size in ((rows, 1), (1, columns))]
        return [*operands, *scales, *([Part("bias", TORCH_DTYPES[scaling.result], (n,))] if scaling.bias else [])]
    bias = {"addmm": (n,), "baddbmm": (b, m, n)}.get(kind.op)
    return operands if bias is None else [Part("bias", type_a, bias), *operands]


def inputs_of(kind: Kind, nodes: list[Any]) -> MMKernelInputs:
    """Inductor's inputs for nodes that are like ``tensors_of``."""
    if kind.op in SCALED:
        result = TORCH_DTYPES[Scaling.of(kind.variant).result]
        return MMKernelInputs(nodes, mat1_idx=0, mat2_idx=1, out_dtype=result)
    if kind.op in INTEGER:
        return MMKernelInputs(nodes, out_dtype=TORCH_DTYPES[RESULT_OF_INTEGERS])
    return MMKernelInputs(nodes, scalars={"alpha": 1, "beta": 1} if len(nodes) == 3 else None)


def function_of(problem: Problem) -> Callable[..., torch.Tensor]:
    """The problem as a function of ``tensors_of``, with an optional ``out``."""
    if problem.op in INTEGER:
        return torch._int_mm
    if problem.op not in SCALED:
        return getattr(torch, problem.op)  # type: ignore[no-any-return]
    scaling = Scaling.of(problem.variant)
    return partial(torch._scaled_mm, out_dtype=TORCH_DTYPES[scaling.result], use_fast_accum=scaling.fast)
