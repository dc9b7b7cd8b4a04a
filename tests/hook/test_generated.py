"""Generated kernels on a CUDA device that is not there: which config their code has, and what is left to Inductor."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.simd_kernel_features import SIMDKernelFeatures
from torch._inductor.codegen.triton import FixedTritonConfig
from torch.nn.functional import gelu, layer_norm

import diode_lut
from diode_lut.decide.catalog import find_path, sources_for
from diode_lut.errors import MissError
from diode_lut.hook.generated import ADDS, HAS_FLOAT64, NOT_FOR_ALL, OTHERS_CHANGE, WRITES_FLOAT8
from diode_lut.model.generated import KernelModel
from diode_lut.model.ranking import Model
from diode_lut.model.weights import read_model, write_model
from diode_lut.receipts import GeneratedKernel, recorder
from diode_lut.templates.config import Config
from tests.fake_cuda import H100, L4, Input, compile_triton, fake_cuda, lower
from tests.hook.conftest import Artifacts
from tests.hook.test_hook import Rows

FLAT = {"template": "pointwise", "block_x": 512, "num_warps": 2}
TILED = {"template": "pointwise", "block_x": 32, "block_y": 64, "num_warps": 8}
LOOPED = {"template": "looped_reduction", "block_x": 2, "block_r": 64, "num_warps": 2}
PERSISTENT = {"template": "persistent_reduction", "block_x": 1, "num_warps": 4}
AS_CODE = {
    "flat": {"XBLOCK": 512, "num_warps": 2, "num_stages": 1},
    "tiled": {"XBLOCK": 32, "YBLOCK": 64, "num_warps": 8, "num_stages": 1},
    "looped": {"XBLOCK": 2, "R0_BLOCK": 64, "num_warps": 2, "num_stages": 1},
    "persistent": {"XBLOCK": 1, "num_warps": 4, "num_stages": 1},
}
Program = tuple[Callable[..., Any], list[Input]]
GELU: Program = (gelu, [Input((8192, 1536))])
TRANSPOSE: Program = (lambda x, y: x.transpose(1, 2) + y, [Input((64, 128, 384)), Input((64, 384, 128))])
SOFTMAX: Program = (lambda x: torch.softmax(x.float(), -1), [Input((8192, 128))])
NORM: Program = (lambda x: layer_norm(x, (768,)), [Input((8192, 768))])
LONG: Program = (lambda x: x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True)), [Input((2048, 4096))])
SHORT: Program = (LONG[0], [Input((8192, 128))])
ROTARY: Program = (
    lambda x, cosine, sine: x * cosine + torch.cat((-x.chunk(2, -1)[1], x.chunk(2, -1)[0]), -1) * sine,
    [Input((1, 32, 2048, 128)), Input((2048, 128)), Input((2048, 128))],
)
ADDED: Program = (lambda x, y: (x + y) * gelu(x), [Input((8192, 1536)), Input((8192, 1536))])
MIXED: Program = (
    lambda x, y: (x.transpose(1, 2) + y).float().square().sum(-1),
    [Input((8, 96, 8192)), Input((8, 8192, 96))],
)
COLUMNS: Program = (lambda x: x.float().sum(0), [Input((128, 8192))])


def kernels(program: Program) -> list[dict[str, int] | str]:
    """The fixed config of each kernel, or Inductor's name of its heuristics."""
    return [config_in(source) for source in lower(program[0], *program[1]).triton_kernels]


def config_in(source: str) -> dict[str, int] | str:
    (heuristics,) = re.findall(r"@triton_heuristics\.(\w+)\(", source)
    if heuristics != "fixed_config":
        return str(heuristics)
    found = re.search(r"config=\{(.*?)\}", source)
    assert found is not None
    return {name: int(value) for name, value in re.findall(r"'(\w+)': (\d+)", found[1])}


def recorded(program: Program) -> tuple[list[dict[str, int] | str], dict[GeneratedKernel, int]]:
    """The same, and what the receipt has about generated kernels."""
    with recorder.collecting() as collected:
        found = kernels(program)
    return found, {each: calls for device in collected.devices.values() for each, calls in device.generated.items()}


def why_left(program: Program) -> str:
    """Why the only kernel of a program is left to Inductor, which decides about it."""
    (found,), noted = recorded(program)
    assert isinstance(found, str)
    ((kernel, calls),) = noted.items()
    assert (calls, kernel.config, kernel.tier) == (1, "", "")
    return kernel.reason


EVERYTHING = ({"op": "pointwise", "variant": "flat", "configs": [FLAT]}, {"op": "pointwise", "configs": [TILED]})


def use_all(rows: Rows, reduction: dict[str, Any] = LOOPED) -> None:
    """Rows for all kernels."""
    rows(*EVERYTHING, {"op": "reduction", "configs": [reduction]})


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(
    ("program", "reduction", "expected"),
    [
        pytest.param(GELU, LOOPED, "flat", id="pointwise"),
        pytest.param(TRANSPOSE, LOOPED, "tiled", id="tiles"),
        pytest.param(LONG, LOOPED, "looped", id="looped"),
        pytest.param(NORM, PERSISTENT, "persistent", id="persistent"),
        pytest.param(SHORT, LOOPED, "looped", id="looped instead of persistent"),
        pytest.param(LONG, PERSISTENT, "persistent", id="persistent instead of looped"),
        pytest.param(COLUMNS, PERSISTENT, "persistent", id="columns"),
    ],
)
def test_row_becomes_the_kernel(
    program: Program, reduction: dict[str, Any], expected: str, rows: Rows, tmp_path: Path
) -> None:
    """A row's config is the one config in the kernel's code, Triton compiles it for sm_90, and it is recorded."""
    use_all(rows, reduction)
    with recorder.collecting() as collected:
        sources = lower(program[0], *program[1]).triton_kernels
    assert [config_in(source) for source in sources] == [AS_CODE[expected]] * len(sources)
    if expected in ("looped", "persistent"):
        assert ["for r0_offset in" in source for source in sources] == [expected == "looped"] * len(sources)
    for source in sources:
        compile_triton(source, tmp_path)
    (device,) = collected.devices.values()
    assert device.generated.total() == len(sources)
    assert {(each.tier, each.reason) for each in device.generated} == {("user", "")}
    assert (device.calls, device.no_choice, device.skipped, collected.counts.total_predictions) == (0, {}, {}, 0)


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(
    ("program", "problem"),
    [
        pytest.param(GELU, "pointwise flat x 12582912", id="pointwise"),
        pytest.param(TRANSPOSE, "pointwise tiled-x x 384 y 8192 loads 2", id="tiles"),
        pytest.param(SOFTMAX, "reduction inner x 8192 r 128", id="rows"),
        pytest.param(COLUMNS, "reduction outer x 8192 r 128", id="columns"),
        pytest.param(ROTARY, "pointwise flat x 8388608 loads 5", id="loads"),
        pytest.param(ADDED, "pointwise flat x 12582912 loads 2", id="a buffer that is read twice"),
        pytest.param(MIXED, "reduction mixed x 65536 r 96", id="mixed"),
    ],
)
def test_the_problem_is_read_off_the_kernel(program: Program, problem: str, rows: Rows) -> None:
    """Sizes and variant are Inductor's; without a row nothing is answered, and the receipt says so."""
    rows({"op": "mm", "configs": [{"template": "aten"}]})
    (found,), noted = recorded(program)
    assert isinstance(found, str)
    assert [(str(each.problem), each.reason) for each in noted] == [(problem, "no table and no model answers")]


SETTINGS = [
    *("coordinate_descent_tuning", "max_autotune", "max_autotune_pointwise", "deterministic"),
    *("triton.cooperative_reductions", "triton.force_cooperative_reductions", "triton.multi_kernel"),
    *("triton.use_block_ptr", "triton.use_tensor_descriptor", "triton.native_matmul", "batch_invariant"),
    "test_configs.force_filter_reduction_configs",
]


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize("setting", SETTINGS)
def test_inductors_settings_win(setting: str, rows: Rows) -> None:
    """A setting of Inductor's that says something about these kernels leaves them to Inductor."""
    use_all(rows)
    if "batch" in setting and not hasattr(inductor_config, setting):
        pytest.skip("this release has no such setting")
    with inductor_config.patch({setting: 1 if setting.endswith("kernel") else True}):
        assert why_left(GELU) == f"Inductor's setting {setting} decides"


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize("settings", [{"generated": False}, {"policy": "off"}, {"default_mode": False}], ids=str)
def test_our_settings_turn_it_off(settings: dict[str, Any], rows: Rows) -> None:
    """Nothing is answered or recorded."""
    use_all(rows)
    with diode_lut.config.patch(**settings):
        assert recorded(GELU) == (["pointwise"], {})
    assert kernels(GELU) == [AS_CODE["flat"]]


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(("program", "reduction"), [(LONG, LOOPED), (NORM, PERSISTENT)], ids=("one", "several"))
def test_hint_is_asked_no_more_often(program: Program, reduction: dict[str, Any], rows: Rows) -> None:
    """With a row, the hint of a kernel with one reduction or several is computed no more often than without the hook.

    A fixed config spares Inductor its own questions.
    """
    use_all(rows, reduction)
    inductors, asked = SIMDKernelFeatures.get_reduction_hint, []

    def hint(features: SIMDKernelFeatures, tiling_scores: Any = None) -> Any:
        asked.append(features)
        return inductors(features, tiling_scores)

    with mock.patch.object(SIMDKernelFeatures, "get_reduction_hint", hint):
        with diode_lut.config.patch(policy="off"):
            assert isinstance(kernels(program)[0], str)
        without = len(asked)
        assert isinstance(kernels(program)[0], dict)
    assert 0 < len(asked) - without <= without


@pytest.mark.usefixtures("h200")
def test_nothing_verifies_it(rows: Rows) -> None:
    """With the policy verify, which is for configs that are timed against Inductor's, Inductor decides."""
    use_all(rows)
    with diode_lut.config.patch(policy="verify"):
        assert why_left(GELU) == "nothing verifies a config of a generated kernel"


@pytest.mark.usefixtures("h200")
def test_miss_is_an_error_beside_rows_of_ones_own(rows: Rows) -> None:
    """With the setting strict, a kernel without an answer, or whose configs cannot run, is an error with the remedy."""
    with diode_lut.config.patch(strict=True):
        rows({"op": "pointwise", "configs": [TILED]})
        for program, why in ((SOFTMAX, "no table and no model answers"), (GELU, "no config of .* can run")):
            with pytest.raises(MissError, match=rf"{why}, which the setting strict forbids.* tune -- PROGRAM"):
                kernels(program)
        rows({"op": "pointwise", "variant": "flat", "configs": [{"template": "default"}]}, *EVERYTHING[1:])
        assert kernels(GELU) == ["pointwise"]
        assert kernels(TRANSPOSE) == [AS_CODE["tiled"]]


@pytest.mark.usefixtures("h200")
def test_miss_is_no_error_elsewhere(rows: Rows) -> None:
    """Strict is not about kernels if no row of one's own is for any, nor about those that no row could change."""
    with diode_lut.config.patch(strict=True):
        rows({"op": "mm", "configs": [{"template": "aten"}]})
        assert why_left(GELU) == "no table and no model answers"
        rows({"op": "reduction", "configs": [LOOPED]})
        assert why_left((gelu, [Input((8192, 1536), dynamic=(0,))])) == NOT_FOR_ALL
        with diode_lut.config.patch(generated=False):
            assert kernels(GELU) == ["pointwise"]


@pytest.mark.usefixtures("h200")
def test_miss_is_an_error_beside_a_function(rows: Rows) -> None:
    """A function that is registered for generated kernels counts as rows of one's own do."""
    rows({"op": "mm", "configs": [{"template": "aten"}]})
    for generated in (False, True):
        registered = diode_lut.register_chooser(lambda *_: None, name="none", digest="1", generated=generated)
        forbidden: AbstractContextManager[Any]
        forbidden = pytest.raises(MissError, match="no table and no model answers") if generated else nullcontext()
        with registered, diode_lut.config.patch(strict=True, tiers=("user", "chooser")), forbidden:
            assert kernels(GELU) == ["pointwise"]


def test_miss_is_an_error_beside_a_model(tmp_path: Path) -> None:
    """A model of one's own that ranks configs of generated kernels counts as rows do, and a shipped one does not."""
    shipped = read_model(find_path("nvidia-h100.mlp"))
    parts = (shipped.hardware, shipped.weights, shipped.candidates, shipped.kinds, shipped.calibration, shipped.split)
    for ranks, kernels_of_model in ((False, None), (True, KernelModel(shipped.hardware, ()))):
        own = tmp_path / f"{ranks}.mlp.safetensors"
        write_model(Model(*parts, kernels=kernels_of_model), own)
        for tables, expected in (((), False), ((str(own),), ranks)):
            with diode_lut.config.patch(tables=tables, tiers=("user", "model")):
                assert sources_for(shipped.hardware, diode_lut.config, ()).has_own_kernels is expected


LEFT: dict[str, tuple[Program, str]] = {
    "a size is known when it runs": ((gelu, [Input((8192, 1536), dynamic=(0,), unbacked=True)]), "it indexes with 64"),
    "rows of tiles change": (
        (TRANSPOSE[0], [Input((64, 128, 384), dynamic=(0,)), Input((64, 384, 128), dynamic=(0,))]),
        OTHERS_CHANGE,
    ),
    "r changes": ((SOFTMAX[0], [Input((8192, 128), dynamic=(1,), most=512)]), OTHERS_CHANGE),
    "64 bits for many rows": ((gelu, [Input((1 << 16, 1 << 16), dynamic=(0,), most=1 << 17)]), "it indexes with 64"),
    "scan": ((lambda x: x.cumsum(-1), [Input((128, 512))]), "Inductor decides about override_cooperative_reduction"),
    "sort": ((lambda x: x.sort(-1)[0], [Input((128, 64), torch.float32)]), "Inductor decides about override_coop"),
    "split scan": ((lambda x: x.cumsum(-1), [Input((1, 1 << 20))]), "it is a TritonSplitScanKernel"),
    "64 bits": ((gelu, [Input((1 << 16, 1 << 16))]), "it indexes with 64 bits"),
    "float64": ((gelu, [Input((8192, 1536), torch.float64)]), HAS_FLOAT64),
    "a sum in float64": ((lambda x: x.double().sum(-1), [Input((8192, 1536), torch.float32)]), HAS_FLOAT64),
}


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize("case", LEFT)
def test_left_to_inductor(case: str, rows: Rows) -> None:
    """Where Inductor decides about a kernel, or it has 64 bits, or sizes may change, no table is asked."""
    use_all(rows)
    program, reason = LEFT[case]
    _, noted = recorded(program)
    assert any(each.reason.startswith(reason) for each in noted), noted
    assert all(each.reason for each in noted if each.problem.op == ("pointwise" if program[0] is gelu else "reduction"))


UNLIKE: dict[str, tuple[Program, str]] = {
    "added to memory": (
        (
            lambda x, index, y: x.clone().index_put_((index,), y.t(), accumulate=True),
            [Input((4096, 512), torch.float32), Input((8192,), torch.int64), Input((512, 8192), torch.float32)],
        ),
        ADDS,
    ),
    "a sum added to memory": (
        (
            lambda x, index, y: x.clone().index_put_((index,), y.sum(1), accumulate=True),
            [Input((4096,), torch.float32), Input((8192,), torch.int64), Input((8192, 512), torch.float32)],
        ),
        ADDS,
    ),
    "float8": (
        (lambda x, y: (x.t() + y).to(torch.float8_e4m3fn), [Input((2048, 4096)), Input((4096, 2048))]),
        WRITES_FLOAT8,
    ),
}


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize("case", UNLIKE)
def test_tiles_unlike_those_that_were_timed(case: str, rows: Rows) -> None:
    """Tiles and sums that are added to memory, and tiles written in float8, are left to Inductor."""
    use_all(rows)
    program, reason = UNLIKE[case]
    with inductor_config.patch({"triton.prefer_nd_tiling": True}):
        _, noted = recorded(program)
    assert [each.reason for each in noted if each.problem.variant != "flat"] == [reason]


@pytest.mark.usefixtures("h200")
def test_two_dimensions_beside_each_other(rows: Rows) -> None:
    """A reduction of a tile is left to Inductor."""
    use_all(rows)
    with inductor_config.patch({"triton.prefer_nd_tiling": True, "triton.tile_reductions": True}):
        _, noted = recorded((lambda x: x.sum((1, 2)), [Input((512, 64, 64), stride=(8192, 128, 1))]))
    assert any(each.reason.startswith("it has the dimensions r0_, r1_") for each in noted), noted


def mixed(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x * y).sum(1), (x + y).sum(0)


@pytest.mark.usefixtures("h200")
def test_reductions_of_two_orders_in_one_kernel(rows: Rows) -> None:
    """Inductor decides about kernels that reduce rows and columns."""
    use_all(rows, PERSISTENT)
    with inductor_config.patch({"triton.mix_order_reduction": True}):
        _, noted = recorded((mixed, [Input((1 << 15, 768)), Input((1 << 15, 768))]))
    reason = "Inductor decides about mix_order_reduction, override_persistent_reduction"
    assert reason in {each.reason for each in noted}


@pytest.mark.usefixtures("h200")
def test_several_kernels_in_one(rows: Rows) -> None:
    """A kernel for a list of tensors is Inductor's."""
    use_all(rows)
    found, noted = recorded((lambda x, y: torch._foreach_add([x, y], 1), [Input((64, 64)), Input((32, 32))]))
    assert (found, noted) == (["foreach"], {})


@pytest.mark.usefixtures("h200")
def test_combo_kernels_are_inductors(rows: Rows) -> None:
    """With ``combo_kernels``, reductions beside each other become one kernel, about which nothing is asked."""
    use_all(rows, PERSISTENT)
    program = (lambda x, y: (x.float().sum(-1), y.float().sum(-1)), [Input((512, 640)), Input((100, 800))])
    assert kernels(program) == [AS_CODE["persistent"]] * 2
    with inductor_config.patch(combo_kernels=True):
        assert recorded(program) == (["persistent_reduction"], {})


@pytest.mark.usefixtures("h200")
def test_sizes_change_for_some_kernels(rows: Rows) -> None:
    """A kernel of a graph whose sizes may change has the row for its own sizes if they are fixed."""
    rows({"op": "pointwise", "x": [80_000, 80_000], "configs": [FLAT]})
    program = (lambda x, y: (x.relu(), y.relu()), [Input((100, 640), dynamic=(0,), most=512), Input((100, 800))])
    assert kernels(program) == ["pointwise", AS_CODE["flat"]]


def any_number(program: Program, count: int = 4096, most: int | None = 8192) -> Program:
    """The program with a number of rows that may change, and is first ``count``."""
    (only,) = program[1]
    return program[0], [only._replace(shape=(count, *only.shape[1:]), dynamic=(0,), most=most)]


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize("most", [8192, None])
@pytest.mark.parametrize(
    ("program", "reduction", "expected"),
    [(GELU, LOOPED, "flat"), (LONG, LOOPED, "looped"), (NORM, PERSISTENT, "persistent"), (SHORT, LOOPED, "looped")],
)
def test_row_for_all_sizes_in_a_range(
    program: Program, reduction: dict[str, Any], expected: str, most: int | None, rows: Rows, tmp_path: Path
) -> None:
    """A row without sizes is also for kernels of which x may change, and the receipt has the range."""
    use_all(rows, reduction)
    with recorder.collecting() as collected:
        (source,) = lower(program[0], *any_number(program, most=most)[1]).triton_kernels
    assert config_in(source) == AS_CODE[expected]
    compile_triton(source, tmp_path)
    ((kernel, calls),) = (pair for device in collected.devices.values() for pair in device.generated.items())
    assert (calls, kernel.reason) == (1, "")
    factor = program[1][0].shape[1] if program is GELU else 1
    assert kernel.over.startswith(f"x from {2 * factor}" + (f" to {most * factor}" if most else ""))


PART, REST = {"op": "reduction", "x": [1, 500]}, {"op": "reduction", "x": [501, 8192]}
OTHER = {**PERSISTENT, "num_warps": 8}


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(
    ("entries", "largest"),
    [
        pytest.param([{**PART, "configs": [PERSISTENT]}], 500, id="no row for the rest"),
        pytest.param([{**PART, "configs": [PERSISTENT]}, {**REST, "configs": [OTHER]}], 500, id="another config"),
        pytest.param(
            [{**PART, "configs": [PERSISTENT]}, {**REST, "x": [502, 8192], "configs": [PERSISTENT]}], 500, id="gap"
        ),
        pytest.param(
            [{"op": "reduction", "configs": [PERSISTENT]}, {"op": "reduction", "x": [77, 77], "configs": [OTHER]}],
            76,
            id="another config for one size",
        ),
        pytest.param(
            [{**PART, "configs": [PERSISTENT, OTHER]}, {**REST, "configs": [PERSISTENT]}], 8192, id="the same"
        ),
    ],
)
def test_rows_for_parts_of_a_range(entries: list[dict[str, Any]], largest: int, rows: Rows) -> None:
    """Rows that differ in the config, or leave a gap, are not for the whole range, whatever size comes first."""
    rows(*entries)
    for first in (16, 4096):
        program = any_number(NORM, first)
        if largest == 8192:
            assert kernels(program) == [AS_CODE["persistent"]]
        else:
            assert why_left(program) == NOT_FOR_ALL
    assert kernels(any_number(NORM, 16, largest)) == [AS_CODE["persistent"]]
    if largest < 8192:
        assert why_left(any_number(NORM, 16, largest + 1)) == NOT_FOR_ALL


@pytest.mark.usefixtures("h200")
def test_rows_that_lose_in_a_part_of_a_range(rows: Rows) -> None:
    """The least gain counts, as if a single row had it."""
    for gain, expected in ((985, AS_CODE["persistent"]), (900, "persistent_reduction")):
        gains = [{**PERSISTENT, "gain_permille": 1500}], [{**PERSISTENT, "gain_permille": gain}]
        rows({**PART, "configs": gains[0]}, {**REST, "configs": gains[1]})
        assert kernels(any_number(NORM)) == [expected]


def test_model_for_all_sizes_in_a_range() -> None:
    """The shipped model has a config for reductions of rows and flat work, whatever size comes first, in each range."""
    with fake_cuda(H100), diode_lut.config.patch(tiers=("model",)):
        for program in (NORM, LONG, SHORT, GELU):
            found = [kernels(any_number(program, count)) for count in (16, 4096)]
            assert isinstance(found[0][0], dict)
            assert found[0] == found[1]
        assert why_left((COLUMNS[0], [Input((128, 4096), dynamic=(1,), most=8192)])) == NOT_FOR_ALL
        assert why_left(any_number((LONG[0], [Input((64, 1 << 15))]))) == NOT_FOR_ALL
        assert kernels(any_number(LONG, 16, 16)) != kernels(any_number(LONG))


@pytest.mark.usefixtures("h200")
def test_function_for_all_sizes_in_a_range(rows: Rows) -> None:
    """A function is asked at the ends of the range and at powers of two, and has to return the same for all."""
    rows({"op": "mm", "configs": [{"template": "aten"}]})
    asked: list[int] = []

    def choose(problem: Any, _: Any) -> Any:
        asked.append(problem.x)
        return Config.make("persistent_reduction", {"block_x": 1, "num_warps": 4 if problem.x < limit else 8})

    for limit, expected in ((1 << 20, AS_CODE["persistent"]), (100, "persistent_reduction")):
        registered = diode_lut.register_chooser(choose, name="mine", digest=str(limit), generated=True)
        with registered, diode_lut.config.patch(tiers=("user", "chooser")):
            assert kernels(any_number(NORM, 16, 500)) == [expected]
    assert asked[:3] == [2, 500, 4]
    assert max(asked) == 500


@pytest.mark.usefixtures("h200")
def test_code_for_benchmarks_of_a_kernel(rows: Rows) -> None:
    """Kernels with code to benchmark them have the row's config."""
    use_all(rows)
    with inductor_config.patch(benchmark_kernel=True):
        assert kernels(GELU) == [AS_CODE["flat"]]


@pytest.mark.usefixtures("h200")
def test_settings_for_a_node_win(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Inductor tunes a kernel because of what it was before, as since torch 2.12, it decides."""
    use_all(rows)
    patches = {"coordinate_descent_tuning": True}
    monkeypatch.setattr(ir.ComputedBuffer, "get_config_patches", lambda _: patches, raising=False)
    assert why_left(GELU) == "Inductor sets coordinate_descent_tuning for it"


@pytest.mark.usefixtures("h200")
def test_order_of_a_sum_wins(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Inductor plans in which order a sum adds, as since torch 2.15, it decides."""
    use_all(rows)
    monkeypatch.setattr(SIMDKernelFeatures, "strict_reduction_rblock", lambda _: 1024, raising=False)
    assert why_left(SOFTMAX) == "Inductor decides in which order it adds"


@pytest.mark.usefixtures("h200")
def test_rocm_is_left_to_inductor(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """On AMD's GPUs nothing is answered."""
    use_all(rows)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert recorded(GELU) == (["pointwise"], {})


CANNOT: dict[str, tuple[Program, dict[str, Any], str]] = {
    "no tiles": (GELU, TILED, "has no y"),
    "tiles": (TRANSPOSE, FLAT, "has a y"),
    "registers": (NORM, {**PERSISTENT, "block_x": 32}, "elements in a block"),
    "long r": ((LONG[0], [Input((1024, 1 << 14))]), PERSISTENT, "a persistent reduction keeps r up to"),
    "exact sums": ((LONG[0], [Input((1024, 1 << 14))]), {**LOOPED, "block_r": 32}, "in steps of 32 (allowed: from 64)"),
    "float8": (
        (lambda x: x.to(torch.float8_e5m2), [Input((512, 512))]),
        {**FLAT, "block_x": 128},
        "a thread that converts float8 needs 4 elements",
    ),
    "from float8": (
        (lambda x: x.float() + 1, [Input((512, 512), torch.float8_e4m3fn)]),
        {**FLAT, "block_x": 64},
        "a thread that converts float8 needs 2 elements",
    ),
}


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize("case", CANNOT)
def test_config_that_cannot_run_gives_way(case: str, rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    """The next config of the row is taken, with a warning; without another, Inductor decides."""
    program, bad, reason = CANNOT[case]
    op = "pointwise" if bad["template"] == "pointwise" else "reduction"
    kept = PERSISTENT if case == "registers" else {**LOOPED, "num_warps": 4}
    good = kept if op == "reduction" else {**(TILED if case == "tiles" else FLAT), "num_warps": 4}
    rows({"op": op, "configs": [bad, good], "note": case})
    (found,) = kernels(program)
    assert isinstance(found, dict)
    assert found["num_warps"] == 4
    assert reason in caplog.text
    rows({"op": op, "configs": [bad]})
    assert why_left(program).startswith("no config of ")


def test_shared_memory_of_a_small_gpu(rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    """A tile of 16,384 int64 may not fit an L4's shared memory, through which its elements change hands."""
    large = {"template": "pointwise", "block_x": 128, "block_y": 128, "num_warps": 8}
    hardware = {"name": "NVIDIA L4", "arch": "sm_89", "sm_count": 58}
    rows({"op": "pointwise", "configs": [large, TILED]}, hardware=hardware)
    inputs = [Input(each.shape, torch.int64) for each in TRANSPOSE[1]]
    with fake_cuda(L4):
        assert kernels((TRANSPOSE[0], inputs)) == [AS_CODE["tiled"]]
        assert kernels(TRANSPOSE) != [AS_CODE["tiled"]]
    assert "bytes of shared memory" in caplog.text


@pytest.mark.usefixtures("h200")
def test_persistent_reductions_are_off(rows: Rows) -> None:
    """Inductor's setting keeps reductions in loops."""
    use_all(rows, PERSISTENT)
    with inductor_config.patch({"triton.persistent_reductions": False}):
        assert kernels(SHORT) == ["reduction"]
        use_all(rows)
        assert kernels(SHORT) == [AS_CODE["looped"]]


@pytest.mark.parametrize("program", [NORM, MIXED, TRANSPOSE, ROTARY], ids=["norm", "mixed", "tiles", "rotary"])
def test_model_answers_where_no_row_does(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    """The shipped model of the device ranks configs, and the first that can run is taken, without a warning."""
    with fake_cuda(H100), diode_lut.config.patch(tiers=("model",)):
        found, noted = recorded(program)
    assert all(isinstance(each, dict) for each in found)
    assert {kernel.tier for kernel in noted} == {"model"}
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.usefixtures("h200")
def test_default_is_inductors(rows: Rows) -> None:
    """A row that says ``default`` is an answer: Inductor decides."""
    rows({"op": "pointwise", "configs": [{"template": "default"}]})
    found, noted = recorded(GELU)
    assert found == ["pointwise"]
    assert [(each.config, each.tier) for each in noted] == [("default", "user")]


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(
    ("permille", "min_gain", "expected"),
    [(996, 0.0, AS_CODE["flat"]), (996, 0.01, "pointwise"), (900, 0.0, "pointwise")],
)
def test_small_loss_is_no_reason_to_benchmark(rows: Rows, permille: int, min_gain: float, expected: object) -> None:
    """A row's config that is about as fast as Inductor's first is taken, unless the user wants a gain."""
    rows({"op": "pointwise", "configs": [{**FLAT, "gain_permille": permille}]})
    with diode_lut.config.patch(min_gain=min_gain):
        assert kernels(GELU) == [expected]


class Fixing(InductorChoices):
    """The handler of another library, which fixes configs."""

    def uuid(self) -> str:
        return "fixing"

    def triton_kernel_kwargs(self, kernel_cls: Any, features: Any, groups: Any, kernel_kwargs: Any) -> Any:
        return {**kernel_kwargs, "fixed_config": FixedTritonConfig({"XBLOCK": 64, "num_warps": 1, "num_stages": 1})}


@pytest.mark.usefixtures("h200")
def test_another_handlers_config_stays(rows: Rows) -> None:
    """A handler below ours that has fixed a config keeps it."""
    from torch._inductor.virtualized import V

    from diode_lut.hook.handler import on_top_of

    use_all(rows)
    with V.set_choices_handler(on_top_of(Fixing())):
        assert kernels(GELU) == [{"XBLOCK": 64, "num_warps": 1, "num_stages": 1}]


@pytest.mark.usefixtures("h200")
def test_failure_is_a_warning(rows: Rows, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An error in the hook costs the config, not the compile."""
    use_all(rows)

    def fail(*_: object) -> int:
        raise ValueError("a test")

    monkeypatch.setattr("diode_lut.hook.generated.is_plain", fail)
    assert kernels(GELU) == ["pointwise"]
    assert "a generated kernel is left to Inductor: ValueError: a test" in caplog.text


@pytest.mark.usefixtures("h200")
def test_one_row_of_a_persistent_reduction_keeps_x(rows: Rows) -> None:
    """A kernel that computes with its indices compiles with one row, for which Inductor would leave x out."""
    rows({"op": "reduction", "configs": [PERSISTENT]})

    (source,) = lower(lambda x: torch.softmax(x.float().tril(), -1), Input((128, 128))).triton_kernels
    assert config_in(source) == AS_CODE["persistent"]
    assert "xindex = xoffset + tl.arange(0, XBLOCK)[:, None]" in source


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(("rows_of_tiles", "masked"), [(65_534, False), (65_537, True), (65_538, True)])
def test_grid_along_y_is_masked(rows_of_tiles: int, masked: bool, rows: Rows) -> None:
    """Beyond 65,535 programs along y, some are outside of the tensors, even if a block has one row."""
    rows({"op": "pointwise", "configs": [{**TILED, "block_y": 1}]})
    shapes = (1, rows_of_tiles, 96), (1, 96, rows_of_tiles)
    (source,) = lower(
        lambda x, y: x.transpose(1, 2) + y, *(Input(shape, torch.float32) for shape in shapes)
    ).triton_kernels
    assert config_in(source) == {**AS_CODE["tiled"], "YBLOCK": 1}
    assert ("ymask = yindex < ynumel" in source) == masked


@pytest.mark.usefixtures("h200")
def test_several_reductions_keep_the_form(rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    """A softmax stays persistent. Rows are for kernels with one reduction too, so there is no warning."""
    rows({"op": "reduction", "configs": [LOOPED, PERSISTENT]})
    assert kernels(SOFTMAX) == [AS_CODE["persistent"]]
    assert "cannot run" not in caplog.text
    rows({"op": "reduction", "configs": [LOOPED]})
    assert why_left(SOFTMAX).startswith("no config of ")


@pytest.mark.usefixtures("h200")
def test_trace_has_an_artifact_for_each_kernel(rows: Rows, artifacts: Artifacts) -> None:
    """What ``TORCH_TRACE`` writes says what was decided for a kernel, or why Inductor decides."""
    use_all(rows)
    kernels(GELU)
    with inductor_config.patch(coordinate_descent_tuning=True):
        kernels(GELU)
    (decided, left) = (payload for name, payload in artifacts.found if name == "diode_lut_decision")
    assert (decided["tier"], len(decided["inductor_gets"])) == ("user", 1)
    assert decided["problem"] == left["problem"]
    assert left["steps"] == ["left to Inductor: Inductor's setting coordinate_descent_tuning decides"]


@pytest.mark.usefixtures("h200")
def test_config_that_cannot_run_is_told_once(rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    """Several kernels that a row's config does not fit have one warning."""
    rows({"op": "pointwise", "configs": [{**TILED, "num_warps": 16}, FLAT]})
    for size in (512, 1024):
        assert kernels((gelu, [Input((size, 1536))])) == [AS_CODE["flat"]]
    assert caplog.text.count("cannot run") == 1


TRANSFORMER = """
import sys, torch, diode_lut
from torch.nn.functional import gelu, layer_norm
from tests.fake_cuda import Input, fake_cuda, lower

def layer(x, y, z):
    x = layer_norm(x + y, (384,))
    return layer_norm(gelu(x) + y, (384,)), torch.softmax(z.float() * 0.2, -1).half(), x.transpose(1, 2) + 1

hidden = Input((64, 128, 384))
with fake_cuda(), diode_lut.config.patch(tables=(sys.argv[1],), tiers=("user",)):
    print(*lower(layer, hidden, hidden, Input((64, 12, 128, 128))).triton_kernels, sep="\\n")
"""
"""Prints the kernels of a layer's norms, softmax and transpose."""


@pytest.mark.slow
@pytest.mark.usefixtures("h200")
def test_processes_have_the_same_kernels(rows: Rows) -> None:
    """Fresh processes that hash text differently generate the same code, with the rows' configs alone."""
    use_all(rows, PERSISTENT)
    (path,) = diode_lut.config.tables
    command = [sys.executable, "-c", TRANSFORMER, path]
    first, second = (
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        for seed in "12"
    )
    assert set(re.findall(r"@triton_heuristics\.(\w+)\(", first)) == {"fixed_config"}
    assert first == second
