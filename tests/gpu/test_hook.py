"""The hook on a real GPU: the row's kernel runs, nothing is benchmarked, and the result is right."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.utils import run_and_get_code
from triton.runtime import driver
from triton.runtime.cache import triton_key

import diode_lut
from diode_lut.hook.graphs import triton_key as key_of_triton
from tests.gpu.gemms import ATEN, BMM, MM, TMA, assert_blocks, benchmarks, check, error, random, triton

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cold")]

Rows = Callable[..., None]


def gelu_linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))


def mm_transposed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.t() @ b.t()


def mm_sliced(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a[:, 8:520] @ b[::2]


def addmm_of_transposed(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.addmm(bias, torch.relu(a.t() * 3), b)


GEMMS: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]], torch.dtype, dict[str, Any]]] = {
    "mm": (torch.mm, [(512, 1024), (1024, 2048)], torch.bfloat16, MM),
    "mm float16": (torch.mm, [(512, 1024), (1024, 2048)], torch.float16, MM),
    "mm float32": (torch.mm, [(512, 1024), (1024, 512)], torch.float32, MM),
    "addmm": (torch.addmm, [(2048,), (512, 1024), (1024, 2048)], torch.bfloat16, MM),
    "addmm of one column": (torch.addmm, [(1,), (512, 1024), (1024, 1)], torch.float16, MM),
    "bmm": (torch.bmm, [(4, 128, 64), (4, 64, 256)], torch.bfloat16, BMM),
    "baddbmm": (torch.baddbmm, [(4, 128, 256), (4, 128, 64), (4, 64, 256)], torch.bfloat16, BMM),
    "linear": (torch.nn.functional.linear, [(512, 1024), (2048, 1024), (2048,)], torch.bfloat16, MM),
    "linear gelu": (gelu_linear, [(512, 1024), (2048, 1024), (2048,)], torch.float16, MM),
    "odd sizes": (torch.mm, [(100, 77), (77, 50)], torch.float16, MM),
    "K no multiple of BLOCK_K": (torch.mm, [(1376, 216), (216, 80)], torch.float16, MM),
    "transposed": (mm_transposed, [(1024, 512), (2048, 1024)], torch.float16, MM),
    "sliced": (mm_sliced, [(256, 1024), (1024, 64)], torch.bfloat16, MM),
    "flexible input": (addmm_of_transposed, [(2048,), (1024, 512), (1024, 2048)], torch.bfloat16, MM),
    "persistent TMA": (torch.mm, [(512, 1024), (1024, 2048)], torch.bfloat16, TMA),
    "persistent TMA linear": (torch.nn.functional.linear, [(512, 1024), (2048, 1024), (2048,)], torch.bfloat16, TMA),
    "persistent TMA transposed": (mm_transposed, [(1024, 512), (2048, 1024)], torch.float16, TMA),
}


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("gemm", GEMMS)
def test_row_is_what_runs(gemm: str, rows: Rows) -> None:
    """In either mode the row's kernel is in the code, nothing was benchmarked, the result is as exact as eager's."""
    function, shapes, dtype, config = GEMMS[gemm]
    rows({"configs": [config, ATEN]})
    code = check(function, *(random(*shape, dtype=dtype) for shape in shapes))
    assert_blocks(code, config)
    assert benchmarks() == 0


@pytest.mark.usefixtures("mode")
def test_decompose_k(rows: Rows) -> None:
    """A decompose_k row cuts K, and is right."""
    rows({"op": "mm", "configs": [{"template": "decompose_k", "k_split": 16}]})
    code = check(torch.mm, random(32, 16384), random(16384, 32))
    assert "extern_kernels.mm(" not in code
    assert benchmarks() == 0


def test_tf32(rows: Rows) -> None:
    """With TF32 allowed the rows for tf32 answer, with TF32's precision."""
    rows({"dtype": "tf32", "configs": [MM]})
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        a, b = random(512, 1024, dtype=torch.float32), random(1024, 512, dtype=torch.float32)
        code = check(torch.mm, a, b, tolerance=2e-3)
    finally:
        torch.set_float32_matmul_precision(before)
    assert_blocks(code, MM)


def test_accumulation_in_float16(rows: Rows) -> None:
    """Where the library may add up in float16, a row's kernel still adds up in float32, and is taken on Hopper."""
    if diode_lut.get_detected_hardware().arch != "sm_90":
        pytest.skip("the library may be faster than rows say")
    rows({"configs": [MM]})
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_fp16_accumulation = matmul.allow_fp16_accumulation, True
    try:
        code = check(torch.mm, random(512, 8192, dtype=torch.float16), random(8192, 512, dtype=torch.float16))
    finally:
        matmul.allow_fp16_accumulation = before
    assert_blocks(code, MM)


@pytest.mark.usefixtures("mode")
def test_dynamic_shapes(rows: Rows) -> None:
    """A kernel chosen for one size of a dynamic dimension is right for the others."""
    rows({"configs": [MM]})
    compiled, b = torch.compile(torch.mm), random(1024, 256, dtype=torch.float16)
    for m in (512, 100, 513):
        torch._dynamo.mark_dynamic(a := random(m, 1024, dtype=torch.float16), 0)
        assert error(compiled(a, b), a.double() @ b.double()) < 1e-3
    assert benchmarks() == 0


@pytest.mark.usefixtures("mode")
def test_training_step(rows: Rows) -> None:
    """Forward and backward get the table's kernels, the backward in whatever thread autograd runs it."""
    rows({"configs": [MM, ATEN]})
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 128))
    model = model.to("cuda", torch.float16)
    x = random(64, 256, dtype=torch.float16)
    model(x).square().mean().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()

    def step() -> None:
        torch.compile(model)(x).square().mean().backward()

    with diode_lut.profile_predictions() as counts:
        _, codes = run_and_get_code(step)
    assert counts.hits["user"] == counts.total_predictions == 5  # two forward, three backward
    assert len(codes) == 2
    for code in codes:
        assert "triton_tem_fused" in code
        assert "extern_kernels" not in code.partition("async_compile.wait")[2]
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert error(parameter.grad, gradient.double()) < 5e-3
    assert benchmarks() == 0


@pytest.mark.parametrize(
    "config",
    [triton("triton_mm", 256, 256, 128, stages=5, warps=8), triton("triton_bmm", 64, 64, 32)],
    ids=["shared memory", "template of another op"],
)
@pytest.mark.usefixtures("mode")
def test_unlaunchable_row_costs_a_warning(
    config: dict[str, Any], rows: Rows, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    """A row that cannot run on this GPU is passed over with a warning, and the next config runs."""
    rows({"configs": [config, MM], "note": request.node.name})
    with caplog.at_level(logging.WARNING, "diode_lut"):
        code = check(torch.mm, random(512, 1024), random(1024, 2048))
    assert_blocks(code, MM)
    assert "cannot run" in caplog.text


def test_second_thread(rows: Rows) -> None:
    """A thread other than the one that imported the hook gets the table's kernels."""
    rows({"configs": [MM]})
    codes: list[str] = []
    thread = threading.Thread(target=lambda: codes.append(check(torch.mm, random(512, 1024), random(1024, 2048))))
    thread.start()
    thread.join()
    assert_blocks(codes[0], MM)


def test_verify_times_two_kernels(rows: Rows) -> None:
    """The policy ``verify`` has Inductor benchmark the row's choice and aten, and nothing else."""
    rows({"configs": [MM]})
    with diode_lut.config.patch(policy="verify"):
        check(torch.mm, random(512, 1024), random(1024, 2048))
    assert benchmarks() == 1


def test_cuda_graphs(rows: Rows) -> None:
    """``mode="reduce-overhead"`` captures and replays the table's kernels."""
    rows({"configs": [MM]})
    compiled = torch.compile(torch.mm, mode="reduce-overhead")
    for _ in range(4):
        a, b = random(512, 1024), random(1024, 2048)
        assert error(compiled(a, b).clone(), a.double() @ b.double()) < 1e-2


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("settings", [{"policy": "verify"}, {"top_k": 2}], ids=str)
@pytest.mark.parametrize("shape", [(2048,), (1, 2048), (512, 2048)], ids=str)
def test_addmm_with_several_candidates(shape: tuple[int, ...], settings: dict[str, Any], rows: Rows) -> None:
    """Whichever of aten and the row's kernel Inductor finds faster, the bias is added as it should be."""
    rows({"configs": [MM, ATEN]})
    with diode_lut.config.patch(**settings):
        check(torch.addmm, random(*shape), random(512, 1024), random(1024, 2048))
    assert benchmarks() == 1


def test_a_worker_tells_the_key_of_triton() -> None:
    """It is the same as this process computes, and a thread makes Triton's driver."""
    torch.cuda.init()  # type: ignore[no-untyped-call]
    AsyncCompile.wait_pool_ready()  # type: ignore[no-untyped-call]
    key_of_triton.cache_clear()
    assert key_of_triton(triton_key) == triton_key()
    for thread in threading.enumerate():
        if thread.name == "diode_lut":
            thread.join()
    assert driver._default is not None
