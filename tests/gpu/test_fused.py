"""Matmuls and the work after them by QuACK's kernels on a real GPU: digits, also of what the cache returns."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code
from torch.nn import functional

from diode_lut.hook import quack
from diode_lut.templates.config import Config
from tests.gpu.conftest import Rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("cold"),
    pytest.mark.skipif(not quack.versions(), reason="needs quack-kernels"),
]

TILES = {"tile_m": 128, "tile_n": 192, "cluster_m": 2, "cluster_n": 1, "pingpong": 1}
CONFIGS = [{"template": "quack_gemm", **TILES, "swap_ab": swap} for swap in (0, 1)]


def mlp(x: Tensor, up: Tensor, bias: Tensor, down: Tensor) -> Tensor:
    return x + functional.linear(functional.gelu(functional.linear(x, up, bias)), down)


def gated(x: Tensor, gate: Tensor, bias: Tensor, down: Tensor) -> Tensor:
    hidden = functional.gelu(functional.linear(x, gate), approximate="tanh") * functional.linear(x, gate, bias)
    return functional.linear(hidden, down).relu()


@pytest.mark.parametrize("config", CONFIGS, ids=["as they are", "swapped"])
@pytest.mark.parametrize(("program", "works"), [(mlp, ["gelu", "add"]), (gated, ["geglu", "relu"])])
def test_kernel_computes_it(
    program: Callable[..., Tensor], works: list[str], config: dict[str, Any], rows: Rows
) -> None:
    """Results are as close to float64 as PyTorch's, with sizes that no tile divides, compiled twice."""
    rows({"op": "fused_mm", "configs": [config]})
    m, n, k = 1000, 1032, 264
    shapes = ((2, m // 2, k), (n, k), (n,), (k, n))
    inputs = [(torch.randn(shape, device="cuda") / shape[-1] ** 0.25).bfloat16() for shape in shapes]
    exact = program(*(each.double() for each in inputs))
    eager = float((program(*inputs).double() - exact).norm() / exact.norm())
    with torch.no_grad():
        for _ in range(2):
            torch._dynamo.reset()
            found, codes = run_and_get_code(torch.compile(program, dynamic=False), *inputs)
            assert sum(code.count("diode_lut.fused_mm.default(") for code in codes) == len(works)
            assert float((found.double() - exact).norm() / exact.norm()) < 1.2 * eager
    parsed = Config.from_json(config)
    assert all(callable(quack.kernel(quack.name_of(work, parsed, bias=work in ("gelu", "geglu")))) for work in works)
