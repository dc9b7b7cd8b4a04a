"""scaled_mm on a real GPU: the row's kernel runs, nothing is benchmarked, and the result is that of the library."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from diode_lut.measure.gemm import exact_result, function_of, make_operands
from diode_lut.problem import Problem
from tests.gpu.gemms import ATEN, assert_blocks, benchmarks, collected, triton

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("cold"),
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9), reason="the GPU has no float8"
    ),
]

Rows = Callable[..., None]
MM = triton("triton_mm", 64, 128, 64)
SMALL = triton("triton_mm", 16, 64, 128)
LONG = triton("triton_mm", 64, 64, 256, stages=2)
TMA = triton("triton_mm_persistent_tma", 128, 128, 64)
LARGE = triton("triton_mm_persistent_tma", 128, 256, 64, warps=8)

CASES: dict[str, tuple[str, str, tuple[int, int, int], dict[str, Any]]] = {
    "tensors": ("float8_e4m3fn", "tensor-bfloat16", (512, 1024, 2048), MM),
    "tensors, fast": ("float8_e4m3fn", "tensor-bfloat16-fast", (512, 1024, 2048), MM),
    "bias": ("float8_e4m3fn", "tensor-bfloat16-bias-fast", (512, 1024, 2048), MM),
    "float16": ("float8_e4m3fn", "tensor-float16-bias", (512, 1024, 2048), MM),
    "float32": ("float8_e4m3fn", "tensor-float32", (512, 1024, 2048), MM),
    "gradients": ("float8_e5m2", "tensor-bfloat16", (2048, 1024, 512), MM),
    "rows": ("float8_e4m3fn", "row-bfloat16", (512, 1024, 2048), MM),
    "rows, fast, bias": ("float8_e4m3fn", "row-bfloat16-bias-fast", (512, 1024, 2048), MM),
    "one row": ("float8_e4m3fn", "row-bfloat16-fast", (1, 1024, 4096), SMALL),
    "odd sizes": ("float8_e4m3fn", "row-bfloat16", (33, 48, 208), SMALL),
    "long blocks": ("float8_e4m3fn", "row-bfloat16-fast", (100, 1024, 4096), LONG),
    "long K": ("float8_e4m3fn", "tensor-bfloat16", (64, 256, 28672), MM),
    "TMA tensors": ("float8_e4m3fn", "tensor-bfloat16-fast", (512, 1024, 2048), TMA),
    "TMA rows": ("float8_e4m3fn", "row-bfloat16", (500, 1040, 2064), TMA),
    "TMA gradients": ("float8_e5m2", "tensor-bfloat16", (2048, 1024, 512), TMA),
    "TMA float32": ("float8_e4m3fn", "tensor-float32-fast", (512, 1024, 2048), TMA),
    "TMA large blocks": ("float8_e4m3fn", "row-bfloat16-fast", (4096, 4096, 4096), LARGE),
}

TOLERANCES = {torch.bfloat16: 0.12, torch.float16: 0.03, torch.float32: 0.03}
"""By type of the result: the largest error of an element over the square root of K; tensor cores add with 14 bits."""


def error(problem: Problem, result: torch.Tensor, operands: tuple[torch.Tensor, ...]) -> float:
    exact = exact_result(problem, operands)
    return float((result.double() - exact).abs().max()) / math.sqrt(problem.k)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("case", CASES)
def test_row_runs(case: str, rows: Rows) -> None:
    """The row's kernel runs without a benchmark, as exact as the library within what accumulating float8 allows."""
    dtype, variant, (m, n, k), config = CASES[case]
    if config["template"].endswith("tma") and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the GPU has no TMA")
    problem = Problem.of("scaled_mm", m, n, k, dtype=dtype, layout="nt", variant=variant)
    operands = make_operands(problem, "cuda")
    rows({"op": "scaled_mm", "variant": variant, "configs": [config]})
    result, codes = run_and_get_code(torch.compile(function_of(problem)), *operands)
    assert_blocks("\n".join(codes), config)
    assert benchmarks() == 0
    library = error(problem, function_of(problem)(*operands), operands)
    assert error(problem, result, operands) <= max(2 * library, TOLERANCES[result.dtype])


@pytest.mark.parametrize("config", [MM, TMA, ATEN], ids=["triton_mm", "TMA", "aten"])
@pytest.mark.parametrize("per", ["tensor", "row"])
def test_layer_with_an_epilogue(config: dict[str, Any], per: str, rows: Rows) -> None:
    """A layer that quantizes its input, multiplies and applies gelu computes what it does without diode_lut."""
    rows({"op": "scaled_mm", "configs": [config]})
    weight = torch.randn(1024, 512, device="cuda").to(torch.float8_e4m3fn)
    scale_b = torch.rand((1, 1024) if per == "row" else (), device="cuda") + 0.5

    def layer(x: torch.Tensor) -> torch.Tensor:
        most = x.float().abs().amax(1, keepdim=True) if per == "row" else x.float().abs().amax()
        scale = most / 448
        quantized = (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        y = torch._scaled_mm(quantized, weight.t(), scale, scale_b, out_dtype=torch.bfloat16, use_fast_accum=True)
        return torch.nn.functional.gelu(y)

    x = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16)
    expected, result = layer(x), torch.compile(layer)(x)
    assert float((result.float() - expected.float()).norm() / expected.float().norm()) < 0.01


def test_collect_measures_it(tmp_path: Path) -> None:
    """Both stages of a collection measure aten and both templates, and find no result wrong."""
    problems = [
        Problem.of("scaled_mm", 256, 1024, 1024, dtype=dtype, layout="nt", variant=variant)
        for dtype, variant in (
            ("float8_e4m3fn", "tensor-bfloat16-fast"),
            ("float8_e4m3fn", "row-bfloat16-fast"),
            ("float8_e5m2", "tensor-bfloat16"),
        )
    ]
    for record in collected(problems, tmp_path / "float8.msgpack")["final"]:
        assert {timing.config.template for timing in record.timings if timing.ns} >= {"aten"}
