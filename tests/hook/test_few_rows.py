"""Matmuls of few rows by the project's own template, on a CUDA device that is not there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import diode_lut
from diode_lut.hook import joined
from tests.fake_cuda import Input, compile_triton, lower
from tests.hook.test_guards import triton
from tests.hook.test_hook import ATEN, Rows, uses_aten

pytestmark = pytest.mark.usefixtures("h200")

CONFIG = {"template": "triton_few_rows", "block_n": 2, "block_k": 512, "num_stages": 3, "num_warps": 4}
X, W = Input((1, 1024)), Input((2048, 1024))


def linear(x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
    return functional.linear(x, weight, *bias)


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize(
    ("program", "shapes"),
    [
        pytest.param(linear, ((2048, 1024),), id="mm"),
        pytest.param(linear, ((999, 1000), (999,)), id="addmm, odd"),
        pytest.param(torch.mm, ((1024, 512),), id="row-major"),
    ],
)
def test_row_makes_its_kernel(
    rows: Rows, tmp_path: Path, m: int, program: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]
) -> None:
    """A row makes the kernel, without tensor cores and with loads that are in flight, which Triton compiles."""
    rows({"configs": [CONFIG]})
    k = shapes[0][0 if program is torch.mm else 1]
    lowered = lower(program, Input((m, k)), *map(Input, shapes))
    (kernel,) = lowered.triton_templates
    assert lowered.extern == []
    assert "tl.dot" not in kernel
    assert "cp.async" in compile_triton(kernel, tmp_path).asm["ptx"]


@pytest.mark.parametrize(("m", "n", "changes"), [(1, 1792, False), (3, 5376, False), (3, 5376, True)])
def test_the_shipped_model_answers(m: int, n: int, changes: bool) -> None:
    """For a layer that no table has, it chooses a kernel for few rows, or masked blocks, also if M may change."""
    x, weight = Input((m, 7168 - n), dynamic=(0,) * changes, most=8 if changes else None), Input((n, 7168 - n))
    with diode_lut.config.patch(tables=(), tiers=("device", "same_arch", "model")):
        (kernel,) = lower(linear, x, weight).triton_templates
    assert [sign in kernel for sign in ("tl.dot", "rm < M")] == [n > 1792] * 2


@pytest.mark.parametrize(
    ("m", "block", "step", "masked"),
    [(1, 16, 64, True), (17, 16, 64, True), (32, 16, 64, False), (17, 32, 64, False), (1, 16, 256, False)],
)
@pytest.mark.parametrize("k", [1024, 1000])
@pytest.mark.parametrize("op", ["mm", "addmm", "joined_mm"])
@pytest.mark.parametrize("changes", [False, True])
def test_rows_that_a_has_not_are_masked(
    rows: Rows, tmp_path: Path, op: str, m: int, k: int, block: int, step: int, masked: bool, changes: bool
) -> None:
    """Blocks of 16 rows and short steps load no row of A twice, and compute no remainder without need."""
    joins, small = op == "joined_mm", block == 16 and step == 64
    rows({"op": op, "configs": [triton("triton_joined_mm" if joins else "triton_mm", block, 64, step)]})

    def program(x: Tensor, v: Tensor, w: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        return (linear(x, v), linear(x, w)) if joins else (linear(x, w, *[bias] * (op == "addmm")),)

    x, n = Input((m, k), dynamic=(0,) * changes, most=4096 if changes else None), k // 2
    (kernel,) = lower(program, x, *[Input((n, k))] * 2, Input((n,)), then=joined.join).triton_templates
    (load,) = (line for line in kernel.splitlines() if line.strip().startswith("a = tl.load("))
    mask = [line for line in kernel.splitlines() if "(rm < M)[:, None]" in line]
    masked = masked or (changes and small)
    assert (len(mask), "mask=" in load) == ((1, True) if masked else (0, k == 1000))
    assert ("rm % M" in kernel) == (not masked if joins else not small)
    assert ("rn % N" in kernel) == (n % 64 > 0 or (not small and not joins))
    assert "cp.async" in compile_triton(kernel, tmp_path).asm["ptx"]


@pytest.mark.parametrize("shape", [(1, 1024), (1, 1, 1024)])
@pytest.mark.parametrize("epilogue", [(), ({"epilogue": "medium", "configs": [ATEN]},)])
def test_pointwise_work_is_fused(rows: Rows, epilogue: tuple[dict[str, Any], ...], shape: tuple[int, ...]) -> None:
    """The bias, an activation and a residual are computed in the kernel, whatever rows for epilogues say."""
    rows({"epilogue": "none", "configs": [CONFIG]}, *epilogue)
    inputs = Input(shape), W, Input((2048,)), Input((*shape[:-1], 2048))
    lowered = lower(lambda x, w, b, y: functional.gelu(linear(x, w, b)) + y, *inputs)
    assert (len(lowered.triton_templates), len(lowered.triton_kernels), lowered.extern) == (1, 1, [])


def test_work_before_it_is_not_fused(rows: Rows) -> None:
    """A is computed by a kernel of its own, because each program of this kernel would compute it again."""
    rows({"configs": [CONFIG]})
    x, w = (Input(shape, dtype=torch.float32) for shape in ((1, 1024), (2048, 1024)))
    lowered = lower(lambda x, w: linear(x * 2, w), x, w)
    assert (len(lowered.triton_templates), len(lowered.triton_kernels)) == (1, 2)


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("gated", [True, False])
def test_rows_for_joined_matmuls(rows: Rows, tmp_path: Path, few: bool, gated: bool) -> None:
    """Joined matmuls have such a kernel, too, if A has few rows, and else stay apart."""
    rows({"op": "joined_mm", "configs": [CONFIG]})

    def program(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        first, second = linear(x, v), linear(x, w)
        return (functional.silu(first) * second,) if gated else (first, second)

    lowered = lower(program, Input((4 if few else 5, 1024)), W, W, then=joined.join)
    assert len(lowered.triton_templates) == few
    for kernel in lowered.triton_templates:
        assert "tl.dot" not in kernel
        assert "cp.async" in compile_triton(kernel, tmp_path).asm["ptx"]


def test_more_rows_are_the_librarys(rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    """An A of more rows does not get the kernel."""
    rows({"configs": [CONFIG]})
    assert uses_aten(lower(linear, Input((5, 1024)), W))
    assert "it is for up to 4 rows, not 5" in caplog.text


@pytest.mark.parametrize(
    ("x", "w"),
    [
        pytest.param(Input((2, 1024), dynamic=(0,), most=4), W, id="m"),
        pytest.param(X, Input((2048, 1024), dynamic=(0,)), id="n"),
        pytest.param(Input((1, 1024), dynamic=(1,)), Input((2048, 1024), dynamic=(1,)), id="k"),
    ],
)
def test_sizes_that_may_change(rows: Rows, caplog: pytest.LogCaptureFixture, x: Input, w: Input) -> None:
    """A matmul with a size that may change is the library's, because the kernel was timed with constants."""
    rows({"configs": [{**CONFIG, "gain_permille": 1500}]})
    assert uses_aten(lower(linear, x, w))
    assert "cannot run" not in caplog.text


def test_fields_are_checked(rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    """A config whose sums leave a thread no registers cannot run."""
    rows({"configs": [{**CONFIG, "block_n": 16, "block_k": 4096}, ATEN]})
    assert uses_aten(lower(linear, X, W))
    assert "registers a thread" in caplog.text
