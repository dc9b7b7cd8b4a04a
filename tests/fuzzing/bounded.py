"""Numbers in float64 together with how far a computation in smaller types may be from them.

A Bounded goes through the same function that is compiled, by ``__torch_function__``. Errors of rounding are taken as
independent, and eight standard deviations of them as the limit; each element has a limit of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24, torch.float64: 2.0**-53}
"""The largest relative error of rounding to a type."""

SMALLEST = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-126, torch.float32: 2.0**-126, torch.float64: 0.0}
"""The largest absolute error of rounding to a type, near zero."""

_SUM = 2.0**-22  # relative error of one addition in a GEMM: tensor cores do not round to nearest

_TF32 = 2.0**-10
_DEVIATIONS = 8.0


class Precision(NamedTuple):
    """How GEMMs are computed: with inputs cut to TF32, or cast to a type by autocast."""

    tf32: bool = False
    autocast: torch.dtype | None = None


class Bounded:
    """``value`` is exact, ``error`` the limit of a result's distance from it, ``dtype`` the type that rounds it."""

    def __init__(self, value: torch.Tensor, error: torch.Tensor, dtype: torch.dtype, precision: Precision) -> None:
        self.value, self.error, self.dtype, self.precision = value, error, dtype, precision

    @classmethod
    def of(cls, tensor: torch.Tensor, precision: Precision) -> Bounded:
        """A tensor without any error so far."""
        return cls(tensor.double(), torch.zeros_like(tensor, dtype=torch.float64), tensor.dtype, precision)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Bounded:
        return _RULES[function](*args, **(kwargs or {}))

    def holds(self, result: torch.Tensor) -> bool:
        """Whether a result is within the limits everywhere; NaN is in none."""
        return bool(((result.double() - self.value).abs() <= self.error).all())

    def excess(self, result: torch.Tensor) -> float:
        """How many times the limit the worst element is away."""
        distance = (result.double() - self.value).abs()
        return float((distance / self.error.clamp(min=1e-300)).nan_to_num(nan=torch.inf).max())

    @property
    def shape(self) -> torch.Size:
        return self.value.shape

    def transpose(self, first: int, second: int) -> Bounded:
        return self._each(lambda tensor: tensor.transpose(first, second))

    def narrow(self, dim: int, start: int, length: int) -> Bounded:
        return self._each(lambda tensor: tensor.narrow(dim, start, length))

    def relu(self) -> Bounded:
        return self._with(self.value.relu(), self.error)

    def to(self, dtype: torch.dtype) -> Bounded:
        if dtype == self.dtype:
            return self
        if not self.error.any():
            return Bounded(self.value.to(dtype).double(), self.error, dtype, self.precision)
        return Bounded(self.value, self.error, dtype, self.precision)._rounded()

    def sum(self, dim: int) -> Bounded:
        spread = _DEVIATIONS * ROUNDING[self.dtype] * self.value.abs().sum(dim)
        return self._with(self.value.sum(dim), self.error.sum(dim) + spread)._rounded()

    def __add__(self, other: Bounded) -> Bounded:
        dtype = torch.promote_types(self.dtype, other.dtype)
        total = Bounded(self.value + other.value, self.error + other.error, dtype, self.precision)
        return total._rounded()

    def __mul__(self, factor: float) -> Bounded:
        return self._with(self.value * factor, self.error * abs(factor))._rounded()

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Bounded:
        return self._with(change(self.value), change(self.error))

    def _with(self, value: torch.Tensor, error: torch.Tensor) -> Bounded:
        return Bounded(value, error, self.dtype, self.precision)

    def _rounded(self) -> Bounded:
        size = self.value.abs() + self.error
        return self._with(self.value, self.error + ROUNDING[self.dtype] * size + SMALLEST[self.dtype])


def _gemm(a: Bounded, b: Bounded, out_dtype: torch.dtype | None = None) -> Bounded:
    precision = a.precision
    if precision.autocast is not None:
        a, b = a.to(precision.autocast), b.to(precision.autocast)
    value = a.value @ b.value
    squares = (a.error**2) @ (b.value**2) + (a.value**2 + a.error**2) @ (b.error**2)
    lost = a.shape[-1] ** 0.5 * _SUM * (a.value.abs() @ b.value.abs())
    error = _DEVIATIONS * (squares.sqrt() + lost)
    if precision.tf32 and a.dtype == torch.float32:
        error = error + _DEVIATIONS * _TF32 * ((a.value**2) @ (b.value**2)).sqrt() + 2 * _TF32 * value.abs()
    return Bounded(value, error, out_dtype or a.dtype, precision)._rounded()


def _of_integers(a: Bounded, b: Bounded) -> Bounded:
    """Nothing is rounded."""
    value = a.value @ b.value
    return Bounded(value, torch.zeros_like(value), torch.int32, a.precision)


def _biased(bias: Bounded, a: Bounded, b: Bounded, *, alpha: float = 1, beta: float = 1) -> Bounded:
    gemm = _gemm(a, b) * alpha
    if beta == 0:
        return gemm
    autocast = a.precision.autocast
    return gemm + (bias if autocast is None else bias.to(autocast)) * beta


def _linear(x: Bounded, weight: Bounded, bias: Bounded | None = None) -> Bounded:
    gemm = _gemm(x, weight.transpose(-1, -2))
    if bias is None:
        return gemm
    autocast = x.precision.autocast
    return gemm + (bias if autocast is None else bias.to(autocast))


def _gelu(x: Bounded) -> Bounded:
    slope = 1.13
    noise = 16 * ROUNDING[torch.float32] * (x.value.abs() + 1)
    return x._with(torch.nn.functional.gelu(x.value), slope * x.error + noise)._rounded()


_RULES: dict[Any, Callable[..., Bounded]] = {
    torch.mm: _gemm,
    torch._int_mm: _of_integers,
    torch.bmm: _gemm,
    torch.matmul: _gemm,
    torch.addmm: _biased,
    torch.baddbmm: _biased,
    torch.nn.functional.linear: _linear,
    torch.nn.functional.gelu: _gelu,
}


def bounded(function: Callable[..., Any], tensors: Sequence[torch.Tensor], precision: Precision) -> Bounded:
    """The function's result in float64, with its limits."""
    result: Bounded = function(*(Bounded.of(tensor, precision) for tensor in tensors))
    return result
