"""What becomes of generated matmuls of float8 that are compiled and run."""

from pathlib import Path
from typing import Any

import torch

from tests.fuzzing.op_check import executed_op
from tests.fuzzing.operands import filled
from tests.fuzzing.outcome import Outcome
from tests.fuzzing.runs import Run
from tests.fuzzing.scaled import FOLLOWING, ScaledCase

_SUM = 2.0**-13  # relative error of one addition of products of float8: tensor cores add with 14 bits
_DEVIATIONS = 2.0  # how much more the sum's error may be than that of as many independent additions to the largest sum


def executed_scaled(case: ScaledCase, device: str, directory: Path) -> Outcome:
    """The outcome of compiling it and running it, compared with float64."""

    def function(*tensors: Any) -> list[Any]:
        return case.compute(*tensors)

    def run() -> Run:
        tensors = [filled(spec, device, 1.0) for spec in case.inputs]
        for scale in tensors[2:4]:
            scale.abs_().add_(0.5)
        for tensor, spec in zip(tensors, case.inputs, strict=True):
            for dimension in spec.dynamic:
                torch._dynamo.maybe_mark_dynamic(tensor, dimension)
        found = Run.of(tensors, function, lambda *each: _exact(case, *each), backward=False)
        noise = _DEVIATIONS * _SUM * tensors[0].shape[1] ** 0.5 * _largest(*tensors[:4])
        return found._replace(limits=[limit + noise for limit in found.limits])

    return executed_op(case, device, directory, function, run, backward=False)


def _exact(case: ScaledCase, a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None) -> list[torch.Tensor]:
    scaled = (a @ b) * scale_a * scale_b
    result = FOLLOWING[case.following](scaled if bias is None else scaled + bias).double()
    return [result, result[:, : b.shape[1] // 2]] if case.sibling else [result]


def _largest(*tensors: torch.Tensor) -> float:
    """The largest element of the scaled product."""
    a, b, scale_a, scale_b = (tensor.cpu().double() for tensor in tensors)
    return float(((a @ b) * scale_a * scale_b).abs().max())
