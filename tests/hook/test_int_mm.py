"""int_mm, which multiplies int8: which problems it is, and which kernels a row makes of it; nothing runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config

from diode_lut.model import Kind
from diode_lut.model.weights import write_model
from diode_lut.templates.config import Config
from tests.fake_cuda import H200, Input, compile_triton, lower
from tests.model import small

pytestmark = pytest.mark.usefixtures("h200")

Rows = Callable[..., None]
M, N, K = 512, 1024, 256


def triton(m: int = 64, n: int = 128, k: int = 128, *, template: str = "triton_mm") -> dict[str, Any]:
    blocks = {"block_m": m, "block_n": n, "block_k": k}
    return {"template": template, **blocks, "group_m": 8, "num_stages": 3, "num_warps": 4}


def operands(m: int = M, n: int = N, k: int = K, *, layout: str = "nt", **of_a: Any) -> list[Input]:
    strides = [None if letter == "n" else (1, rows) for letter, rows in zip(layout, (m, k), strict=True)]
    return [Input((m, k), torch.int8, strides[0], **of_a), Input((k, n), torch.int8, strides[1])]


def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch._int_mm(a, b)


def dequantize(a: torch.Tensor, b: torch.Tensor, of_rows: torch.Tensor, of_columns: torch.Tensor) -> torch.Tensor:
    return (torch._int_mm(a, b) * of_rows * of_columns).to(torch.bfloat16)


def scaled() -> list[Input]:
    return [*operands(), Input((M, 1), torch.float32), Input((N,), torch.float32)]


@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
def test_row_makes_the_kernel(layout: str, rows: Rows, tmp_path: Path) -> None:
    """A row's triton_mm computes int_mm in default mode, as one kernel that adds up in int32, which Triton compiles."""
    rows({"op": "int_mm", "dtype": "int8", "layout": layout, "configs": [triton()]})
    made = lower(multiply, *operands(layout=layout))
    (kernel,) = made.triton_kernels
    assert made.extern == []
    assert "ACC_TYPE : tl.constexpr = tl.int32\n" in kernel
    assert "BLOCK_K : tl.constexpr = 128\n" in kernel
    assert compile_triton(kernel, tmp_path).metadata.shared <= H200.shared_memory_per_block_optin


@pytest.mark.parametrize("op", ["mm", "scaled_mm"])
def test_rows_of_other_ops_do_not_answer(op: str, rows: Rows) -> None:
    """A row for another op leaves int_mm to the library."""
    rows({"op": op, "configs": [triton()]})
    assert lower(multiply, *operands()).extern == ["_int_mm"]


def test_sizes_that_blocks_do_not_divide(rows: Rows, tmp_path: Path) -> None:
    """Sizes may be no multiples of blocks, and K less than one."""
    rows({"op": "int_mm", "configs": [triton()]})
    for m, n, k in ((33, 72, 200), (17, 8, 8)):
        (kernel,) = lower(multiply, *operands(m, n, k)).triton_kernels
        assert "EVEN_K : tl.constexpr = False\n" in kernel
        compile_triton(kernel, tmp_path)


def test_scales_are_fused(rows: Rows, tmp_path: Path) -> None:
    """Scales behind int_mm are a light epilogue, which has rows of its own and is fused into their kernel."""
    own, light = triton(), triton(128)
    rows({"op": "int_mm", "configs": [own]}, {"op": "int_mm", "epilogue": "light", "configs": [light]})
    made = lower(dequantize, *scaled())
    (kernel,) = made.triton_kernels
    assert made.extern == []
    assert "BLOCK_M : tl.constexpr = 128\n" in kernel
    compile_triton(kernel, tmp_path)


def test_a_model_answers_with_scales_behind(shipped: Path) -> None:
    """A model knows int_mm alone; its Triton kernel takes the scales behind it with it, as a row's does."""
    kind = Kind("int_mm", "int8", "nt", 16, (1, 1), (1, 4096), (1, 4096), (1, 4096))
    best = Config("triton_mm", (64, 128, 64, 8, 3, 4))
    model = small.model(candidates=(best, small.BATCHED, small.ATEN), kinds=(kind,))
    write_model(model, shipped / "nvidia-h200.mlp.safetensors")
    made = lower(dequantize, *scaled())
    (kernel,) = made.triton_kernels
    assert "tl.dot(" in kernel
    assert made.extern == []


def test_scales_may_be_a_kernel_of_their_own(rows: Rows) -> None:
    """Where a row says that nothing is to be fused, scales are a second kernel behind the one of the matmul alone."""
    light = {"epilogue": "light", "configs": [{"template": "aten"}]}
    for own, extern in ((triton(), []), ({"template": "aten"}, ["_int_mm"])):
        rows({"op": "int_mm", "configs": [own]}, {"op": "int_mm", **light})
        made = lower(dequantize, *scaled())
        assert made.extern == extern
        assert len(made.triton_kernels) == 2 - len(extern)


def test_rows_may_change(rows: Rows) -> None:
    """A number of rows that changes has a kernel of the rows for parts of its range."""
    small, large = ({"configs": [triton(m) | {"gain_permille": 1200}]} for m in (16, 128))
    rows({"op": "int_mm", "m": [1, 64], **small}, {"op": "int_mm", "m": [65, 4096], **large})
    made = lower(multiply, *operands(dynamic=(0,), most=4096))
    assert len(made.triton_templates) == 2
    assert "BLOCK_M : tl.constexpr = 16\n" in made.code
    assert "BLOCK_M : tl.constexpr = 128\n" in made.code


REFUSED = {
    "block_k=16": triton(k=16),
    "TMA": triton(template="triton_mm_persistent_tma"),
    "batched": triton(template="triton_bmm"),
    "parts of K": {"template": "decompose_k", "k_split": 2},
    "padding": triton() | {"pad": 16},
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str, rows: Rows) -> None:
    """What cannot multiply int8 gives way to the next config."""
    rows({"configs": [REFUSED[what], {"template": "aten"}]})
    made = lower(multiply, *operands(500, 1000, 250))
    assert made.triton_templates == []
    assert made.extern == ["_int_mm"]


def test_max_autotune_is_answered_too(rows: Rows) -> None:
    """Under max-autotune, a row answers without a benchmark, although Inductor has candidates of its own."""
    rows({"op": "int_mm", "configs": [triton()]})
    with inductor_config.patch(max_autotune=True, max_autotune_gemm=True):
        (kernel,) = lower(multiply, *operands()).triton_kernels
    assert "BLOCK_M : tl.constexpr = 64\n" in kernel


def test_unsigned_bytes(rows: Rows) -> None:
    """A of bytes without a sign, which libraries for CPUs take, is left to Inductor."""
    a, b = operands()
    try:
        torch._int_mm(*(torch.empty((32, 32), dtype=kind, device="meta") for kind in (torch.uint8, torch.int8)))
    except RuntimeError:
        pytest.skip("this release takes no such matrix")
    rows({"configs": [triton()]})
    assert lower(multiply, a._replace(dtype=torch.uint8), b).extern == ["_int_mm"]
