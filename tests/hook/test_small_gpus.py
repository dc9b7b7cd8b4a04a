"""GPUs that Inductor finds too small for Triton's GEMMs: a measured gain is what lets one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.ir import ChoiceCaller
from torch._inductor.select_algorithm import get_algorithm_selector_cache

import diode_lut
from diode_lut.hardware import Hardware
from diode_lut.hook.problems import config_of
from diode_lut.measure.gemm import make_operands
from diode_lut.measure.kernels import Kernel, lowering
from diode_lut.model import Kind
from diode_lut.model.weights import write_model
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config
from tests.fake_cuda import L4, Input, Lowered, compile_triton, fake_cuda, lower
from tests.model import small

Rows = Callable[..., None]

HARDWARE = Hardware("NVIDIA L4", "sm_89", 58)
INPUTS = Input((512, 1024)), Input((1024, 2048))
FIELDS = {"hardware": {"name": "NVIDIA L4", "arch": "sm_89", "sm_count": 58}}
MEASURED = {**Config.parse("triton_mm 64x128x32 g8 s3 w4").to_json(), "gain_permille": 1100}
OTHER = Config.parse("triton_mm 64x64x32 g8 s3 w4").to_json()
PADDED = Config.parse("triton_mm 64x64x32 g8 s3 w4 pad8").to_json()
CUT = Config.parse("decompose_k 4").to_json()


@pytest.fixture(autouse=True, params=["default", "max-autotune"])
def _on_an_l4(request: pytest.FixtureRequest) -> Iterator[None]:
    """Either mode; benchmarking would fail here, for there is no device."""
    with fake_cuda(L4), inductor_config.patch(max_autotune=request.param == "max-autotune"):
        yield


def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def is_aten(lowered: Lowered) -> bool:
    return lowered.extern == ["mm"] and not lowered.triton_templates


def test_a_measured_row_brings_its_kernel(rows: Rows, tmp_path: Path) -> None:
    """A config with its gain in the row that answers is the one kernel, and Triton compiles it for the L4."""
    rows({"configs": [MEASURED]}, **FIELDS)
    (kernel,) = lower(mm, *INPUTS).triton_templates
    assert compile_triton(kernel, tmp_path, 89).metadata.shared <= L4.shared_memory_per_block_optin


@pytest.mark.parametrize("config", [OTHER, CUT])
def test_a_row_without_a_measurement_brings_none(
    config: dict[str, Any], rows: Rows, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    """A row's config without a gain gives way, with one warning that says why."""
    rows({"configs": [config], "note": request.node.name}, **FIELDS)
    assert is_aten(lower(mm, *INPUTS))
    (message,) = (record.message for record in caplog.records if record.name.startswith("diode_lut"))
    assert "cannot run" in message
    assert "Inductor finds the GPU too small, and no row has the config's measured gain" in message


@pytest.mark.parametrize("text", ["128x256x64 g8 s3 w8", "256x128x16 g8 s3 w8", "128x128x64 g8 s4 w8"])
def test_fused_epilogue_fits_shared_memory(text: str, rows: Rows, tmp_path: Path) -> None:
    """A kernel that nearly fills the L4's shared memory stays within it when all that follows is fused into it."""

    def function(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, bias)) + other

    rows({"configs": [{**Config.parse(f"triton_mm {text}").to_json(), "gain_permille": 1100}]}, **FIELDS)
    inputs = Input((512, 1024)), Input((2048, 1024)), Input((2048,)), Input((512, 2048), torch.float32)
    (kernel,) = lower(function, *inputs).triton_kernels
    assert compile_triton(kernel, tmp_path, 89).metadata.shared <= L4.shared_memory_per_block_optin


def test_only_what_was_measured_passes(rows: Rows) -> None:
    """Of a row's configs, one without a gain gives way to one that has one."""
    rows({"configs": [OTHER, MEASURED]}, **FIELDS)
    (kernel,) = lower(mm, *INPUTS).triton_templates
    assert "BLOCK_N : tl.constexpr = 128" in kernel


def test_a_model_is_no_evidence(shipped: Path) -> None:
    """What a model expects was not measured: the GEMM is left to Inductor."""
    kind = Kind("mm", "bfloat16", "nn", 16, (1, 1), (1, 4096), (1, 4096), (1, 4096))
    candidates = (Config.from_json(OTHER), small.BATCHED, small.ATEN)
    model = small.model(candidates=candidates, kinds=(kind,), hardware=HARDWARE)
    write_model(model, shipped / "nvidia-l4.mlp.safetensors")
    with diode_lut.profile_predictions() as counts:
        assert is_aten(lower(mm, *INPUTS))
    assert (counts.hits["model"], counts.skipped_configs, counts.unserved) == (1, 1, 1)


def test_a_chooser_is_no_evidence() -> None:
    """What a function names was not measured either."""
    named = Config.from_json(OTHER)
    with (
        diode_lut.config.patch(tiers=("chooser",)),
        diode_lut.register_chooser(lambda *_: named, name="always", digest="1"),
    ):
        assert is_aten(lower(mm, *INPUTS))


@pytest.fixture
def listed() -> Iterator[list[list[Config | None]]]:
    """The lists of configs that Inductor would time; it takes the first of each, for nothing can run here."""
    lists: list[list[Config | None]] = []

    def take_first(choices: list[ChoiceCaller]) -> list[ChoiceCaller]:
        lists.append([config_of(choice) for choice in choices])
        return choices[:1]

    functions = get_algorithm_selector_cache().preprocessing_fns
    functions.append(take_first)
    yield lists
    functions.remove(take_first)


def test_what_inductor_measures_itself_needs_no_row(listed: list[list[Config | None]]) -> None:
    """With the policy ``verify``, Inductor times what a function names against aten."""
    named = Config.from_json(OTHER)
    with (
        diode_lut.config.patch(tiers=("chooser",), policy="verify"),
        diode_lut.register_chooser(lambda *_: named, name="always", digest="1"),
    ):
        lower(mm, *INPUTS)
    assert listed == [[named, ATEN]]


def test_epilogues_go_by_their_own_rows(rows: Rows) -> None:
    """A measured row for an epilogue fuses it; one without a measurement leaves it to a second kernel."""
    row = {"epilogue": "light"}

    def relu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(a @ b)

    aten = {"epilogue": "none", "configs": [{"template": "aten"}]}
    rows(aten, {**row, "configs": [OTHER]}, **FIELDS)
    assert is_aten(lower(relu, *INPUTS))
    rows(aten, {**row, "configs": [MEASURED]}, **FIELDS)
    assert len(lower(relu, *INPUTS).triton_templates) == 1


def test_nothing_is_padded_for_a_kernel_that_may_not_run(rows: Rows) -> None:
    """A config with a pad that was not measured leaves the operands as they are."""
    operands = Input((512, 1023)), Input((1023, 2048))
    rows({"configs": [PADDED, {"template": "aten"}]}, **FIELDS)
    assert "constant_pad_nd" not in lower(mm, *operands, joint=True).code
    assert lower(mm, *operands, joint=True).extern == ["mm"]
    rows({"configs": [{**PADDED, "gain_permille": 1200}]}, **FIELDS)
    assert len(lower(mm, *operands, joint=True).triton_templates) == 1


def test_collecting_makes_kernels_there() -> None:
    """What measures gains needs no evidence that there are some."""
    problem = Problem.of("mm", 512, 2048, 1024, dtype="bfloat16", layout="nn")
    with lowering(torch.device("cuda", 0)) as inductor:
        made = inductor.for_problem(problem, Config.from_json(OTHER), make_operands(problem, "meta"))
    assert isinstance(made, Kernel)
