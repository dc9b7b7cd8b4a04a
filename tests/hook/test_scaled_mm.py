"""scaled_mm, which multiplies float8: which problems it is, and which kernels a row makes of it; nothing runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config

import diode_lut
from diode_lut.model import Kind
from diode_lut.model.weights import write_model
from diode_lut.problem import VARIANTS, Scaling
from diode_lut.templates.config import Config
from tests.fake_cuda import H200, Input, Lowered, compile_triton, lower
from tests.model import small
from tests.sampled import sampled

pytestmark = pytest.mark.usefixtures("h200")

Rows = Callable[..., None]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
RESULTS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def triton(template: str, m: int, n: int, k: int, *, stages: int = 3, warps: int = 4) -> dict[str, Any]:
    blocks = {"block_m": m, "block_n": n, "block_k": k}
    return {"template": template, **blocks, "group_m": 8, "num_stages": stages, "num_warps": warps}


MM = triton("triton_mm", 64, 128, 64)
TMA = triton("triton_mm_persistent_tma", 128, 128, 64)
M, N, K = 512, 1024, 256


def operands(variant: str, *, m: int = M, n: int = N, k: int = K, a: torch.dtype = E4M3) -> list[Input]:
    scaling = Scaling.of(variant)
    sizes = ((m, 1), (1, n)) if scaling.per == "row" else ((), ())
    scales = [Input(size, torch.float32) for size in sizes]
    bias = [Input((n,), RESULTS[scaling.result])] if scaling.bias else []
    return [Input((m, k), a), Input((n, k), E4M3), *scales, *bias]


def multiply(variant: str) -> Callable[..., torch.Tensor]:
    scaling = Scaling.of(variant)

    def function(a: torch.Tensor, b: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        out_dtype = RESULTS[scaling.result]
        return torch._scaled_mm(a, b.t(), *others, out_dtype=out_dtype, use_fast_accum=scaling.fast)

    return function


def lowered(variant: str, **sizes: Any) -> Lowered:
    return lower(multiply(variant), *operands(variant, **sizes))


@pytest.mark.parametrize("variant", ["tensor-bfloat16", "row-float16-bias-fast", "tensor-float32-fast"])
def test_row_makes_the_plain_kernel(variant: str, rows: Rows, tmp_path: Path) -> None:
    """A row's triton_mm computes scaled_mm in default mode, as one kernel that Triton compiles."""
    rows({"op": "scaled_mm", "variant": variant, "configs": [MM]})
    made = lowered(variant)
    (kernel,) = made.triton_kernels
    assert made.extern == []
    for name in ("block_m", "block_n", "block_k"):
        assert f"{name.upper()} : tl.constexpr = {MM[name]}\n" in kernel
    assert ("acc = tl.dot(" in kernel) is Scaling.of(variant).fast
    assert compile_triton(kernel, tmp_path).metadata.shared <= H200.shared_memory_per_block_optin


@pytest.mark.parametrize("variant", ["tensor-float16-fast", "row-bfloat16"])
def test_row_makes_the_kernel_with_tensor_descriptors(variant: str, rows: Rows, tmp_path: Path) -> None:
    """A row's triton_mm_persistent_tma is Inductor's template with the scales of the problem."""
    rows({"op": "scaled_mm", "configs": [TMA]})
    (kernel,) = lowered(variant).triton_kernels
    recipe = 1 if Scaling.of(variant).per == "row" else 0
    assert f"SCALE_RECIPE_A : tl.constexpr = {recipe}\n" in kernel
    assert f"USE_FAST_ACCUM : tl.constexpr = {Scaling.of(variant).fast}\n" in kernel
    assert compile_triton(kernel, tmp_path).metadata.shared <= H200.shared_memory_per_block_optin


@pytest.mark.parametrize(
    "variant",
    sampled(
        VARIANTS["scaled_mm"],
        "tensor-bfloat16",
        "tensor-float16-bias-fast",
        "tensor-float32-fast",
        "row-bfloat16-bias",
        "row-float16-fast",
        "row-float32",
    ),
)
def test_each_variant_has_its_rows(variant: str, rows: Rows) -> None:
    """A row for one variant answers for it, and for no other."""
    other = next(each for each in VARIANTS["scaled_mm"] if each != variant)
    for named in (variant, other):
        rows({"op": "scaled_mm", "variant": named, "configs": [MM]})
        assert bool(lowered(variant).triton_kernels) is (named == variant)


def test_a_model_answers(shipped: Path) -> None:
    """A model that was trained for a variant answers for it where no row does, and for no other."""
    sizes = (1, 1), (1, 4096), (1, 4096), (1, 4096)
    kind = Kind("scaled_mm", "float8_e4m3fn", "nt", 16, *sizes, variant="row-bfloat16-fast")
    best = Config("triton_mm", (64, 128, 64, 8, 3, 4))
    model = small.model(candidates=(best, small.BATCHED, small.ATEN), kinds=(kind,))
    write_model(model, shipped / "nvidia-h200.mlp.safetensors")
    (kernel,) = lowered("row-bfloat16-fast").triton_kernels
    assert "BLOCK_N : tl.constexpr = 128\n" in kernel
    assert lowered("tensor-bfloat16-fast").extern == ["_scaled_mm"]


@pytest.mark.parametrize("types", [(E5M2, E4M3), (E4M3, E5M2)], ids=["A", "B"])
def test_float8_e5m2_is_one_of_both(types: tuple[torch.dtype, torch.dtype], rows: Rows) -> None:
    """Gradients multiply float8_e5m2 with float8_e4m3fn, and are a dtype of their own."""
    a, b = types
    first, second, *others = operands("tensor-bfloat16")
    inputs = [first._replace(dtype=a), second._replace(dtype=b), *others]
    for dtype, answers in (("float8_e5m2", True), ("float8_e4m3fn", False)):
        rows({"op": "scaled_mm", "dtype": dtype, "configs": [MM]})
        assert bool(lower(multiply("tensor-bfloat16"), *inputs).triton_kernels) is answers


def test_epilogue_is_fused(rows: Rows, tmp_path: Path) -> None:
    """Pointwise work behind a row's Triton kernel is fused into it."""
    gemm = multiply("row-bfloat16")
    for config in (MM, TMA):
        rows({"op": "scaled_mm", "configs": [config]})
        made = lower(lambda *tensors: torch.relu(gemm(*tensors)), *operands("row-bfloat16"))
        (kernel,) = made.triton_kernels
        assert compile_triton(kernel, tmp_path).metadata.shared <= H200.shared_memory_per_block_optin


UNDECIDED = {
    "a dynamic size": [Input((M, K), E4M3, dynamic=(0,)), Input((N, K), E4M3), *operands("tensor-bfloat16")[2:]],
    "scales of blocks": [
        *operands("tensor-bfloat16")[:2],
        Input((M, K // 128), torch.float32, (1, M)),
        Input((K // 128, N // 128), torch.float32, (1, K // 128)),
    ],
    "scales of one dimension": [*operands("tensor-bfloat16")[:2], *[Input((1,), torch.float32)] * 2],
}


@pytest.mark.parametrize("what", UNDECIDED)
def test_left_to_inductor(what: str, rows: Rows) -> None:
    """What tables have no problems for is the library's, as without diode_lut."""
    rows({"configs": [MM]})
    with diode_lut.config.patch(strict=True), diode_lut.profile_predictions() as counts:
        made = lower(multiply("tensor-bfloat16"), *UNDECIDED[what])
    assert made.triton_templates == []
    assert made.extern == ["_scaled_mm"]
    assert (counts.total_predictions, counts.no_choice) == (0, what == "a dynamic size")


REFUSED = {
    "block_k=16": ("tensor-bfloat16", triton("triton_mm", 64, 64, 16), K),
    "less precise": ("tensor-bfloat16", triton("triton_mm", 64, 64, 256), K),
    "K=16": ("tensor-bfloat16", triton("triton_mm", 64, 64, 32), 16),
    "TMA with a bias": ("tensor-bfloat16-bias", TMA, K),
    "shared memory": ("tensor-bfloat16-fast", triton("triton_mm_persistent_tma", 128, 256, 256, stages=2, warps=8), K),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str, rows: Rows) -> None:
    """A kernel that cannot run, or would be less precise than the library, gives way to the next config."""
    variant, config, k = REFUSED[what]
    rows({"op": "scaled_mm", "configs": [config, {"template": "aten"}]})
    made = lowered(variant, k=k)
    assert made.triton_templates == []
    assert made.extern == ["_scaled_mm"]


def test_fast_accumulation_allows_long_blocks(rows: Rows) -> None:
    """Where accumulation may be fast, so may it be over 256 elements of K."""
    rows({"op": "scaled_mm", "configs": [triton("triton_mm", 64, 64, 256)]})
    assert lowered("tensor-bfloat16-fast").triton_templates


def test_max_autotune_is_answered_too(rows: Rows) -> None:
    """Under max-autotune, a row answers without a benchmark, although Inductor has candidates of its own."""
    rows({"op": "scaled_mm", "configs": [MM]})
    with inductor_config.patch(max_autotune=True, max_autotune_gemm=True):
        (kernel,) = lowered("row-bfloat16").triton_kernels
    assert "BLOCK_M : tl.constexpr = 64\n" in kernel


def test_row_for_aten(rows: Rows) -> None:
    """A row may name the library, which keeps fast accumulation and the type of the result."""
    rows({"op": "scaled_mm", "configs": [{"template": "aten"}]})
    code = lowered("tensor-float16-fast").code
    assert "use_fast_accum=True" in code
    assert "out_dtype=torch.float16" in code
