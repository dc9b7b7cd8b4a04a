"""What a compiled function is called with, and what it must give: the results of float64, as eager's nearly are."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from tests.fuzzing.bounded import ROUNDING
from tests.fuzzing.outcome import GuaranteeError

EAGER_ERRORS = 4  # largest allowed error against float64, over the error of eager
ROUNDINGS = 8  # roundings of the largest value that are allowed as well, because eager's error may be small by luck

SHAKEN = 3
"""How often operands are rounded at random, and the results of that compared in float64.

Where large terms cancel, their roundings are more than those of the result, and eager's error may be small by luck.
"""

EXACT_ROUNDING = 2.0**-51
"""How far operands are rounded for the noise of float64 itself, which is that of a smaller type but for its size.

Where a result is zero because all of its terms cancel, as a gradient of what a softmax of equal numbers ignores,
rounding the operands changes nothing, but every intermediate result that is rounded does.
"""

TF32 = 2.0**-10  # twice rounding to TF32, which eager need not use where it is allowed, as for a GEMM with one row


def results_of(function: Callable[..., Any], tensors: Sequence[torch.Tensor], *, backward: bool) -> list[torch.Tensor]:
    """What the function returns, and all gradients if there are to be any; a tangent is the result itself."""
    if not backward:
        with torch.no_grad():
            return list(function(*tensors))
    leaves = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in tensors]
    outputs = [each for each in function(*leaves) if each.requires_grad]
    inputs = [each for each in leaves if each.requires_grad]
    gradients = torch.autograd.grad(outputs, inputs, [each.detach().tanh() for each in outputs], allow_unused=True)
    return [each.detach() for each in (*outputs, *gradients) if each is not None]


class Run(NamedTuple):
    """What a compiled function is called with, the memory of that, and what it must give."""

    tensors: list[torch.Tensor]
    before: list[torch.Tensor]
    exact: list[torch.Tensor]
    eager: list[torch.Tensor]
    limits: list[float]

    @classmethod
    def of(
        cls,
        tensors: list[torch.Tensor],
        function: Callable[..., Any],
        in_float64: Callable[..., Any],
        *,
        backward: bool,
        tf32: bool = False,
        errors: float = EAGER_ERRORS,
    ) -> Run:
        """One of a function that returns several results, which ``in_float64`` computes from tensors on the CPU.

        ``errors`` is the largest allowed error, over that of eager.
        """
        before = [_memory(tensor).clone() for tensor in tensors]
        exactly = partial(results_of, in_float64, backward=backward)
        exact = exactly([_exactly(tensor) for tensor in tensors])
        eager = [each.cpu() for each in results_of(function, tensors, backward=backward)]
        shaken, noisy = [], []
        for seed in range(SHAKEN):
            shaken.append(exactly([_shaken(each, _rounding(each.dtype, tf32), seed) for each in tensors]))
            noisy.append(exactly([_shaken(each, EXACT_ROUNDING, seed) for each in tensors]))
        limits = [
            _limit(*results, noise=_distance(results[0], *noises), tf32=tf32, errors=errors)
            for *results, noises in zip(exact, eager, *shaken, zip(*noisy, strict=True), strict=True)
        ]
        return cls(tensors, before, exact, eager, limits)

    def distances(self, results: Sequence[torch.Tensor]) -> list[float]:
        """How far each result is from that of float64."""
        pairs = [pair for pair in zip(results, self.exact, strict=True) if pair[1].numel()]
        return [float((result.cpu().double() - exact).abs().max()) for result, exact in pairs]

    def check(self, results: Sequence[torch.Tensor]) -> None:
        """GuaranteeError if a result is wrong, or an operand has changed."""
        if [each.shape for each in results] != [each.shape for each in self.exact]:
            raise GuaranteeError(f"the shapes are {[tuple(each.shape) for each in results]}")
        for place, (result, exact, eager, limit) in enumerate(
            zip(results, self.exact, self.eager, self.limits, strict=True)
        ):
            if result.dtype != eager.dtype:
                raise GuaranteeError(f"result {place} is {result.dtype}")
            if exact.numel() == 0:
                continue
            distance = (result.cpu().double() - exact).abs().max()
            if not distance <= limit:
                wrong = int((~((result.cpu().double() - exact).abs() <= limit)).sum())
                raise GuaranteeError(
                    f"wrong digits: result {place} is {distance:.3g} away, the limit is {limit:.3g}; "
                    f"{wrong} of {exact.numel()} elements"
                )
        if not all(torch.equal(_memory(tensor), old) for tensor, old in zip(self.tensors, self.before, strict=True)):
            raise GuaranteeError("an operand was written")


def overruns_so_far() -> int:
    """How often something was written beside a tensor that is freed by now; only the interpreter's device counts."""
    if not hasattr(torch.ops.interpreter_device, "overruns"):
        return 0
    gc.collect()
    return int(torch.ops.interpreter_device.overruns())


def _exactly(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().double() if tensor.is_floating_point() else tensor.cpu()


def _shaken(tensor: torch.Tensor, rounding: float, seed: int) -> torch.Tensor:
    """The tensor in float64, each element rounded up or down at random; integers stay."""
    exact = _exactly(tensor)
    if not tensor.is_floating_point():
        return exact
    drawn = torch.rand(exact.shape, dtype=exact.dtype, generator=torch.Generator().manual_seed(seed))
    return exact * (1 + rounding * (2 * drawn - 1))


def _limit(
    exact: torch.Tensor, eager: torch.Tensor, *shaken: torch.Tensor, noise: float, tf32: bool, errors: float
) -> float:
    rounding = _rounding(eager.dtype, tf32)
    error = max(_distance(exact, eager, *shaken), noise * rounding / EXACT_ROUNDING)
    largest = float(exact.abs().max()) if exact.numel() else 0.0
    return errors * error + ROUNDINGS * rounding * largest + 1e-7


def _distance(exact: torch.Tensor, *others: torch.Tensor) -> float:
    """The largest difference between an element and that of another result."""
    return max(float((each.double() - exact).abs().max()) for each in others) if exact.numel() else 0.0


def _rounding(dtype: torch.dtype, tf32: bool) -> float:
    return TF32 if tf32 and dtype == torch.float32 else ROUNDING.get(dtype, 0.0)


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a tensor's memory, those that are none of its elements included."""
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((elements,), (1,), 0).cpu().view(torch.uint8)
