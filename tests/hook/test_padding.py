"""Padding on a CUDA device that is not there: who decides on it, and which kernel multiplies the padded operands."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.fx_passes import pad_mm
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import diode_lut
from diode_lut.hook.patches import PATCHES, replacement
from diode_lut.model import Kind
from diode_lut.model.weights import write_model
from diode_lut.receipts import recorder
from diode_lut.templates.config import Config
from tests.fake_cuda import Input, Lowered, lower
from tests.model import small

pytestmark = pytest.mark.usefixtures("h200", "asked")

Rows = Callable[..., None]

ATEN = {"template": "aten"}
TILES = {"block_m": 64, "block_n": 128, "block_k": 64, "group_m": 8, "num_stages": 3, "num_warps": 4}
MM, BMM, TMA = ({"template": f"triton_{name}", **TILES} for name in ("mm", "bmm", "mm_persistent_tma"))
OTHER = {**MM, "block_m": 32}

A, B = Input((1000, 77)), Input((77, 504))  # only K is odd: Python cannot slice a tensor that is not there
SHAPES = ((1000, 77), (77, 504), (1000, 504))
PADDED = "constant_pad_nd"

OPS: dict[str, tuple[Callable[..., Any], list[Input], dict[str, Any]]] = {
    "mm": (torch.mm, [A, B], MM),
    "addmm": (torch.addmm, [Input((504,)), A, B], MM),
    "bmm": (torch.bmm, [Input((4, 1000, 77)), Input((4, 77, 504))], BMM),
    "linear": (lambda x, w: x @ w.t(), [A, Input((504, 77))], MM),
    "persistent TMA": (torch.mm, [A, B], TMA),
    "float32": (torch.mm, [Input((1000, 77), torch.float32), Input((77, 504), torch.float32)], MM),
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ops for which Inductor's benchmark is asked, which needs a device; here it pads."""
    ops: list[str] = []

    def benchmark(match: Any, mat1: Any, mat2: Any, op: Any, input: Any = None) -> bool:  # noqa: A002
        ops.append(op.__name__)
        return True

    patch = next(patch for patch in PATCHES if patch.name == "_should_pad")
    monkeypatch.setattr(pad_mm, "_should_pad", replacement(patch, benchmark))
    return ops


def compiled(function: Callable[..., Any], *inputs: Input) -> Lowered:
    return lower(function, *inputs, joint=True)


def padded_to(config: dict[str, Any], pad: int) -> dict[str, Any]:
    return {**config, "pad": pad}


@pytest.mark.parametrize("op", OPS)
def test_a_row_has_operands_padded(op: str, mode: str, rows: Rows, asked: list[str]) -> None:
    """Without a benchmark the operands are padded, the row's kernel multiplies them, and that is one prediction."""
    function, inputs, config = OPS[op]
    rows(
        {"align": 2, "configs": [padded_to(config, 4 if op == "float32" else 8), ATEN]},
        {"align": 16, "configs": [ATEN]},
    )
    with diode_lut.profile_predictions() as counts:
        lowered = compiled(function, *inputs)
    assert PADDED in lowered.code
    assert len(lowered.triton_templates) == 1
    assert (lowered.extern, asked) == ([], [])
    assert (counts.total_predictions, counts.hits["user"], counts.skipped_configs) == (1, 1, 0)


@pytest.mark.parametrize("answer", [[], [{"configs": [MM]}]], ids=["a miss", "a row"])
@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("op", ["mm", "bmm"])
def test_rows_alone_are_not_padded(
    op: str, dtype: torch.dtype, answer: list[dict[str, Any]], rows: Rows, asked: list[str]
) -> None:
    """Padding M of a row-major A aligns nothing, so that nothing is benchmarked. With a column-major A it does."""
    rows(*answer)
    batch = (4,) * (op == "bmm")
    torch.set_float32_matmul_precision("high")
    lowered = compiled(torch.matmul, Input((*batch, 101, 512), dtype), Input((*batch, 512, 504), dtype))
    assert (PADDED in lowered.code, asked) == (False, [])
    with FakeTensorMode():
        a, b = (torch.empty((*batch, *shape), device="cuda:0", dtype=dtype) for shape in ((512, 101), (512, 504)))
    assert pad_mm._should_pad(SimpleNamespace(nodes=[]), a.mT, b, getattr(torch.ops.aten, op))
    assert asked == [op]


@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("answer", [[], [{"dtype": "float32", "configs": [ATEN]}]], ids=["a miss", "a row"])
def test_float32_without_tensor_cores_is_not_padded(
    tf32: bool, answer: list[dict[str, Any]], rows: Rows, asked: list[str]
) -> None:
    """Alignment is for tensor cores. With TF32 Inductor's benchmark finds out."""
    rows(*answer)
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    lowered = compiled(torch.bmm, *(Input(shape, torch.float32) for shape in ((160, 352, 77), (160, 77, 352))))
    assert (PADDED in lowered.code, asked) == (tf32, ["bmm"] * tf32)


def test_receipts_have_the_padding(rows: Rows) -> None:
    """What is counted is the problem before padding, answered with the config that pads."""
    rows({"align": 2, "configs": [padded_to(MM, 8)]})
    before = counted()
    compiled(torch.mm, Input((1000, 93)), Input((93, 504)))
    problem = "mm 1000x504x93 bfloat16 nn align 2"
    assert counted() - before == {(problem, ("triton_mm 64x128x64 g8 s3 w4 pad8",)): 1}


def counted() -> Counter[tuple[str, tuple[str, ...]]]:
    """How often each problem was answered with which configs in this process."""
    devices = recorder.own_receipt().devices.values()
    hits = [(str(hit.problem), hit.configs, count) for each in devices for hit, count in each.hits.items()]
    return Counter({(problem, configs): count for problem, configs, count in hits})


def test_the_library_multiplies_padded_operands(mode: str, rows: Rows, asked: list[str]) -> None:
    """``aten`` with padding is the library's kernel on padded operands, whatever the row of the padded problem says."""
    rows({"align": 2, "configs": [padded_to(ATEN, 8)]}, {"align": 16, "configs": [MM]})
    lowered = compiled(torch.mm, A, B)
    assert PADDED in lowered.code
    assert (lowered.extern, lowered.triton_templates, asked) == (["mm"], [], [])


@pytest.mark.parametrize(("op", "biased"), [("mm", False), ("addmm", False), ("addmm", True)])
@pytest.mark.parametrize("fused", [MM, ATEN], ids=["fused", "apart"])
def test_an_epilogue_of_a_padded_matmul(
    fused: dict[str, Any], op: str, biased: bool, mode: str, rows: Rows, asked: list[str]
) -> None:
    """Behind padded operands the row of the padded problem with the epilogue decides, as behind aligned ones."""
    function, inputs, _ = OPS[op]
    inputs = [Input((1000, 504)), *inputs[1:]] if biased else inputs
    rows(
        {"align": 2, "configs": [padded_to(ATEN, 8)]},
        {"op": "mm" if biased else op, "align": 16, "epilogue": "medium" if biased else "light", "configs": [fused]},
    )
    with diode_lut.profile_predictions() as counts:
        lowered = compiled(lambda *operands: function(*operands).relu(), *inputs)
    assert PADDED in lowered.code
    assert len(lowered.triton_templates) == (fused is MM)
    assert (len(lowered.extern), asked) == (fused is ATEN, [])
    assert counts.total_predictions == counts.hits["user"] == (2 if fused is MM else 1)


def test_padded_gemms_without_epilogues(rows: Rows) -> None:
    """With the setting off, the kernel that had the operands padded runs whatever follows."""
    rows({"align": 2, "configs": [padded_to(ATEN, 8)]}, {"align": 16, "epilogue": "light", "configs": [MM]})
    with diode_lut.config.patch(epilogues=False):
        assert compiled(lambda a, b: (a @ b).relu(), A, B).extern == ["mm"]


@pytest.mark.parametrize("config", [ATEN, MM])
def test_a_row_without_padding_has_none(config: dict[str, Any], mode: str, rows: Rows, asked: list[str]) -> None:
    """Where the row's first config that can run has no padding, Inductor neither pads nor benchmarks."""
    rows({"configs": [TMA, config, padded_to(MM, 8)]})
    with diode_lut.profile_predictions() as counts:
        lowered = compiled(torch.mm, A, B)
    assert PADDED not in lowered.code
    assert (bool(lowered.triton_templates), asked) == (config is MM, [])
    assert counts.total_predictions == 1


@pytest.mark.parametrize(
    "settings", [{"tables": ()}, {"policy": "off"}, {"default_mode": False}, {"pad": False}], ids=str
)
def test_without_an_answer_inductor_decides(settings: dict[str, Any], rows: Rows, asked: list[str]) -> None:
    """Without a match, and where the settings say so, Inductor's own benchmark decides."""
    rows({"configs": [padded_to(MM, 8)]})
    with diode_lut.config.patch(**settings):
        assert PADDED in compiled(torch.mm, A, B).code
    assert asked == ["mm"]


def test_an_answer_that_has_not_compared_padding_leaves_it_to_inductor(rows: Rows, asked: list[str]) -> None:
    """Where no config of a row has padding, Inductor's own benchmark decides on it."""
    rows({"configs": [MM]})
    assert PADDED in compiled(torch.mm, A, B).code
    assert asked == ["mm"]


def test_padding_by_inductor_leaves_the_padded_problem_to_its_own_row(rows: Rows, asked: list[str]) -> None:
    """Where no row answers for the operands before padding, the row for the padded ones does."""
    rows({"align": 16, "configs": [OTHER]})
    lowered = compiled(torch.mm, A, B)
    assert "BLOCK_M : tl.constexpr = 32" in lowered.code
    assert asked == ["mm"]


def test_padding_that_a_program_does_itself(rows: Rows, asked: list[str]) -> None:
    """A program that pads as the row says gets the row's kernel; a row without padding leaves it to the aligned row."""

    def code(zeros: int) -> str:
        def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.pad(a, (0, zeros)) @ torch.nn.functional.pad(b, (0, 0, 0, zeros))

        return compiled(program, A, B).code

    rows({"align": 2, "configs": [padded_to(OTHER, 8)]}, {"align": 16, "configs": [MM]})
    assert "BLOCK_M : tl.constexpr = 32" in code(3)
    assert "BLOCK_M : tl.constexpr = 64" in code(11)
    rows({"align": 2, "configs": [ATEN]}, {"align": 16, "configs": [MM]})
    assert "BLOCK_M : tl.constexpr = 64" in code(3)
    assert asked == []


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (padded_to(MM, 16), "Inductor pads bfloat16 to multiples of 8 only"),
        (TMA, "its operands are padded to multiples of 8 already"),
    ],
)
def test_what_cannot_be_padded_gives_way(
    first: dict[str, Any], reason: str, mode: str, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """A padding that Inductor does not have, or a kernel that cannot run without one, gives way to the next config."""
    rows({"align": 2, "configs": [first, padded_to(OTHER, 8)], "note": f"{reason} {mode}"})
    with caplog.at_level(logging.WARNING, "diode_lut"):
        lowered = compiled(torch.mm, A, B)
    assert PADDED in lowered.code
    assert "BLOCK_M : tl.constexpr = 32" in lowered.code
    assert reason in caplog.text


@pytest.mark.parametrize(
    ("op", "padding", "pad", "reason"),
    [
        ("mm", False, True, "Inductor has not padded its operands"),
        ("mm", False, False, "the setting pad is off"),
        ("baddbmm", True, True, "Inductor does not pad baddbmm"),
    ],
)
def test_where_inductor_does_not_pad(
    op: str, padding: bool, pad: bool, reason: str, rows: Rows, asked: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Where Inductor does not pad, the row's next config runs on the operands as they are."""
    template = BMM if op == "baddbmm" else MM
    inputs = [Input((4, 1000, 504)), *OPS["bmm"][1]] if op == "baddbmm" else [A, B]
    rows({"align": 2, "configs": [padded_to(template, 8), {**template, "block_m": 32}], "note": reason})
    settings = diode_lut.config.patch(pad=pad)
    with settings, inductor_config.patch(shape_padding=padding), caplog.at_level(logging.WARNING, "diode_lut"):
        lowered = compiled(getattr(torch, op), *inputs)
    assert PADDED not in lowered.code
    assert "BLOCK_M : tl.constexpr = 32" in lowered.code
    assert reason in caplog.text
    assert asked == []


def test_sizes_that_need_no_padding(mode: str, rows: Rows, asked: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """A config with padding runs as it is where the sizes are multiples of it already, whatever the multiple."""
    rows({"configs": [padded_to(OTHER, 16), MM]})
    lowered = compiled(torch.mm, Input((1008, 80)), Input((80, 512)))
    assert PADDED not in lowered.code
    assert "BLOCK_M : tl.constexpr = 32" in lowered.code
    assert asked == []
    assert "cannot run" not in caplog.text


def test_force_shape_pad(rows: Rows) -> None:
    """With ``force_shape_pad`` everything is padded, also where the row has no padding."""
    rows({"align": 2, "configs": [MM]})
    with inductor_config.patch(force_shape_pad=True):
        assert PADDED in compiled(torch.mm, A, B).code


@pytest.mark.parametrize(("a", "b"), [(Input((1000, 77), dynamic=(0,)), B), (A, Input((77, 504), dynamic=(1,)))])
def test_dynamic_sizes(a: Input, b: Input, rows: Rows, asked: list[str]) -> None:
    """A dynamic M is left as it is, and the operands are padded; they are not where a row's own size is dynamic."""
    rows({"align": 2, "configs": [padded_to(MM, 8), ATEN]})
    lowered = compiled(torch.mm, a, b)
    assert (PADDED in lowered.code) == bool(a.dynamic)
    assert ("BLOCK_M : tl.constexpr = 64" in lowered.code) == bool(a.dynamic)
    assert asked == []


def test_a_row_whose_size_changes_is_not_padded(rows: Rows, asked: list[str]) -> None:
    """Inductor does not pad it, so the library's kernel, which has no constant sizes, gets the operands as they are."""
    rows({"align": 2, "configs": [padded_to(ATEN, 8), ATEN]})
    assert PADDED in compiled(torch.mm, Input((1000, 77), dynamic=(0,)), B).code
    assert PADDED not in compiled(torch.mm, A, Input((77, 504), dynamic=(1,))).code
    assert asked == []


@pytest.fixture
def model(shipped: Path, tmp_path: Path) -> Iterator[Callable[[float], None]]:
    """Puts a model in force that expects this log(time of aten with padding / time of aten), and Triton to be fast."""
    kinds = tuple(Kind("mm", "bfloat16", "nn", align, (1, 1), (1, 4096), (1, 4096), (1, 4096)) for align in (2, 16))
    candidates = Config.from_json(MM), small.BATCHED, small.ATEN
    with diode_lut.config.patch(tables=()):

        def put(log_time: float) -> None:
            path = tmp_path / "x.safetensors"
            write_model(small.model(candidates=candidates, kinds=kinds, padding=small.padding(log_time)), path)
            diode_lut.config.tables = (str(path),)

        yield put


@pytest.mark.parametrize("log_time", [-0.5, 0.5])
def test_a_model_decides_on_padding(log_time: float, model: Callable[[float], None], asked: list[str]) -> None:
    """Without a benchmark, operands are padded if that is expected to pay; the kernel is its choice either way."""
    model(log_time)
    with diode_lut.profile_predictions() as counts:
        lowered = compiled(torch.mm, A, B)
    assert (PADDED in lowered.code) == (log_time < 0)
    assert (len(lowered.triton_templates), lowered.extern, asked) == (1, [], [])
    assert (counts.total_predictions, counts.skipped_configs) == (1, 0)


def test_a_model_answers_where_nothing_may_be_padded(model: Callable[[float], None]) -> None:
    """Where a size may change so that Inductor does not pad, the answer is for the operands as they are."""
    model(-0.5)
    a = Input((1000, 77), dynamic=[1])
    with diode_lut.profile_predictions() as counts:
        lowered = compiled(torch.mm, a, Input((77, 504), dynamic=[0]))
    assert PADDED not in lowered.code
    assert (lowered.extern, counts.total_predictions) == (["mm"], 1)


@pytest.mark.parametrize("pads", [False, True])
def test_what_a_model_expects_of_padding_does_not_outweigh_rows(
    pads: bool, model: Callable[[float], None], table_file: Callable[..., Path], asked: list[str]
) -> None:
    """Where M may change, and rows without padding answer for most of its range, nothing is padded nor benchmarked."""
    model(-0.5)
    configs = [{**padded_to(MM, 8), "gain_permille": 1500}] * pads + [{**MM, "gain_permille": 1300}]
    rows = {"op": "mm", "align": 2, "m": [1, 2048], "configs": configs}
    diode_lut.config.tables = (*diode_lut.config.tables, str(table_file("rows.json", rows)))
    lowered = compiled(torch.mm, Input((1000, 77), dynamic=[0], most=4096), B)
    assert (PADDED in lowered.code, asked) == (pads, [])


def test_rows_for_parts_of_a_range_leave_operands_as_they_are(rows: Rows, asked: list[str]) -> None:
    """Where M may change, and each part of its range has its kernel, Inductor does not benchmark padding for all."""
    rows(
        {"align": 2, "m": [1, 64], "configs": [{**MM, "gain_permille": 1500}]},
        {"align": 2, "m": [65, 4096], "configs": [ATEN, {**MM, "gain_permille": 700}]},
    )
    lowered = compiled(torch.mm, Input((1000, 77), dynamic=[0], most=4096), B)
    assert (PADDED in lowered.code, asked) == (False, [])


def test_a_model_is_not_asked_about_padding_with_the_setting_off(
    model: Callable[[float], None], asked: list[str]
) -> None:
    """With ``pad=False`` Inductor's benchmark decides, and the model chooses the kernel for what it is left."""
    model(0.5)
    with diode_lut.config.patch(pad=False):
        lowered = compiled(torch.mm, A, B)
    assert asked == ["mm"]
    assert (PADDED in lowered.code, len(lowered.triton_templates)) == (True, 1)


@pytest.mark.parametrize(("k", "answered"), [(77, True), (504, True), (1000, True), (5, False)])
def test_a_matmul_with_its_gradients_is_not_padded_as_one(k: int, answered: bool, rows: Rows, asked: list[str]) -> None:
    """If a row answers for any of them, Inductor is told to ask about each alone; else its benchmark decides."""

    def program(a: torch.Tensor, b: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a @ b, gradient @ b.t(), a.t() @ gradient

    with FakeTensorMode():
        tensors = [torch.empty(*shape, device="cuda:0", dtype=torch.bfloat16) for shape in SHAPES]
        graph = make_fx(program)(*tensors).graph
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    rows({"op": "mm", "k": [k, k], "configs": [padded_to(MM, 8)]})
    match: Any = SimpleNamespace(nodes=nodes)
    assert pad_mm._should_pad(match, *tensors[:2], torch.ops.aten.mm) != answered
    assert bool(asked) != answered
