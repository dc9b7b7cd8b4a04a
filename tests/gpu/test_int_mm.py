"""int_mm on a real GPU: the row's kernel runs, nothing is benchmarked, and each integer is that of the library."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from diode_lut.measure.gemm import EPILOGUES, exact_result, make_operands, make_tensors, with_epilogue
from diode_lut.problem import NO_EPILOGUE, Problem
from tests.gpu.gemms import ATEN, assert_blocks, benchmarks, collected, triton

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cold")]

Rows = Callable[..., None]
MM = triton("triton_mm", 64, 128, 128)
SMALL = triton("triton_mm", 16, 64, 256, stages=4)
LARGE = triton("triton_mm", 128, 256, 128, warps=8)

CASES: dict[str, tuple[str, tuple[int, int, int], dict[str, Any]]] = {
    "linear": ("nt", (512, 1024, 2048), MM),
    "row-major": ("nn", (512, 1024, 2048), MM),
    "column-major": ("tt", (512, 1024, 2048), MM),
    "few rows": ("nt", (32, 4096, 4096), SMALL),
    "least rows": ("nt", (17, 1024, 14336), SMALL),
    "odd sizes": ("nt", (33, 72, 200), MM),
    "short K": ("nt", (33, 72, 8), MM),
    "large blocks": ("nt", (4096, 4096, 4096), LARGE),
}


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("case", CASES)
def test_row_runs(case: str, rows: Rows) -> None:
    """The row's kernel runs without a benchmark, and computes the integers of float64, and of the library."""
    layout, (m, n, k), config = CASES[case]
    operands = make_operands(Problem.of("int_mm", m, n, k, dtype="int8", layout=layout), "cuda")
    rows({"op": "int_mm", "configs": [config]})
    result, codes = run_and_get_code(torch.compile(torch._int_mm), *operands)
    assert_blocks("\n".join(codes), config)
    assert benchmarks() == 0
    a, b = operands
    assert torch.equal(result.double(), a.double() @ b.double())
    if case in ("linear", "few rows", "large blocks"):  # not each library takes all layouts and sizes
        assert torch.equal(result, torch._int_mm(a, b))


@pytest.mark.parametrize("config", [MM, ATEN], ids=["triton_mm", "aten"])
@pytest.mark.parametrize("name", [name for name in EPILOGUES if name != NO_EPILOGUE])
def test_epilogues(name: str, config: dict[str, Any], rows: Rows) -> None:
    """With scales, and with each class of epilogues behind them, the result is that of float64 but for rounding."""
    problem = Problem.of("int_mm", 512, 1024, 2048, dtype="int8", layout="nt", epilogue=name)
    tensors = (make_operands(problem, "cuda"), make_tensors(problem, "cuda"))
    rows({"op": "int_mm", "configs": [config]}, {"op": "int_mm", "epilogue": name, "configs": [config]})
    result, codes = run_and_get_code(torch.compile(with_epilogue(problem)), *tensors[0], *tensors[1])
    assert ("extern_kernels._int_mm(" in "\n".join(codes)) is (config == ATEN)
    expected = exact_result(problem, *tensors)
    assert float((result.double() - expected).norm() / expected.norm()) < 0.01


@pytest.mark.parametrize("config", [MM, ATEN], ids=["triton_mm", "aten"])
def test_quantized_layer(config: dict[str, Any], rows: Rows) -> None:
    """A layer that quantizes its input, multiplies, scales and applies gelu computes what it does without diode_lut."""
    rows({"op": "int_mm", "configs": [config]}, {"op": "int_mm", "epilogue": "medium", "configs": [config]})
    weight = torch.randint(-128, 128, (1024, 512), dtype=torch.int8, device="cuda")
    scales = torch.rand(1024, device="cuda") / 1024

    def layer(x: torch.Tensor) -> torch.Tensor:
        scale = x.float().abs().amax(1, keepdim=True) / 127
        quantized = (x.float() / scale).round().clamp(-128, 127).to(torch.int8)
        y = (torch._int_mm(quantized, weight.t()) * scale * scales).to(torch.bfloat16)
        return torch.nn.functional.gelu(y)

    x = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16)
    expected, result = layer(x), torch.compile(layer)(x)
    assert float((result.float() - expected.float()).norm() / expected.float().norm()) < 0.01


def test_collect_measures_it(tmp_path: Path) -> None:
    """Both stages of a collection measure aten and the template, with scales too, and find no result wrong."""
    problems = [
        Problem.of("int_mm", m, 1024, 1024, dtype="int8", layout="nt", epilogue=epilogue)
        for epilogue in (NO_EPILOGUE, "light")
        for m in (17, 256)
    ]
    for record in collected(problems, tmp_path / "int8.msgpack")["final"]:
        assert {timing.config.template for timing in record.timings if timing.ns} == {"aten", "triton_mm"}
