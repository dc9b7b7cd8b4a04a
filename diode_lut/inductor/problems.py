"""Inductor's inputs of a matrix product as a Problem."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

import torch
from sympy.core.numbers import Integer, One, Zero
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from diode_lut.inductor.snapshot import snapshot
from diode_lut.problem import ITEMSIZES, MAX_SIZE, OPS, Problem

log = logging.getLogger(__name__)

TORCH_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "tf32": torch.float32,
}
"""Our names of data types as PyTorch's."""

_DTYPES = {kind: name for name, kind in TORCH_DTYPES.items() if name != "tf32"}
_ROW_BYTES = 16
_PLAIN = frozenset({int, Integer, Zero, One})
"""The types of sizes and strides that are just numbers; the last two are Integers, too."""


def problem_of(inputs: Any, op: str) -> Problem | None:
    """The problem that ``inputs``, the KernelInputs of ``op``, are; None if no table can speak of it.

    Dynamic sizes count as their hints. None for mixed or unusual types, empty products, sizes that only the data
    will tell, matrices with no unit stride, and reduced precision that is neither TF32 nor off.
    """
    if op not in OPS or not isinstance(inputs, MMKernelInputs):
        return None
    dtype, numbers = _dtype(inputs), _numbers(inputs)
    if dtype is None or numbers is None:
        log.debug("%s with inputs of %s, or with sizes that only the data tells: not in any table", op, inputs.dtypes())
        return None
    shapes, strides = numbers
    (*batch, m, k), (*_, n) = shapes
    b = batch[0] if batch else 1
    sizes = b, m, n, k
    if min(sizes) < 1 or max(sizes) > MAX_SIZE:
        return None
    letters = [_letter(stride) for stride in strides]
    if None in letters:
        return None
    aligned = all(map(_aligned, inputs.mat1mat2(), strides, shapes, repeat(ITEMSIZES[dtype])))
    return Problem(op, dtype, f"{letters[0]}{letters[1]}", 16 if aligned else 2, b, m, n, k)


_Numbers = tuple[tuple[int, ...], ...]


def _numbers(inputs: MMKernelInputs) -> tuple[_Numbers, _Numbers] | None:
    """Shapes and strides of A and B, as hints where they are dynamic; None if only the data tells some input's."""
    shapes, strides = inputs.shapes_symbolic(), inputs.strides_symbolic()
    if _PLAIN.issuperset(map(type, chain(*shapes, *strides))):
        return tuple(tuple(map(int, shape)) for shape in shapes[-2:]), tuple(tuple(map(int, s)) for s in strides[-2:])
    if free_unbacked_symbols([*shapes, *strides]):
        return None
    return inputs.shapes_hinted()[-2:], inputs.strides_hinted()[-2:]


def _dtype(inputs: MMKernelInputs) -> str | None:
    """The table's name of the one type that all inputs and the output have."""
    kinds = {*inputs.dtypes(), inputs.out_dtype()}
    name = _DTYPES.get(kinds.pop()) if len(kinds) == 1 else None
    return snapshot().float32(inputs.device_type) if name == "float32" else name


def _letter(stride: Sequence[int]) -> str | None:
    """``n`` for a row-major matrix, ``t`` for a column-major one, None where no dimension has unit stride."""
    return "n" if stride[-1] == 1 else "t" if stride[-2] == 1 else None


def _aligned(node: Any, stride: Sequence[int], shape: Sequence[int], itemsize: int) -> bool:
    """Whether every row (column, where column-major) of ``node`` starts on a 16-byte boundary."""
    for step, size in zip(stride, shape, strict=True):
        if step * itemsize % _ROW_BYTES and step != 1 and size != 1:
            return False
    offset, graph = node.get_layout().offset, V.graph
    if offset != 0 and not graph.sizevars.statically_known_multiple_of(offset * itemsize, _ROW_BYTES):
        return False
    # Inductor looks at the addresses of a GPU's inputs only, and calls all others unaligned.
    return node.get_name() not in graph.unaligned_buffers or node.get_device().type == "cpu"
