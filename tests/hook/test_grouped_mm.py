"""The hook on grouped matmuls, on a CUDA device that is not there: which kernel Inductor takes."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.choices import InductorChoices
from torch._inductor.exc import LoweringException
from torch._inductor.virtualized import V

import diode_lut
from diode_lut.hook import unasked as grouped_matmuls
from tests.fake_cuda import H200, L4, Input, Lowered, compile_triton, fake_cuda, lower

pytestmark = pytest.mark.usefixtures("h200")

Rows = Callable[..., None]

CONFIG = {
    "template": "triton_grouped_mm",
    "block_m": 32,
    "block_n": 128,
    "block_k": 64,
    "num_stages": 2,
    "num_warps": 8,
}
WITH_ROW = [32, 128, 64, 2, 8]
LIBRARY = {"template": "aten"}
A, ENDS = Input((64, 256)), Input((4,), torch.int32)
B = Input((4, 256, 512), stride=(512 * 256, 1, 256))


def grouped(a: Any, b: Any, ends: Any) -> Any:
    return torch._grouped_mm(a, b, ends)


def row(config: dict[str, Any] = CONFIG, **key: Any) -> dict[str, Any]:
    return {"op": "grouped_mm", "configs": [config], **key}


def tunables(lowered: Lowered) -> list[int]:
    """The blocks, the stages and the warps of the only template; nothing if the library is called."""
    if lowered.extern == ["_grouped_mm"]:
        assert not lowered.triton_templates
        return []
    (kernel,) = lowered.triton_templates
    values = dict(re.findall(r"(BLOCK_\w) : tl\.constexpr = (\d+)", kernel))
    values |= dict(re.findall(r"(num_stages|num_warps)=(\d+)", kernel))
    return [int(values[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "num_warps")]


def forward(a: Input = A, b: Input = B, ends: Input = ENDS) -> list[int]:
    """What the kernel of a forward pass has."""
    return tunables(lower(grouped, a, b, ends))


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_row_becomes_the_kernel(rows: Rows, tmp_path: Path, layout: str) -> None:
    """A row's config is the kernel in either mode, without a benchmark, and Triton compiles it for sm_90."""
    rows(row(layout=layout, dtype="bfloat16", align=16, b=[4, 4], m=[64, 64], n=[512, 512], k=[256, 256]))
    lowered = lower(grouped, A, B if layout == "nt" else Input((4, 256, 512)), ENDS)
    assert tunables(lowered) == WITH_ROW
    (kernel,) = lowered.triton_templates
    assert compile_triton(kernel, tmp_path).metadata.shared <= H200.shared_memory_per_block_optin


@pytest.mark.usefixtures("mode")
def test_row_for_the_library(rows: Rows) -> None:
    """A row that says aten has the library called in either mode, without a benchmark."""
    rows(row(LIBRARY))
    assert forward() == []


def test_descriptors_get_memory_in_every_call(rows: Rows) -> None:
    """Each call tells Triton, which forgets it in another thread, where descriptors get memory, for the launch only."""
    rows(row())
    _, calls = lower(grouped, A, B, ENDS).code.split("async_compile.wait")
    before, _, after = calls.partition("triton_tem_fused")
    assert "triton_allocator.set(" in before
    assert "triton_allocator.reset(" in after


@pytest.mark.parametrize("key", [{"b": 8}, {"m": 128}, {"n": 256}, {"k": 512}, {"layout": "nn"}])
def test_key_says_all_sizes(rows: Rows, key: dict[str, Any]) -> None:
    """A row for one other size, or for the other layout, does not answer."""
    rows(row(**{name: value if name == "layout" else [value, value] for name, value in key.items()}))
    assert forward() == []


def test_row_without_an_op_is_not_for_it(rows: Rows) -> None:
    """A row that names no op is for other matmuls."""
    rows({"configs": [{**LIBRARY, "gain_permille": 1000}]})
    with diode_lut.config.patch(strict=True), pytest.raises(LoweringException, match="MissError: grouped_mm 4x64x512"):
        forward()


def _of_weights(a: Any, b: Any, ends: Any) -> Any:
    return torch._grouped_mm(a.t(), b, ends)


def test_gradients_of_weights_are_inductors(rows: Rows) -> None:
    """Of two matrices in groups along K, tables have no problems."""
    rows(row())
    assert tunables(lower(_of_weights, Input((64, 256)), Input((64, 512)), ENDS)) == []


@pytest.mark.parametrize(
    "inputs",
    [{"a": A._replace(dynamic=(0,))}, {"b": B._replace(shape=(4, 256, 512), dynamic=(2,)), "a": A}],
    ids=["rows", "columns"],
)
def test_sizes_that_change_are_inductors(
    rows: Rows, inputs: dict[str, Input], caplog: pytest.LogCaptureFixture
) -> None:
    """Where a size may change, Inductor decides, which is counted, and nothing is wrong about that."""
    rows(row())
    with (
        caplog.at_level(logging.WARNING, "diode_lut"),
        diode_lut.config.patch(strict=True),
        diode_lut.profile_predictions() as counts,
    ):
        assert forward(**inputs) == []
    assert (counts.total_predictions, counts.no_choice) == (0, 1)
    assert not [each for each in caplog.records if each.name.startswith("diode_lut")]


@pytest.mark.parametrize(
    ("config", "inputs", "reason"),
    [
        ({**CONFIG, "block_n": 256, "block_k": 256, "num_stages": 3}, {}, "bytes of shared memory"),
        ({**CONFIG, "block_m": 256, "block_n": 256, "num_warps": 4}, {}, "512 registers a thread (allowed: 254)"),
        ({"template": "decompose_k", "k_split": 2}, {}, "decompose_k is not for grouped_mm"),
        ({**CONFIG, "num_stages": 4}, {"a": A._replace(offset=4)}, "rows that start on 16-byte boundaries"),
        ({**CONFIG, "num_stages": 3}, {"b": B._replace(offset=4)}, "rows that start on 16-byte boundaries"),
        ({**CONFIG, "num_stages": 1}, {"b": B._replace(stride=(0, 1, 256))}, "rows share memory"),
        ({**CONFIG, "num_warps": 4}, {"b": Input((4, 1 << 16, 1 << 14)), "a": Input((64, 1 << 16))}, "more elements"),
    ],
)
def test_refused(
    rows: Rows, config: dict[str, Any], inputs: dict[str, Input], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A config that cannot run is passed over with a warning, and what Inductor has by itself runs."""
    rows(row(config))
    with caplog.at_level(logging.WARNING, "diode_lut"):
        assert forward(**inputs) == []
    assert reason in caplog.text


@pytest.mark.parametrize("name", ["aot_mode", "cpp_wrapper"])
def test_cpp_wrappers_have_the_library(name: str, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither AOTInductor nor C++ wrappers get the kernel."""
    rows(row())
    build = grouped_matmuls.build_grouped

    def in_cpp(*args: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(V.graph, name, True)
            return build(*args)

    monkeypatch.setattr(grouped_matmuls, "build_grouped", in_cpp)
    assert forward() == []


def test_next_config_of_the_row(rows: Rows) -> None:
    """Where the first config cannot run, the next one is taken."""
    rows({"op": "grouped_mm", "configs": [{**CONFIG, "block_n": 256, "block_k": 256, "num_stages": 3}, CONFIG]})
    assert forward() == WITH_ROW


def test_other_devices_have_no_kernel(rows: Rows) -> None:
    """On a GPU for which Inductor has no such kernel, the library runs, whatever a row says."""
    config = {**CONFIG, "gain_permille": 1100}
    rows(row(config), hardware={"name": "NVIDIA L4", "arch": "sm_89", "sm_count": 58})
    with fake_cuda(L4):
        assert forward() == []


def test_small_devices_take_what_was_measured(rows: Rows) -> None:
    """On a GPU with few multiprocessors, a row's kernel runs only with its measured gain."""
    small = SimpleNamespace(**{**vars(H200), "name": "Small", "multi_processor_count": 58})
    hardware = {"name": "Small", "arch": "sm_90", "sm_count": 58}
    with fake_cuda(small):
        rows(row(), hardware=hardware)
        assert forward() == []
        rows(row({**CONFIG, "gain_permille": 1100}), hardware=hardware)
        assert forward() == WITH_ROW


@pytest.mark.parametrize(
    "options", [{"max_autotune_gemm_backends": "ATEN"}, {"triton.enable_tma_load_for_template_epilogue": True}]
)
def test_inductors_settings_are_kept(rows: Rows, options: dict[str, Any]) -> None:
    """Where Inductor's settings leave no Triton kernel, the library runs."""
    rows(row())
    known = inductor_config.get_config_copy()
    with inductor_config.patch({name: value for name, value in options.items() if name in known}):
        assert forward() == ([] if known.keys() & options.keys() else WITH_ROW)


def _activated(a: Any, b: Any, ends: Any) -> Any:
    return (torch._grouped_mm(a, b, ends).float() * 2).relu()


def test_pointwise_work_is_fused(rows: Rows, tmp_path: Path) -> None:
    """What follows the matmul is in the kernel, which compiles."""
    rows(row())
    lowered = lower(_activated, A, B, ENDS)
    assert tunables(lowered) == WITH_ROW
    assert len(lowered.triton_kernels) == 1
    assert compile_triton(lowered.triton_kernels[0], tmp_path)


def test_another_handler_is_not_answered(rows: Rows) -> None:
    """Where another choices handler is set for a while, as in measurements, tables are not asked."""
    rows(row())
    with V.set_choices_handler(InductorChoices()):
        assert forward() == []
    assert forward() == WITH_ROW


def test_policy_off(rows: Rows) -> None:
    """With the policy off, Inductor decides."""
    rows(row())
    with diode_lut.config.patch(policy="off"):
        assert forward() == []
