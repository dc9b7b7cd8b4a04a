"""The hook on a CUDA device that is not there: which kernels Inductor generates, down to machine code for sm_90."""

import logging
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.choices import InductorChoices
from torch._inductor.ir import ChoiceCaller
from torch._inductor.select_algorithm import get_algorithm_selector_cache
from torch._inductor.virtualized import V

import diode_lut
from diode_lut.hook.handler import on_top_of
from diode_lut.model import Kind
from diode_lut.model.weights import write_model
from diode_lut.receipts import recorder
from diode_lut.templates.config import Config
from tests.fake_cuda import H200, Input, Lowered, compile_triton, lower
from tests.model import small
from tests.sampled import sampled

pytestmark = pytest.mark.usefixtures("h200")

Rows = Callable[..., None]


def triton(template: str, m: int, n: int, k: int, *, group: int = 8, stages: int = 3, warps: int = 4) -> dict[str, Any]:
    blocks = {"block_m": m, "block_n": n, "block_k": k}
    return {"template": template, **blocks, "group_m": group, "num_stages": stages, "num_warps": warps}


ATEN = {"template": "aten"}
MM = triton("triton_mm", 64, 128, 32)
BMM = triton("triton_bmm", 32, 64, 64, stages=2)
TMA = triton("triton_mm_persistent_tma", 128, 64, 64)


def constants(kernel: str) -> dict[str, str]:
    return dict(re.findall(r"^\s+(\w+) : tl\.constexpr = ([\w.]+)$", kernel, flags=re.MULTILINE))


def blocks(kernel: str) -> list[int]:
    values = constants(kernel)
    return [int(values[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")]


def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def uses_aten(lowered: Lowered, *names: str) -> bool:
    """Whether the library is called, by one of these names, and nothing else."""
    return lowered.extern in [[name] for name in names or ("mm",)] and not lowered.triton_templates


class Theirs(InductorChoices):
    """The handler of another library, which notes for which ops it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def uuid(self) -> str:
        return "theirs"

    def get_template_configs(self, kernel_inputs: Any, templates: Any, op_name: str, *args: Any, **kwargs: Any) -> Any:
        self.asked.append(op_name)
        return super().get_template_configs(kernel_inputs, templates, op_name, *args, **kwargs)


@pytest.fixture
def autotuning() -> Iterator[None]:
    with inductor_config.patch(max_autotune=True):
        yield


GEMMS: dict[str, tuple[Callable[..., Any], list[Input], dict[str, Any]]] = {
    "mm": (mm, [Input((512, 1024)), Input((1024, 2048))], MM),
    "linear": (torch.nn.functional.linear, [Input((512, 1024)), Input((2048, 1024)), Input((2048,))], MM),
    "gelu": (
        lambda x, w, b: torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b)),
        [Input((512, 1024)), Input((2048, 1024)), Input((2048,))],
        MM,
    ),
    "bmm": (torch.bmm, [Input((4, 128, 64)), Input((4, 64, 256))], BMM),
    "baddbmm": (torch.baddbmm, [Input((4, 128, 256)), Input((4, 128, 64)), Input((4, 64, 256))], BMM),
    "odd K": (mm, [Input((100, 77)), Input((77, 50))], MM),
    "transposed": (lambda a, b: a.t() @ b.t(), [Input((1024, 512)), Input((2048, 1024))], MM),
    "sliced": (mm, [Input((256, 512), stride=(1024, 1), offset=8), Input((512, 64), stride=(128, 1))], MM),
    "float32": (mm, [Input((256, 512), torch.float32), Input((512, 128), torch.float32)], MM),
    "persistent TMA": (mm, [Input((512, 1024)), Input((1024, 2048))], TMA),
    "persistent TMA linear": (
        torch.nn.functional.linear,
        [Input((512, 1024)), Input((2048, 1024)), Input((2048,))],
        TMA,
    ),
    "persistent TMA of one column": (lambda a, b: a @ b.t(), [Input((512, 1024)), Input((1, 1024))], TMA),
}


@pytest.mark.parametrize("gemm", GEMMS)
def test_row_becomes_the_kernel(gemm: str, mode: str, rows: Rows, tmp_path: Path) -> None:
    """A row's config is the one kernel in the generated code, in either mode, and Triton compiles it for sm_90."""
    function, inputs, config = GEMMS[gemm]
    rows({"configs": [config, ATEN]})
    lowered = lower(function, *inputs)
    (kernel,) = lowered.triton_templates
    assert lowered.extern == []
    assert blocks(kernel) == [config["block_m"], config["block_n"], config["block_k"], config["group_m"]]
    assert f"num_stages={config['num_stages']},\nnum_warps={config['num_warps']}," in kernel
    assert compile_triton(kernel, tmp_path).metadata.shared <= H200.shared_memory_per_block_optin


def test_aten_row_is_aten(mode: str, rows: Rows) -> None:
    """A row that says aten gives aten, without a benchmark under max-autotune."""
    rows({"configs": [ATEN]})
    assert uses_aten(lower(mm, Input((512, 1024)), Input((1024, 2048))))


def test_dynamic_size_is_an_argument(rows: Rows) -> None:
    """A kernel takes a dynamic M at run time."""
    rows({"configs": [MM]})
    (kernel,) = lower(mm, Input((512, 1024), dynamic=(0,)), Input((1024, 2048))).triton_templates
    assert re.search(r"M = ks\d", kernel)


UNLAUNCHABLE = {
    "shared memory": triton("triton_mm", 128, 256, 128, stages=5, warps=8),
    "registers": triton("triton_mm", 256, 256, 16, stages=1, warps=1),
    "template of another op": triton("triton_bmm", 64, 64, 32),
    "K cannot be cut so": {"template": "decompose_k", "k_split": 3},
    "no C++ kernels here": {"template": "cpp_gemm"},
}


@pytest.mark.parametrize("reason", UNLAUNCHABLE)
def test_unlaunchable_config_gives_way(reason: str, mode: str, rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    """A config that cannot run costs a warning, and the row's next one is taken."""
    rows({"configs": [UNLAUNCHABLE[reason], MM], "note": f"{reason} {mode}"})  # a new row is warned of again
    with caplog.at_level(logging.WARNING, "diode_lut"):
        (kernel,) = lower(mm, Input((512, 1024)), Input((1024, 2048))).triton_templates
    assert blocks(kernel) == [64, 128, 32, 8]
    assert "cannot run" in caplog.text


@pytest.mark.usefixtures("shipped")
def test_shipped_config_gives_way_silently(table_file: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    """A shipped config that cannot run costs no warning, as no user can edit it: the receipt says it."""
    faulty = next(iter(UNLAUNCHABLE.values()))
    table_file("tables/nvidia-h200.json", {"configs": [faulty, MM]})
    with diode_lut.profile_predictions() as counts:
        (kernel,) = lower(mm, Input((512, 1024)), Input((1024, 2048))).triton_templates
    assert (blocks(kernel), counts.skipped_configs) == ([64, 128, 32, 8], 1)
    assert "cannot run" not in caplog.text


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({**MM, "pad": 8}, "Inductor has not padded its operands"),
        ({"template": "aten", "pad": 8}, "Inductor has not padded its operands"),
        ({**MM, "kpack": 2}, "kernels for sm_90 have no kpack"),
    ],
)
def test_tunables_that_the_hook_cannot_apply_are_passed_over(
    config: dict[str, Any], text: str, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """A config that asks for padding, or for a tunable of other architectures, gives way to the next one."""
    rows({"op": "mm", "configs": [config, triton("triton_mm", 32, 64, 32)]})
    with caplog.at_level(logging.WARNING, "diode_lut"):
        lowered = lower(mm, Input((256, 500)), Input((500, 1024)))
    assert blocks(lowered.code) == [32, 64, 32, 8]
    assert text in caplog.text


@pytest.mark.parametrize("reason", UNLAUNCHABLE)
def test_row_without_launchable_config_is_left_to_inductor(reason: str, rows: Rows) -> None:
    """Where no config of the row can run, Inductor does what it does without a table."""
    rows({"configs": [UNLAUNCHABLE[reason]]})
    assert uses_aten(lower(mm, Input((512, 1024)), Input((1024, 2048))))


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param([Input((512, 1023)), Input((1023, 2048))], id="rows not on 16-byte boundaries"),
        pytest.param([Input((512, 1024)), Input((1024, 2047))], id="B's rows not on 16-byte boundaries"),
        pytest.param([Input((512, 1024), stride=(1, 520)), Input((1024, 2048))], id="padded column-major A"),
        pytest.param([Input((512, 1024), offset=1), Input((1024, 2048))], id="A begins in the middle"),
        pytest.param([Input((1, 1024)), Input((1024, 2048))], id="one row"),
        pytest.param([Input((512, 1024), stride=(0, 1)), Input((1024, 2048))], id="one row, expanded"),
        pytest.param([Input((512, 1024), stride=(8, 1)), Input((1024, 2048))], id="rows that overlap"),
        pytest.param([Input((512, 1024)), Input((1024, 2048), stride=(1, 0))], id="one column, expanded"),
    ],
)
def test_tma_is_refused_where_illegal(inputs: list[Input], rows: Rows) -> None:
    """Tensor descriptors are used only for what they can describe and the template reads rightly."""
    rows({"configs": [TMA]})
    assert uses_aten(lower(mm, *inputs))


def test_decompose_k_row(mode: str, rows: Rows) -> None:
    """A decompose_k row cuts K: a batched matmul and a sum."""
    rows({"op": "mm", "configs": [{"template": "decompose_k", "k_split": 16}]})
    lowered = lower(mm, Input((32, 16384)), Input((16384, 32)))
    assert "mm" not in lowered.extern
    assert re.search(r"\(16, 32, 1024\)", lowered.code)


def test_matmuls_inside_a_kernel_are_no_question(rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    """The batched matmul of a decompose_k row is not counted, no miss under ``strict``, and the library's."""
    rows({"op": "mm", "configs": [{"template": "decompose_k", "k_split": 16}]}, {"op": "bmm", "configs": [BMM]})
    inputs = Input((32, 16384), torch.float32), Input((16384, 32), torch.float32)
    with (
        caplog.at_level(logging.WARNING, "diode_lut"),
        diode_lut.config.patch(strict=True),
        diode_lut.profile_predictions() as counts,
    ):
        lowered = lower(mm, *inputs)
    assert "bmm" in lowered.code
    assert lowered.triton_templates == []
    assert (counts.total_predictions, counts.hits["user"], counts.skipped_configs) == (1, 1, 0)
    assert caplog.messages == []


LEFT_ALONE = {
    "zero rows": ("mm", mm, [Input((0, 1024)), Input((1024, 64))]),
    "too many rows": ("mm", mm, [Input((2**31, 64)), Input((64, 64))]),
    "unit stride in the batch": ("bmm", torch.bmm, [Input((4, 64, 64), stride=(1, 256, 4)), Input((4, 64, 64))]),
    "other dtype": ("mm", mm, [Input((64, 64), torch.float64), Input((64, 64), torch.float64)]),
    "beta of zero": (
        "addmm",  # mm, since torch 2.14, before anybody is asked
        lambda c, a, b: torch.addmm(c, a, b, beta=0),
        [Input((64, 64)), Input((64, 64)), Input((64, 64))],
    ),
    "alpha of zero": (
        "addmm",
        lambda c, a, b: torch.addmm(c, a, b, alpha=0),
        [Input((64, 64)), Input((64, 64)), Input((64, 64))],
    ),
    "alpha of zero in a batch": (
        "baddbmm",
        lambda c, a, b: torch.baddbmm(c, a, b, alpha=0),
        [Input((4, 64, 64)), Input((4, 64, 64)), Input((4, 64, 64))],
    ),
}


@pytest.mark.parametrize("gemm", LEFT_ALONE)
def test_what_no_row_can_serve_is_left_alone(gemm: str, rows: Rows) -> None:
    """What no table can speak of, and a bias that must not be read, never get a table's kernel."""
    op, function, inputs = LEFT_ALONE[gemm]
    rows({"op": op, "configs": [BMM if "bmm" in op else MM]})
    assert lower(function, *inputs).triton_templates == []


NATIVE = {
    "mm": [Input((64, 128)), Input((128, 96))],
    "addmm": [Input((96,)), Input((64, 128)), Input((128, 96))],
    "bmm": [Input((4, 64, 128)), Input((4, 128, 96))],
    "baddbmm": [Input((4, 64, 96)), Input((4, 64, 128)), Input((4, 128, 96))],
}


@pytest.mark.parametrize("op", NATIVE)
def test_native_matmuls_are_counted(op: str, rows: Rows) -> None:
    """With Inductor's setting for that it generates a kernel and asks nobody: no choice, no miss under ``strict``."""
    rows({"op": op, "configs": [BMM if "bmm" in op else MM]})
    with (
        inductor_config.patch({"triton.native_matmul": True}),
        diode_lut.config.patch(strict=True),
        recorder.collecting() as collected,
    ):
        lowered = lower(getattr(torch, op), *NATIVE[op])
    assert (lowered.triton_templates, lowered.extern) == ([], [])
    (device,) = collected.devices.values()
    (left,) = device.no_choice
    assert (left.problem.op, left.problem.m, left.problem.n, left.problem.k) == (op, 64, 96, 128)
    assert (collected.counts.no_choice, collected.counts.total_predictions) == (1, 0)


def test_tf32_is_another_dtype(rows: Rows) -> None:
    """Rows for float32 do not answer where TF32 is allowed, and the kernel's precision follows the switch."""
    rows({"dtype": "tf32", "configs": [MM]})
    inputs = Input((256, 512), torch.float32), Input((512, 512), torch.float32)
    assert uses_aten(lower(mm, *inputs))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        (kernel,) = lower(mm, *inputs).triton_templates
    finally:
        torch.set_float32_matmul_precision(before)
    assert constants(kernel)["ALLOW_TF32"] == "True"


def test_prologue_is_not_fused(rows: Rows) -> None:
    """What comes before the GEMM stays a kernel of its own: the row was measured without it."""
    rows({"configs": [MM]})
    inputs = Input((512, 1024), torch.float32), Input((1024, 2048), torch.float32)
    lowered = lower(lambda a, b: (a * 2) @ b, *inputs)
    assert len(lowered.triton_templates) == 1
    assert len(lowered.triton_kernels) == 2


def test_flexible_input_keeps_the_layout_it_was_looked_up_by(mode: str, rows: Rows) -> None:
    """An intermediate whose layout was still open is read in the order that the row was found for."""
    rows({"op": "addmm", "layout": "nn", "configs": [MM]})

    def function(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addmm(bias, torch.relu(a.t() * 3), b)

    (kernel,) = lower(function, Input((2048,)), Input((1024, 512)), Input((1024, 2048))).triton_templates
    assert re.search(r"stride_am = 1024\n\s+stride_ak = 1\n", kernel)


def test_policy_off_and_default_mode(rows: Rows) -> None:
    """``policy="off"``, and ``default_mode=False`` without max-autotune, leave everything to Inductor."""
    rows({"configs": [MM]})
    inputs = Input((512, 1024)), Input((1024, 2048))
    for setting in ({"policy": "off"}, {"default_mode": False}):
        with diode_lut.config.patch(**setting):
            assert uses_aten(lower(mm, *inputs))
    assert lower(mm, *inputs).triton_templates


@pytest.mark.usefixtures("autotuning")
def test_miss_without_autotuning_is_aten(rows: Rows) -> None:
    """With ``fallback_to_autotune=False`` a miss under max-autotune is aten, without a benchmark."""
    rows({"dtype": "float16", "configs": [MM]})
    with diode_lut.config.patch(fallback_to_autotune=False):
        assert uses_aten(lower(mm, Input((512, 1024)), Input((1024, 2048))))
        bias_first = Input((2048,)), Input((512, 1024)), Input((1024, 2048))
        assert uses_aten(lower(torch.addmm, *bias_first), "addmm", "bias_addmm")


def test_triton_backend_switched_off_is_respected(rows: Rows) -> None:
    """Where the user allows Inductor no Triton templates, rows do not bring them back."""
    rows({"configs": [MM, ATEN]})
    with inductor_config.patch(max_autotune_gemm_backends="ATEN"):
        assert uses_aten(lower(mm, Input((512, 1024)), Input((1024, 2048))))


@pytest.mark.usefixtures("autotuning")
def test_two_addmms_of_the_same_matrices(rows: Rows) -> None:
    """Several GEMMs of the same two matrices each get their kernel, however often Inductor asks for each."""
    rows({"configs": [MM]})

    def function(c: torch.Tensor, d: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.addmm(c, a, b), torch.addmm(d, a, b)

    inputs = Input((2048,)), Input((2048,)), Input((512, 1024)), Input((1024, 2048))
    for backends in ("ATEN,TRITON", "TRITON"):
        with inductor_config.patch(max_autotune_gemm_backends=backends):
            lowered = lower(function, *inputs)
        assert len(re.findall(r"triton_tem_fused_\w+\.run", lowered.code)) == 2
        assert lowered.extern == []


def test_failure_inside_inductor_is_a_warning(
    rows: Rows, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong while a row becomes a kernel, the compile goes on without the row."""
    from torch._inductor.kernel.mm import mm_template

    def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("moved")

    monkeypatch.setattr(mm_template, "choice_or_none", broken, raising=False)
    rows({"configs": [MM]})
    with caplog.at_level(logging.WARNING, "diode_lut"):
        assert uses_aten(lower(mm, Input((512, 1024)), Input((1024, 2048))))
    assert "left to Inductor" in caplog.text


def test_statistics_count_each_product_once(rows: Rows) -> None:
    """One GEMM is one prediction, although Inductor may ask several times for it."""
    rows({"op": "addmm", "configs": [MM]})
    bias_first = Input((2048,)), Input((512, 1024)), Input((1024, 2048))
    with diode_lut.profile_predictions() as counts, inductor_config.patch(max_autotune=True):
        lower(torch.addmm, *bias_first)
    with diode_lut.profile_predictions() as misses:
        lower(mm, *bias_first[1:])
    assert (counts.total_predictions, counts.hits["user"], counts.fallbacks) == (1, 1, 0)
    assert (misses.total_predictions, misses.fallbacks) == (1, 1)


def test_handler_of_another_library_stays_in_force(rows: Rows) -> None:
    """A choices handler that was there before keeps its overrides and is asked where the table has no answer."""
    rows({"op": "mm", "configs": [MM]})
    theirs = Theirs()
    handler = on_top_of(theirs)
    with V.set_choices_handler(handler):
        assert lower(mm, Input((512, 1024)), Input((1024, 2048))).triton_templates
        assert theirs.asked == []
        lower(torch.bmm, Input((4, 128, 64)), Input((4, 64, 256)))
    assert theirs.asked == ["bmm"]
    assert "theirs" in handler.uuid()
    assert on_top_of(handler) is handler


@pytest.mark.usefixtures("autotuning")
def test_answered_addmm_has_nothing_else_made_for_it(rows: Rows) -> None:
    """Where Inductor asks again about an addmm that a row has answered, the handlers below are not troubled."""
    rows({"configs": [MM]})
    theirs = Theirs()
    with V.set_choices_handler(on_top_of(theirs)):
        assert lower(torch.addmm, Input((2048,)), Input((512, 1024)), Input((1024, 2048))).triton_templates
    assert theirs.asked == []


@pytest.fixture
def listed() -> Iterator[list[list[ChoiceCaller]]]:
    """The lists of candidates that Inductor would choose from; it takes the first of each, for nothing can run here."""
    lists: list[list[ChoiceCaller]] = []

    def take_first(choices: list[ChoiceCaller]) -> list[ChoiceCaller]:
        lists.append(choices)
        return choices[:1]

    functions = get_algorithm_selector_cache().preprocessing_fns
    functions.append(take_first)
    yield lists
    functions.remove(take_first)


def aten_operands(choices: list[ChoiceCaller]) -> dict[str, list[tuple[Any, Any]]]:
    """Sizes and strides of what each of the library's candidates is called with."""
    aten = (each for each in choices if each.name in ("addmm", "bias_addmm"))
    return {each.name: [(node.get_size(), node.get_stride()) for node in each.input_nodes] for each in aten}


@pytest.mark.parametrize("bias", sampled([(2048,), (1, 2048), (512, 2048)], (1, 2048)), ids=str)
@pytest.mark.parametrize("configs", [[MM], [MM, ATEN], [ATEN, MM], [TMA, MM, ATEN]], ids=len)
def test_aten_beside_triton_has_the_bias_of_its_own(
    configs: list[dict[str, Any]], bias: tuple[int, ...], mode: str, rows: Rows, listed: list[list[ChoiceCaller]]
) -> None:
    """Where aten is one of several candidates, it is called with the operands that Inductor itself would give it."""
    inputs = Input(bias), Input((512, 1024)), Input((1024, 2048))
    rows({"configs": configs})
    with diode_lut.config.patch(policy="off"):
        lower(torch.addmm, *inputs)
    with diode_lut.config.patch(policy="verify", top_k=3):
        lower(torch.addmm, *inputs)
    without, choices = listed
    assert len(choices) > 1
    ((name, operands),) = aten_operands(choices).items()
    assert operands == aten_operands(without)[name]


@pytest.mark.parametrize("bias", [(64,), (512, 64)], ids=str)
@pytest.mark.parametrize("epilogues", [False, True])
def test_a_bias_that_is_not_in_memory_yet(bias: tuple[int, ...], epilogues: bool, rows: Rows) -> None:
    """An addmm is answered where its bias is a view of what is still to be computed, which has no strides."""
    rows({"configs": [MM]})

    def of_a_view(b: Any, x: Any, w: Any) -> Any:
        return torch.addmm(b.relu().t().reshape(bias), x, w)

    with diode_lut.config.patch(epilogues=epilogues):
        lowered = lower(of_a_view, Input((64, math.prod(bias) // 64)), Input((512, 128)), Input((128, 64)))
    assert (lowered.extern, len(lowered.triton_templates)) == ([], 1)


@pytest.mark.parametrize("epilogues", [False, True])
def test_a_view_of_what_inductor_may_still_lay_out(epilogues: bool, rows: Rows) -> None:
    """A bmm of a view of a matmul's result, whose rows Inductor pads, reads it by the view's strides."""
    rows({"op": "mm", "configs": [ATEN]}, {"op": "bmm", "configs": [BMM]})

    def of_a_view(x: Any, w: Any, v: Any) -> Any:
        return torch.bmm((x @ w).view(2, 129, 1500), v).relu()

    with diode_lut.config.patch(epilogues=epilogues), inductor_config.patch(pad_outputs=True):
        lowered = lower(of_a_view, Input((258, 64)), Input((64, 1500)), Input((2, 1500, 64)))
    (kernel,) = lowered.triton_templates
    assert lowered.extern == ["mm"]
    (row,) = re.findall(r"empty_strided_cuda\(\(258, 1500\), \((\d+), 1\)", lowered.code)
    assert f"stride_aq = {129 * int(row)}\n" in kernel
    assert f"stride_am = {row}\n" in kernel


def matmul_of_theirs(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b, out=out)


@pytest.mark.usefixtures("autotuning")
@pytest.mark.skipif(torch.__version__ < (2, 13), reason="Inductor copies it before anybody is asked")
def test_a_bias_of_one_element_is_not_copied(rows: Rows) -> None:
    """Expanded to one column it has no unit stride, and still the kernel reads it where it is: there is no other."""
    rows({"configs": [MM]})
    (kernel,) = lower(torch.addmm, Input((1,)), Input((512, 1024)), Input((1024, 1))).triton_kernels
    assert "tl.load(in_ptr0 + (0))" in kernel


def test_what_others_add_is_left_out(rows: Rows) -> None:
    """Candidates that Inductor gets from elsewhere under max-autotune are not timed against a row's kernel."""
    rows({"configs": [MM]})
    with inductor_config.patch(external_matmul=[matmul_of_theirs]):
        lowered = lower(mm, Input((512, 1024)), Input((1024, 2048)))
    assert len(lowered.triton_templates) == 1


def test_a_model_vouches_for_its_first_choice_alone(shipped: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where that cannot run, none of its others is taken: the GEMM is left to Inductor, and the receipt says so."""
    kind = Kind("mm", "bfloat16", "nn", 16, (1, 1), (1, 4096), (1, 4096), (1, 4096))
    write_model(small.model(kinds=(kind,)), shipped / "nvidia-h200.mlp.safetensors")
    with diode_lut.profile_predictions() as counts, inductor_config.patch(max_autotune_gemm_backends="ATEN"):
        lower(mm, Input((512, 1024)), Input((1024, 2048)))
    assert (counts.hits["model"], counts.skipped_configs, counts.unserved) == (1, 1, 1)
    assert "cannot run" not in caplog.text


def test_model_answers_where_no_table_does(mode: str, shipped: Path, tmp_path: Path) -> None:
    """Without a row, the kernel is the first of the model's ranking, without a benchmark; an unsure model leaves it."""
    weights = tmp_path / "x.safetensors"
    best = Config("triton_mm", (64, 128, 32, 8, 3, 4))
    kind = Kind("mm", "bfloat16", "nn", 16, (1, 1), (1, 4096), (1, 4096), (1, 4096))
    write_model(small.model(candidates=(best, small.BATCHED, small.ATEN), kinds=(kind,)), weights)
    inputs = Input((512, 1024)), Input((1024, 2048))
    with diode_lut.config.patch(tables=(str(weights),)):
        (kernel,) = lower(mm, *inputs).triton_templates
        assert blocks(kernel) == [64, 128, 32, 8]
        if mode == "default":
            with diode_lut.config.patch(confidence_threshold=1.0, gain_threshold=float("inf")):
                assert uses_aten(lower(mm, *inputs))
