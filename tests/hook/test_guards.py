"""What could go wrong between a row and a result, a test each; tools/guards.py lists all, and where each is tested."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.virtualized import V

from diode_lut.hook import choices as build_choice
from diode_lut.hook import choices as tma
from tests.fake_cuda import H200, Input, compile_triton, lower

pytestmark = pytest.mark.usefixtures("h200")

Rows = Callable[..., None]


def triton(template: str, m: int, n: int, k: int, *, stages: int = 3, warps: int = 4) -> dict[str, Any]:
    blocks = {"block_m": m, "block_n": n, "block_k": k}
    return {"template": template, **blocks, "group_m": 8, "num_stages": stages, "num_warps": warps}


MM = triton("triton_mm", 64, 128, 32)
BMM = triton("triton_bmm", 32, 64, 64, stages=2)
TMA = triton("triton_mm_persistent_tma", 128, 64, 64)
OPERANDS = Input((512, 1024)), Input((1024, 2048))
FLOAT32 = Input((512, 1024), torch.float32), Input((1024, 2048), torch.float32)


@pytest.mark.parametrize(
    "config",
    [
        triton("triton_mm", 32, 256, 128, stages=3, warps=8),
        triton("triton_mm_persistent_tma", 128, 128, 64, stages=5, warps=8),
    ],
    ids=lambda config: config["template"],
)
def test_fused_epilogue_fits_shared_memory(config: dict[str, Any], rows: Rows, tmp_path: Path) -> None:
    """A kernel that nearly fills the shared memory stays within it when all that follows is fused into it."""

    def function(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, bias)) + other

    rows({"configs": [config]})
    inputs = Input((512, 1024)), Input((2048, 1024)), Input((2048,)), Input((512, 2048), torch.float32)
    lowered = lower(function, *inputs)
    (kernel,) = lowered.triton_kernels
    assert compile_triton(kernel, tmp_path).metadata.shared <= H200.shared_memory_per_block_optin


def test_tma_that_would_not_fit_with_its_epilogue_is_refused(rows: Rows) -> None:
    """What a TMA kernel needs for its result counts too: the same blocks fit without TMA."""
    blocks = 32, 256, 128
    inputs = Input((512, 1024)), Input((1024, 2048))
    for template, fits in (("triton_mm", True), ("triton_mm_persistent_tma", False)):
        rows({"configs": [triton(template, *blocks, stages=3, warps=8)]})
        assert bool(lower(torch.mm, *inputs).triton_templates) is fits


@pytest.mark.parametrize("dynamic", [(), (0,)], ids=["static", "dynamic"])
def test_batch_over_65535(dynamic: tuple[int, ...], rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Inductor does not cut a large batch over the launch grid, as in torch 2.11, such a row gives way."""
    rows({"configs": [BMM]})
    inputs = Input((65536, 16, 16), dynamic=dynamic), Input((65536, 16, 16), dynamic=dynamic)
    assert bool(lower(torch.bmm, *inputs).triton_templates) is build_choice.splits_large_batches()
    monkeypatch.setattr(build_choice, "splits_large_batches", lambda: False)
    assert lower(torch.bmm, *inputs).triton_templates == []
    small = Input((65535, 16, 16)), Input((65535, 16, 16))
    assert lower(torch.bmm, *small).triton_templates
    growing = (each._replace(dynamic=(0,)) for each in small)
    assert lower(torch.bmm, *growing).triton_templates == []


LARGE: dict[str, tuple[Callable[..., Any], list[Input]]] = {
    "A": (lambda a, b: a.t() @ b, [Input((65536, 40000)), Input((65536, 64))]),
    "B": (torch.mm, [Input((64, 65536)), Input((65536, 40000))]),
    "the result": (torch.mm, [Input((65536, 64)), Input((64, 40000))]),
    "the batch": (torch.bmm, [Input((1024, 2048, 64)), Input((1024, 64, 2048))]),
}


@pytest.mark.parametrize("what", LARGE)
def test_more_elements_than_32_bits_index(what: str, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where templates index along K in 32 bits, as before torch 2.13, a row for enormous matrices gives way."""
    rows({"op": "mm", "configs": [MM]}, {"op": "bmm", "configs": [BMM]})
    function, inputs = LARGE[what]
    for in_64_bits in (True, False):
        monkeypatch.setattr(build_choice, "indexes_in_64_bits", lambda answer=in_64_bits: answer)
        assert bool(lower(function, *inputs).triton_templates) is in_64_bits
    assert lower(torch.mm, *OPERANDS).triton_templates


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_factors_that_may_change(name: str, rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    """A GEMM whose alpha or beta is a dynamic size is the next config's, with a warning that says why."""

    def function(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addmm(bias, a, b, **{name: a.shape[0]})

    rows({"configs": [MM, {"template": "aten"}], "note": name})  # a row of its own, as each is warned of once
    with caplog.at_level(logging.WARNING, "diode_lut"):
        lowered = lower(function, Input((2048,)), OPERANDS[0]._replace(dynamic=(0,)), OPERANDS[1])
    assert lowered.extern == ["addmm"]
    assert "a size that may change" in caplog.text


@pytest.mark.parametrize("empty", "bmnk")
def test_zero_sizes(empty: str, rows: Rows) -> None:
    """A GEMM with an empty operand or an empty result never gets a row's kernel."""
    rows({"configs": [BMM]})
    sizes = {"b": 4, "m": 64, "n": 32, "k": 16, empty: 0}
    a, b = Input((sizes["b"], sizes["m"], sizes["k"])), Input((sizes["b"], sizes["k"], sizes["n"]))
    assert lower(torch.bmm, a, b).triton_templates == []


@pytest.mark.parametrize("most", [None, 4096], ids=["unbounded", "bounded"])
def test_tma_where_rows_may_become_unaligned(most: int | None, rows: Rows) -> None:
    """A size that may change keeps TMA away where the rows' alignment hangs on it."""
    rows({"configs": [TMA]})
    a, b = (each._replace(most=most) for each in OPERANDS)
    assert lower(torch.mm, a, b).triton_templates
    assert lower(torch.mm, a._replace(dynamic=(1,)), b._replace(dynamic=(0,))).triton_templates == []
    assert lower(torch.mm, a, b._replace(dynamic=(1,))).triton_templates == []
    if most:  # else Inductor itself may refuse it
        assert lower(torch.mm, a._replace(dynamic=(0,)), b).triton_templates


def view(start: int) -> Callable[..., torch.Tensor]:
    """The GEMM of a matrix that begins ``start`` elements after its memory."""
    return lambda memory, b: torch.mm(memory.as_strided((512, 1024), (1024, 1), start), b)


@pytest.mark.parametrize(("start", "described"), [(0, True), (8, True), (1, False)])
def test_tma_of_a_view(start: int, described: bool, rows: Rows) -> None:
    """A tensor descriptor is not made for a view that does not begin on a 16-byte boundary of its memory."""
    rows({"configs": [TMA]})
    assert bool(lower(view(start), Input((513, 1024)), OPERANDS[1]).triton_templates) is described


@pytest.mark.parametrize(("config", "needed"), [(TMA, True), (MM, False)], ids=["tma", "without"])
def test_descriptors_get_memory_in_every_call(config: dict[str, Any], needed: bool, rows: Rows) -> None:
    """Each call tells Triton, which forgets it in another thread, where descriptors get memory, for the launch only."""
    rows({"configs": [config]})
    _, calls = lower(torch.mm, *OPERANDS).code.split("async_compile.wait")
    before, launch, after = calls.partition("triton_tem_fused")
    assert launch
    assert ("triton_allocator.set(" in before) is needed
    assert ("triton_allocator.reset(" in after) is needed


@pytest.mark.parametrize("epilogue", [torch.nn.Identity(), torch.nn.functional.gelu], ids=["alone", "gelu"])
@pytest.mark.parametrize("config", [MM, triton("triton_bmm", 64, 64, 64)], ids=lambda config: config["template"])
def test_the_loop_along_k_is_not_unrolled(
    config: dict[str, Any], epilogue: Callable[[torch.Tensor], torch.Tensor], rows: Rows, tmp_path: Path
) -> None:
    """The machine code is shorter than with a constant number of steps."""
    op, batch = ("mm", ()) if config is MM else ("bmm", (2,))
    rows({"op": op, "configs": [config]})
    operands = Input((*batch, 512, 1024)), Input((*batch, 1024, 2048))
    (source,) = lower(lambda a, b: epilogue(a @ b), *operands).triton_templates
    kernel = compile_triton(source, tmp_path)
    unrolled = compile_triton(source.replace("K + tl.program_id(2)", "K"), tmp_path)
    assert len(kernel.asm["cubin"]) + 4096 < len(unrolled.asm["cubin"])


@pytest.mark.skipif(not hasattr(inductor_config.triton, "enable_template_tma_store"), reason="this torch has no such")
def test_tma_where_results_are_stored_with_tma(rows: Rows) -> None:
    """With Inductor's setting for that, an epilogue such as padding may not compile."""
    rows({"configs": [TMA, MM]})
    with inductor_config.patch({"triton.enable_template_tma_store": True}):
        (kernel,) = lower(torch.mm, *OPERANDS).triton_templates
    assert "tensor_descriptor" not in kernel


ALIGNED: dict[str, tuple[bool, Callable[..., Any], Input]] = {
    "all": (True, torch.mm, OPERANDS[0]),
    "view": (True, view(8), Input((513, 1024))),
    "only row": (True, torch.mm, Input((1, 1024), stride=(1028, 1))),
    "not the input": (False, torch.mm, Input((512, 1024), offset=1)),
    "not the view": (False, view(1), Input((513, 1024))),
    "not the rows": (False, torch.mm, Input((512, 1024), stride=(1028, 1))),
}


@pytest.mark.parametrize("what", ALIGNED)
def test_rows_for_what_is_aligned(what: str, rows: Rows) -> None:
    """They answer only where each row of a matrix starts on a 16-byte boundary."""
    rows({"align": 16, "configs": [MM]})
    aligned, function, a = ALIGNED[what]
    assert bool(lower(function, a, OPERANDS[1]).triton_templates) is aligned


def test_a_batch_next_to_each_other_is_not_aligned(rows: Rows) -> None:
    """Matrices that begin one element apart, a sliding window, do not start on 16-byte boundaries."""
    rows({"align": 16, "configs": [BMM]}, {"align": 2, "configs": [{"template": "aten"}]})
    a, b = Input((8, 512, 64), stride=(1, 64, 1)), Input((8, 64, 64))
    assert not lower(torch.bmm, a, b).triton_templates
    assert lower(torch.bmm, a._replace(stride=(8, 64, 1)), b).triton_templates


@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("switch", ["high", "medium", "allow_tf32"])
def test_precision_switches(switch: str, rows: Rows) -> None:
    """However TF32 is allowed, rows for float32 no longer answer, and those for tf32 do."""
    rows({"dtype": "float32", "configs": [MM]})
    (kernel,) = lower(torch.mm, *FLOAT32).triton_templates
    assert "ALLOW_TF32 : tl.constexpr = False" in kernel
    if switch == "allow_tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
    else:
        torch.set_float32_matmul_precision(switch)
    assert lower(torch.mm, *FLOAT32).triton_templates == []
    rows({"dtype": "tf32", "configs": [MM]})
    (kernel,) = lower(torch.mm, *FLOAT32).triton_templates
    assert "ALLOW_TF32 : tl.constexpr = True" in kernel


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_reduced_precision_reduction(name: str, rows: Rows) -> None:
    """A row's kernel adds up in float32, whether or not the library may do with less."""
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[name]
    rows({"configs": [MM]})
    matmul, switch = torch.backends.cuda.matmul, f"allow_{name}_reduced_precision_reduction"
    before = getattr(matmul, switch)
    try:
        for allowed in (False, True):
            setattr(matmul, switch, allowed)
            (kernel,) = lower(torch.mm, *(each._replace(dtype=dtype) for each in OPERANDS)).triton_templates
            assert "ACC_TYPE : tl.constexpr = tl.float32" in kernel
    finally:
        setattr(matmul, switch, before)


def test_autocast(rows: Rows) -> None:
    """Under autocast the rows for the type that GEMMs are cast to answer."""
    rows({"dtype": "float16", "configs": [MM]})

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.float16):
            return torch.mm(a, b)

    assert lower(torch.mm, *FLOAT32).triton_templates == []
    assert lower(function, *FLOAT32).triton_templates


def test_mixed_types(rows: Rows) -> None:
    """A GEMM whose result has another type than its inputs is left to Inductor."""
    rows({"configs": [MM]})
    lowered = lower(lambda a, b: torch.mm(a, b, out_dtype=torch.float32), *OPERANDS)
    assert lowered.triton_templates == []


def test_deterministic_mode(rows: Rows) -> None:
    """Rows answer in deterministic mode: one kernel is as good as another at giving the same bits twice."""
    rows({"configs": [MM]})
    torch.use_deterministic_algorithms(True)
    try:
        with inductor_config.patch(deterministic=True):
            assert lower(torch.mm, *OPERANDS).triton_templates
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.skipif(not hasattr(inductor_config, "batch_invariant"), reason="since torch 2.13")
def test_batch_invariance(rows: Rows) -> None:
    """Where a result must not depend on the batch it came in, there is no choosing by size."""
    rows({"configs": [MM]})
    with inductor_config.patch(batch_invariant=True):
        assert lower(torch.mm, *OPERANDS).triton_templates == []


@pytest.mark.skipif(
    not hasattr(inductor_config.triton, "enable_tma_load_for_template_epilogue"), reason="since torch 2.13"
)
def test_epilogues_that_load_with_tma(rows: Rows) -> None:
    """With this setting Inductor fails where it fuses masked work into a Triton kernel, so there is none."""
    rows({"configs": [MM]})

    def behind(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.constant_pad_nd(a @ b, [0, 1, 0, 6])

    with inductor_config.patch({"triton.enable_tma_load_for_template_epilogue": True}):
        assert lower(behind, *OPERANDS).triton_templates == []


@pytest.mark.parametrize("name", ["aot_mode", "cpp_wrapper"])
def test_kernels_that_aot_inductor_cannot_have(name: str, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither AOTInductor nor C++ wrappers get a GEMM that is cut along K: the next config is taken."""
    rows({"configs": [{"template": "decompose_k", "k_split": 16}, MM]})
    build = build_choice._decompose_k

    def in_cpp(*args: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(V.graph, name, True)
            return build(*args)

    assert lower(torch.mm, *OPERANDS).triton_templates == []
    monkeypatch.setattr(build_choice, "_decompose_k", in_cpp)
    other = Input((512, 1024)), Input((1024, 1024))
    assert lower(torch.mm, *other).triton_templates


@pytest.mark.parametrize("name", ["aot_mode", "cpp_wrapper"])
@pytest.mark.parametrize("has_scratch", [True, False])
def test_tensor_descriptors_in_cpp(name: str, has_scratch: bool, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a C++ wrapper has memory for the descriptors of one program only, there is no kernel with TMA."""
    rows({"configs": [TMA, MM]})
    legal = build_choice.tma_legal

    def in_cpp(inputs: Any) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(V.graph, name, True)
            return legal(inputs)

    monkeypatch.setattr(build_choice, "tma_legal", in_cpp)
    monkeypatch.setattr(tma, "cpp_wrappers_have_scratch", lambda: has_scratch)
    (source,) = lower(torch.mm, *OPERANDS).triton_templates
    assert ("make_tensor_descriptor" in source) is has_scratch


PADDING: list[tuple[dict[str, Any], Input, bool]] = [
    ({}, Input((1024, 1100)), True),
    ({"pad_outputs": True}, Input((1024, 1100)), False),
    ({"pad_outputs": True}, Input((1024, 99)), True),
    ({"pad_outputs": True, "padding_stride_threshold": 0}, Input((1024, 99)), False),
    ({"pad_outputs": True, "padding_stride_threshold": 0}, Input((1024, 128)), True),
    ({"pad_outputs": True, "pad_dynamic_shapes": True}, Input((1024, 1100), dynamic=(1,)), False),
    ({"pad_outputs": True, "comprehensive_padding": False}, Input((1024, 1100)), True),
    ({"padding_stride_threshold": 0, "keep_output_stride": False}, Input((1024, 99)), True),
]


@pytest.mark.parametrize(("settings", "b", "packed"), PADDING)
def test_parts_of_k_where_results_are_padded(settings: dict[str, Any], b: Input, packed: bool, rows: Rows) -> None:
    """A GEMM is not cut along K where Inductor would pad the result, and have it read as if it were not padded."""
    rows({"configs": [{"template": "decompose_k", "k_split": 8}]})
    with inductor_config.patch(settings):
        lowered = lower(lambda a, b: (a @ b) * 2, Input((24, 1024)), b)
    assert ("mm" in lowered.extern) is not packed


@pytest.mark.parametrize("stay", [None, False])
def test_parts_of_k_with_dynamic_sizes(stay: bool | None, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GEMM is not cut along K where Inductor would make a constant of a size that may change."""
    rows({"configs": [{"template": "decompose_k", "k_split": 8}]})
    if stay is not None:
        monkeypatch.setattr(build_choice, "subgraphs_keep_sizes_dynamic", lambda: stay)
    lowered = lower(torch.mm, Input((24, 1024), dynamic=[0]), Input((1024, 99)))
    assert re.search(r"\bs\d+\b", lowered.code)
    if stay is False:
        assert lowered.extern == ["mm"]


def test_new_thread(rows: Rows) -> None:
    """A thread that was not there when Inductor was imported gets a row's kernel too."""
    rows({"configs": [MM]})
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lower, torch.mm, *OPERANDS).result().triton_templates


def test_accumulator_that_takes_all_registers(rows: Rows) -> None:
    """Threads that share the registers of a block need some besides the accumulator: such a row does not compile."""
    rows({"configs": [triton("triton_mm", 256, 256, 16, stages=2, warps=16)]})
    assert lower(torch.mm, *OPERANDS).triton_templates == []
