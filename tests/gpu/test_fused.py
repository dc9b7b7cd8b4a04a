"""Matmuls and the work after them by QuACK's kernels on a real GPU: digits, also from caches, graphs, in training."""

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
    pytest.mark.usefixtures("cold", "launched"),
    pytest.mark.skipif(not quack.versions(), reason="needs quack-kernels"),
]

TILES = {"tile_m": 128, "tile_n": 192, "cluster_m": 2, "cluster_n": 1, "pingpong": 1}
CONFIGS = [{"template": "quack_gemm", **TILES, "swap_ab": swap} for swap in (0, 1)]


def mlp(x: Tensor, up: Tensor, bias: Tensor, down: Tensor) -> Tensor:
    return x + functional.linear(functional.gelu(functional.linear(x, up, bias)), down)


def gated(x: Tensor, gate: Tensor, bias: Tensor, down: Tensor) -> Tensor:
    hidden = functional.gelu(functional.linear(x, gate), approximate="tanh") * functional.linear(x, gate, bias)
    return functional.linear(hidden, down).relu()


APART = quack.apart


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """If PyTorch's kernels had to take the place of one, that is an error."""
    monkeypatch.delattr(quack, "apart")


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
    for parameter in inputs[1:]:
        parameter.requires_grad_()
    with torch.no_grad():
        for _ in range(2):
            torch._dynamo.reset()
            found, codes = run_and_get_code(torch.compile(program, dynamic=False), *inputs)
            assert sum(code.count("diode_lut.fused_mm.default(") for code in codes) == len(works)
            assert float((found.double() - exact).norm() / exact.norm()) < 1.2 * eager
    parsed = Config.from_json(config)
    assert all(callable(quack.kernel(quack.name_of(work, parsed, bias=work in ("gelu", "geglu")))) for work in works)


@pytest.mark.filterwarnings("default:Attempting to run cuBLAS")  # autograd's thread may have no context yet
def test_graphs_and_training(rows: Rows) -> None:
    """CUDA graphs replay the kernels, and a matmul whose result the backward pass needs is left alone."""
    rows({"op": "fused_mm", "configs": CONFIGS[:1]})
    shapes = ((1000, 264), (1032, 264), (1032,), (264, 1032))
    inputs = [(torch.randn(shape, device="cuda") / shape[-1] ** 0.25).bfloat16() for shape in shapes]

    def errors(function: Callable[..., Tensor]) -> list[float]:
        """Errors of the result and of all gradients against float64."""
        found: list[list[Tensor]] = []
        for run, dtype in ((function, torch.bfloat16), (mlp, torch.float64)):
            leaves = [each.to(dtype).requires_grad_() for each in (each.clone() for each in inputs)]
            result = run(*leaves)
            found.append([result.detach(), *torch.autograd.grad(result, leaves, torch.ones_like(result))])
        return [float((ours.double() - exact).norm() / exact.norm()) for ours, exact in zip(*found, strict=True)]

    eager = errors(mlp)
    trained, codes = run_and_get_code(lambda: errors(torch.compile(mlp, dynamic=False)))
    assert all(error < 1.2 * usual for error, usual in zip(trained, eager, strict=True))
    lines = [line for code in codes for line in code.splitlines()]
    assert not any("fused_mm.default(" in line and "'gelu'" in line for line in lines)
    exact = mlp(*(each.double() for each in inputs))
    torch._dynamo.reset()
    compiled = torch.compile(mlp, dynamic=False, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            found = compiled(*inputs)
        assert float((found.double() - exact).norm() / exact.norm()) < 1.2 * eager[0]


@pytest.mark.parametrize("work", ["relu", "gelu", "gelu_tanh", "add", "swiglu", "geglu"])
def test_infinity_and_nan(work: str) -> None:
    """Results are infinite, and no numbers, where PyTorch's are."""
    x, w, c = (torch.randn(256, 256, device="cuda").bfloat16() for _ in range(3))
    strange = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e36, -1e36, 100, -100], device="cuda").bfloat16()
    activated = work in ("relu", "gelu", "gelu_tanh")
    bias = torch.cat([strange, c[0, 7:]]) if activated else None
    c[:7] = strange[:, None]
    x[8:15, 3] = strange
    operands = (x, w.t(), bias, None if activated else c, work)
    found, expected = quack.launch(*operands, str(Config.from_json(CONFIGS[0]))), APART(*operands)
    torch.testing.assert_close(found.isnan(), expected.isnan(), rtol=0, atol=0)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05, equal_nan=True)
