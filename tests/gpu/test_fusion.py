"""Epilogues on a real GPU: what rows have fused is right, forward and backward, also captured in a CUDA graph."""

from typing import Any

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from tests.gpu.gemms import ATEN, MM, benchmarks, random
from tests.hook.test_fusion import EPILOGUES, UNFUSED, Function

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cold")]

Rows = Any

SHAPES = [(512, 1024), (2048, 1024), (2048,), (512, 2048)]
TOLERANCE = 2e-2


def by_class(**configs: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each of these classes of epilogues."""
    return [{"op": "addmm", "epilogue": name, "configs": [config]} for name, config in configs.items()]


def operands() -> list[torch.Tensor]:
    """Two operands whose product has elements of about 1, and two more."""
    x, weight, *others = (random(*shape) for shape in SHAPES)
    return [x, weight / 32, *others]


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "apart"])
@pytest.mark.parametrize(("name", "function"), EPILOGUES.values(), ids=EPILOGUES)
def test_epilogues_are_right(name: str, function: Function, fused: bool, rows: Rows) -> None:
    """With the kernel of the epilogue's row, or apart as it says, results are right and nothing is benchmarked."""
    rows(*by_class(**{"none": ATEN, "light": MM, "medium": MM, "heavy": MM, name: MM if fused else ATEN}))
    inputs = operands()
    result, codes = run_and_get_code(torch.compile(function), *inputs)
    assert distance(result, function(*(each.double() for each in inputs))) < TOLERANCE
    assert ("triton_tem_fused" in codes[0]) is fused
    assert benchmarks() == 0


@pytest.mark.parametrize("function", UNFUSED.values(), ids=UNFUSED)
def test_what_is_not_fused_is_right(function: Function, rows: Rows) -> None:
    """Where the scheduler fuses nothing into the matmul, the library's kernel runs, and is right."""
    rows(*by_class(none=ATEN, light=MM, medium=MM, heavy=MM))
    inputs = operands()
    result, codes = run_and_get_code(torch.compile(function), *inputs)
    assert distance(result, function(*(each.double() for each in inputs))) < TOLERANCE
    assert "triton_tem_fused" not in codes[0]


@pytest.mark.usefixtures("mode")
def test_parts_of_a_concatenation_are_right(rows: Rows) -> None:
    """Kernels that write side by side into one tensor are right, and no other kernel copies what they wrote."""
    rows({"op": "mm", "configs": [MM]})
    x, *weights = random(512, 256), random(256, 128) / 16, random(256, 64) / 16, random(256, 320) / 16

    def heads(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return torch.cat([x @ weight for weight in weights], 1)

    result, codes = run_and_get_code(torch.compile(heads), x, *weights)
    assert distance(result, heads(*(each.double() for each in (x, *weights)))) < TOLERANCE
    assert codes[0].count("  # alias") == len(weights)
    assert "triton_poi" not in codes[0]
    assert "extern_kernels.mm" not in codes[0]
    assert benchmarks() == 0


def test_training_and_cuda_graphs(rows: Rows) -> None:
    """A layer of sequences with gelu is right forward and backward, replayed as a CUDA graph."""
    rows({"configs": [ATEN]}, *({"epilogue": name, "configs": [MM]} for name in ("light", "medium", "heavy")))
    layer = torch.nn.Linear(256, 512, device="cuda", dtype=torch.bfloat16)

    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(layer(x))

    x = random(4, 128, 256).requires_grad_()
    compiled = torch.compile(step, mode="reduce-overhead")
    exact = x.detach().double().requires_grad_()
    weight, bias = (each.detach().double() for each in (layer.weight, layer.bias))
    torch.nn.functional.gelu(torch.nn.functional.linear(exact, weight, bias)).sum().backward()
    assert exact.grad is not None
    for _ in range(4):
        x.grad = None
        layer.zero_grad()
        torch.compiler.cudagraph_mark_step_begin()
        compiled(x).sum().backward()
        assert x.grad is not None
        assert distance(x.grad, exact.grad) < TOLERANCE
