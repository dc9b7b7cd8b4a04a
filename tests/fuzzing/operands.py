"""Operands of generated GEMMs: how their values lie in memory, and what is done to them before the GEMM."""

from math import prod
from random import Random
from typing import Any, NamedTuple

import torch

from tests.fake_cuda import Input

Sizes = dict[str, int]  # of the dimensions b, m, n and k; ``1`` stands for a dimension of size 1

STORAGES = ("dense", "column", "padded", "padded column", "offset", "gaps", "repeated", "batch inner")
"""How a tensor lies in its memory: packed rows or columns, with padding, from an offset on, with a step of 2, with rows
that are all the same one, or with the batch between rows and columns."""

BEFORE = ("nothing", "transposed", "sliced", "relu", "relu of transposed", "cast")  # what the graph does first
CUT = 16  # columns that slicing leaves away, some before what it keeps, so that alignment varies
TAIL = 64  # elements of a tensor's memory behind its last one, which are NaN, as are all between its elements


class Operand(NamedTuple):
    """One tensor that a GEMM takes: its dimensions as letters, its memory, what happens to it, and by how much."""

    dims: str
    storage: str = "dense"
    before: str = "nothing"
    amount: int = 0

    def input(self, sizes: Sizes, dtype: torch.dtype, dynamic: str) -> Input:
        """What the compiled function is given for it; the dimensions named in ``dynamic`` may change."""
        dims = self._dims()
        shape = [sizes[dim] for dim in dims]
        if self.before == "sliced":
            shape[-1] += CUT
        stride, offset = _placed(shape, self.storage, self.amount)
        changing = [index for index, dim in enumerate(dims) if dim in dynamic]
        return Input(tuple(shape), self._given(dtype), stride, offset, changing)

    def given_dims(self) -> str:
        """The dimensions of what the function is given; a space for one that is made smaller before it is used."""
        dims = self._dims()
        return dims[:-1] + " " if self.before == "sliced" else dims

    def _dims(self) -> str:
        swapped = self.before in ("transposed", "relu of transposed")
        return self.dims[:-2] + self.dims[:-3:-1] if swapped else self.dims

    def prepared(self, tensor: Any, dtype: torch.dtype) -> Any:
        """The operand made of what the function is given."""
        if self.before in ("transposed", "relu of transposed"):
            tensor = tensor.transpose(-1, -2)
        if self.before in ("relu", "relu of transposed"):
            tensor = tensor.relu()
        if self.before == "sliced":
            tensor = tensor.narrow(-1, self.amount, tensor.shape[-1] - CUT)
        return tensor.to(dtype) if self.before == "cast" else tensor

    def _given(self, dtype: torch.dtype) -> torch.dtype:
        if self.before != "cast":
            return dtype
        return torch.bfloat16 if dtype == torch.float32 else torch.float32


def draw_operand(random: Random, dims: str) -> Operand:
    """An operand with these dimensions; plain ones are the most likely."""
    storages = STORAGES if len(dims) > 2 else STORAGES[:-1]
    plain = len(dims) < 2 or dims == "11"
    storage = "dense" if plain or random.random() < 0.5 else random.choice(storages)
    before = "nothing" if plain or random.random() < 0.6 else random.choice(BEFORE)
    return Operand(dims, storage, before, random.choice([1, 4, 8, 16]))


def _placed(shape: list[int], storage: str, amount: int) -> tuple[tuple[int, ...], int]:
    """The strides of a tensor and the offset of its first element."""
    if len(shape) < 2:
        return (1,) * len(shape), amount if storage == "offset" else 0
    rows, columns = shape[-2:]
    padding = amount if "padded" in storage else 0
    matrix = [1, rows + padding] if "column" in storage else [columns + padding, 1]
    if storage == "gaps":
        matrix = [2 * columns, 2]
    if storage == "repeated":
        matrix = [0, 1]
    batch = [max(rows * matrix[0], columns * matrix[1], 1)] if len(shape) == 3 else []
    if storage == "batch inner":
        batch, matrix = [columns], [shape[0] * columns, 1]
    return (*batch, *matrix), amount if storage == "offset" else 0


def filled(spec: Input, device: str, scale: float) -> torch.Tensor:
    """A tensor with random values, in memory that is NaN, or random, wherever the tensor has no element."""
    assert spec.stride is not None
    empty = 0 in spec.shape
    extent = 0 if empty else sum((size - 1) * step for size, step in zip(spec.shape, spec.stride, strict=True))
    length = spec.offset + 1 + extent + TAIL
    if spec.dtype == torch.int8:
        return torch.randint(-128, 128, (length,), dtype=spec.dtype, device=device).as_strided(
            spec.shape, spec.stride, spec.offset
        )
    memory = torch.full((length,), float("nan"), dtype=spec.dtype, device=device)
    distinct = [min(size, 1) if step == 0 else size for size, step in zip(spec.shape, spec.stride, strict=True)]
    values = torch.randn(distinct, device=device).mul_(scale).to(spec.dtype)
    memory.as_strided(distinct, spec.stride, spec.offset).copy_(values)
    return memory.as_strided(spec.shape, spec.stride, spec.offset)


def elements(spec: Input) -> int:
    """How many elements a tensor has."""
    return prod(spec.shape)
