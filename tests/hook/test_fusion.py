"""Epilogues on a CUDA device that is not there: which kernel a matmul gets, by the pointwise work that is fused."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._inductor.virtualized import V
from torch._logging._internal import trace_log
from torch.nn import functional

import diode_lut
from diode_lut.hook import epilogues
from diode_lut.receipts import recorder
from tests.fake_cuda import Input, Lowered, compile_triton, lower
from tests.hook.test_hook import ATEN, Rows, blocks, triton
from tests.sampled import named

pytestmark = pytest.mark.usefixtures("h200")

SMALL, LARGE = triton("triton_mm", 64, 64, 32), triton("triton_mm", 64, 128, 32)
TOO_LARGE = {**triton("triton_mm", 256, 256, 128), "num_stages": 5, "num_warps": 8}
LINEAR = [Input((512, 1024)), Input((2048, 1024)), Input((2048,)), Input((512, 2048))]

Function = Callable[..., Any]


def linear(x: Any, w: Any, b: Any) -> Any:
    return functional.linear(x, w, b)


def gelu_tanh(x: Any) -> Any:
    return functional.gelu(x, approximate="tanh")


EPILOGUES: dict[str, tuple[str, Function]] = {
    "relu": ("light", lambda x, w, b, r: linear(x, w, b).relu()),
    "scale": ("light", lambda x, w, b, r: linear(x, w, b) * 0.5),
    "cast": ("light", lambda x, w, b, r: linear(x, w, b).float()),
    "row": ("light", lambda x, w, b, r: linear(x, w, b) * b),
    "silu": ("medium", lambda x, w, b, r: functional.silu(linear(x, w, b))),
    "gelu": ("medium", lambda x, w, b, r: functional.gelu(linear(x, w, b))),
    "residual": ("medium", lambda x, w, b, r: linear(x, w, b) + r),
    "gate": ("medium", lambda x, w, b, r: functional.silu(linear(x, w, b)) * r),
    "gelu with tanh": ("heavy", lambda x, w, b, r: gelu_tanh(linear(x, w, b))),
    "gelu and residual": ("heavy", lambda x, w, b, r: gelu_tanh(linear(x, w, b)) + r),
    "batch norm": ("heavy", lambda x, w, b, r: linear(x, w, b) * (b * b + 1e-5).rsqrt() + b),
    "gelu's derivative": ("heavy", lambda x, w, b, r: torch.ops.aten.gelu_backward(linear(x, w, b), r)),
}
"""Epilogues that are fused, and the class of each."""

UNFUSED: dict[str, Function] = {
    "nothing": lambda x, w, b, r: linear(x, w, b),
    "a reduction": lambda x, w, b, r: linear(x, w, b).softmax(-1),
    "relu and a reduction": lambda x, w, b, r: linear(x, w, b).relu().sum(0),
    "a norm of the sum with a residual": lambda x, w, b, r: functional.layer_norm(linear(x, w, b) + r, (2048,)),
    "another matmul": lambda x, w, b, r: linear(x, w, b) @ w,
}
"""What follows a matmul without being fused into its kernel."""


def by_class(**configs: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each of these classes of epilogues; ``any`` is a row that has none."""
    return [
        {"op": "addmm", **({} if name == "any" else {"epilogue": name}), "configs": [config]}
        for name, config in configs.items()
    ]


def tiles(lowered: Lowered) -> list[list[int]]:
    return [blocks(source) for source in lowered.triton_templates]


@pytest.mark.parametrize(("name", "function"), EPILOGUES.values(), ids=EPILOGUES)
def test_the_row_of_the_epilogue_decides(tmp_path: Path, rows: Rows, name: str, function: Function) -> None:
    """A kernel that only the row of the epilogue names is taken, with the epilogue in it."""
    rows(*by_class(any=ATEN, **{name: SMALL}))
    lowered = lower(function, *LINEAR)
    assert tiles(lowered) == [[64, 64, 32, 8]]
    assert not lowered.extern
    (kernel,) = lowered.triton_kernels
    compile_triton(kernel, tmp_path)


@pytest.mark.parametrize(("name", "function"), named(EPILOGUES, "row", "gate", "batch norm"))
def test_rows_of_other_epilogues_do_not_decide(rows: Rows, name: str, function: Function) -> None:
    """Where only other classes have a kernel, the library is used, and the code is that without such rows."""
    rows(*by_class(**{"any": ATEN, "light": SMALL, "medium": SMALL, "heavy": SMALL, name: ATEN}))
    lowered = lower(function, *LINEAR)
    with diode_lut.config.patch(epilogues=False):
        without = lower(function, *LINEAR)
    assert not lowered.triton_templates
    assert lowered.code == without.code


@pytest.mark.parametrize("plain", [ATEN, LARGE], ids=["aten", "triton"])
@pytest.mark.parametrize("function", UNFUSED.values(), ids=UNFUSED)
def test_what_is_not_fused_is_as_it_would_have_been(rows: Rows, plain: dict[str, Any], function: Function) -> None:
    """Where nothing is fused, the code is that without rows for epilogues."""
    rows(*by_class(none=plain, light=SMALL, medium=SMALL, heavy=SMALL))
    lowered = lower(function, *LINEAR)
    rows(*by_class(none=plain))
    without = lower(function, *LINEAR)
    assert lowered.code == without.code


def test_a_kernel_that_is_slower_when_fused_is_not_fused(rows: Rows) -> None:
    """Where a Triton kernel is best for the matmul alone, but not with its epilogue, that gets a kernel of its own."""
    rows(*by_class(any=LARGE, heavy=ATEN))
    lowered = lower(EPILOGUES["gelu with tanh"][1], *LINEAR)
    assert tiles(lowered) == [[64, 128, 32, 8]]
    assert len(lowered.triton_kernels) == 2


def test_each_matmul_gets_its_own(rows: Rows) -> None:
    """Two layers with different epilogues get the kernel of each."""
    rows(*by_class(any=ATEN, light=SMALL), {"op": "mm", "epilogue": "medium", "configs": [LARGE]})

    def layers(x: Any, w: Any, b: Any, r: Any) -> Any:
        return functional.silu(linear(x, w, b).relu() @ w)

    assert tiles(lower(layers, *LINEAR)) == [[64, 64, 32, 8], [64, 128, 32, 8]]


@pytest.mark.parametrize(("name", "function"), named(EPILOGUES, "row", "gate", "batch norm"))
def test_an_epilogue_behind_a_view_is_fused(tmp_path: Path, rows: Rows, name: str, function: Function) -> None:
    """A linear layer of a batch of sequences is a matmul and a view; what follows is fused all the same."""
    rows(*by_class(any=ATEN, **{name: SMALL}))
    lowered = lower(function, Input((4, 128, 1024)), *LINEAR[1:3], Input((4, 128, 2048)))
    assert tiles(lowered) == [[64, 64, 32, 8]]
    (kernel,) = lowered.triton_kernels
    compile_triton(kernel, tmp_path)


def test_a_miss_alone_may_be_fused(rows: Rows) -> None:
    """A matmul for which there is no row runs the library's kernel alone, and the kernel of a row with an epilogue."""
    rows(*by_class(light=SMALL))
    assert tiles(lower(EPILOGUES["relu"][1], *LINEAR)) == [[64, 64, 32, 8]]
    assert not lower(UNFUSED["nothing"], *LINEAR).triton_templates


@pytest.mark.parametrize("of_class", [{}, {"medium": SMALL, "light": SMALL}], ids=["unknown", "known"])
def test_other_tensors_with_odd_rows_are_read_by_a_second_kernel(rows: Rows, of_class: dict[str, Any]) -> None:
    """A tensor whose rows are no multiples of 16 bytes is not read in a matmul's kernel, where elements come singly."""
    rows(*by_class(any=LARGE, **of_class))
    odd = [Input((512, 1024)), Input((2047, 1024)), Input((2047,)), Input((512, 2047))]
    assert reasons(EPILOGUES["residual"][1], *odd) == {("medium", epilogues.ROWS): 1}
    apart = lower(EPILOGUES["residual"][1], *odd)
    assert (tiles(apart), len(apart.triton_kernels)) == ([[64, 128, 32, 8]], 2)


@pytest.mark.parametrize(("n", "kernels"), [(1001, 1), (2047, 2), (2046, 1), (2048, 1)])
def test_padded_rows_are_written_by_a_second_kernel(rows: Rows, n: int, kernels: int) -> None:
    """An odd number of columns is not padded by a matmul's kernel, which would write single elements."""
    rows(*by_class(any=LARGE, light=SMALL))
    lowered = lower(EPILOGUES["relu"][1], Input((512, 1024)), Input((n, 1024)), Input((n,)), Input((512, n)))
    assert len(lowered.triton_kernels) == kernels


def test_a_padded_result(rows: Rows) -> None:
    """Where Inductor pads the rows of the result of the library's kernel, the fused kernel writes that layout too."""
    rows({"op": "mm", "configs": [ATEN]}, {"op": "mm", "epilogue": "light", "configs": [SMALL]})
    operands = [Input((512, 1024)), Input((1024, 2056))]

    def both(a: Any, b: Any) -> Any:
        gemm = a @ b
        return gemm, gemm.relu()

    fused = lower(both, *operands)
    assert tiles(fused) == [[64, 64, 32, 8]]
    with diode_lut.config.patch(epilogues=False):
        library = lower(both, *operands)
    assert library.extern == ["mm"]
    assert [lowered.code.count("(2112, 1)") for lowered in (fused, library)] == [2, 2]


@pytest.mark.parametrize("setting", [{"policy": "verify"}, {"top_k": 2}, {"epilogues": False}], ids=str)
def test_settings_that_leave_it_to_the_matmul_alone(rows: Rows, setting: dict[str, Any]) -> None:
    """With ``epilogues=False``, and where Inductor benchmarks, the row for no epilogue decides."""
    rows(*by_class(any=ATEN, light=SMALL))
    with diode_lut.config.patch(**setting):
        assert not lower(EPILOGUES["relu"][1], *LINEAR).triton_templates


def test_max_autotune(rows: Rows) -> None:
    """Rows decide about epilogues under max-autotune as well, without a benchmark."""
    rows(*by_class(any=ATEN, light=SMALL))
    with inductor_config.patch(max_autotune=True):
        assert tiles(lower(EPILOGUES["relu"][1], *LINEAR)) == [[64, 64, 32, 8]]
        assert not lower(EPILOGUES["gelu"][1], *LINEAR).triton_templates


def test_dynamic_sizes(rows: Rows) -> None:
    """The class of an epilogue is the same where a size may change."""
    rows(*by_class(any=ATEN, medium=SMALL))
    dynamic = [LINEAR[0]._replace(dynamic=[0]), *LINEAR[1:3]]
    lowered = lower(lambda x, w, b: functional.silu(linear(x, w, b)), *dynamic)
    assert tiles(lowered) == [[64, 64, 32, 8]]
    assert not lower(lambda x, w, b: linear(x, w, b).relu(), *dynamic).triton_templates


def reasons(function: Function, *inputs: Input) -> dict[tuple[str, str], int]:
    """Why nothing was fused in a graph: how often, per class of the epilogue that was refused, and reason."""
    with recorder.collecting() as collected:
        lower(function, *inputs)
    (device,) = collected.devices.values()
    return {(each.problem.epilogue, each.reason): times for each, times in device.unfused.items()}


WHY: dict[str, tuple[Function, dict[str, int]]] = {
    "nothing": (UNFUSED["nothing"], {epilogues.NOTHING: 1}),
    "a reduction": (lambda x, w, b, r: linear(x, w, b).sum(0), {epilogues.NOTHING: 1}),
    "a softmax": (UNFUSED["a reduction"], {epilogues.REDUCES: 1}),
    "relu and a reduction": (UNFUSED["relu and a reduction"], {epilogues.REDUCES: 1}),
    "a norm": (UNFUSED["a norm of the sum with a residual"], {epilogues.REDUCES: 1}),
    "a library's op": (lambda x, w, b, r: torch.igamma(linear(x, w, b), r), {epilogues.OTHER_KERNEL: 1}),
    "a part": (lambda x, w, b, r: linear(x, w, b).narrow(1, 0, 512).relu(), {epilogues.ORDER: 1}),
    "a write": (lambda x, w, b, r: torch.ops.aten.copy_.default(r, linear(x, w, b).relu()), {epilogues.MUTATES: 1}),
    "two factors": (
        lambda x, w, b, r: functional.silu(linear(x, w, b)) * linear(x, w, b + 1),
        {epilogues.ELSEWHERE: 1},
    ),
}
"""What follows a matmul, and the reasons why it is not fused where a row would have it fused."""


@pytest.mark.parametrize(("function", "expected"), WHY.values(), ids=WHY)
def test_what_is_not_fused_has_a_reason(rows: Rows, function: Function, expected: dict[str, int]) -> None:
    """Where nothing is fused although rows have a kernel for that, the receipt says why."""
    rows(*by_class(any=SMALL, none=ATEN))
    assert reasons(function, *LINEAR) == {("none", reason): times for reason, times in expected.items()}


ROWS_SAY: list[tuple[dict[str, dict[str, Any]], tuple[str, str]]] = [
    ({"any": ATEN}, ("none", epilogues.SLOWER)),
    ({"any": ATEN, "heavy": SMALL}, ("light", epilogues.SLOWER)),
    ({"any": LARGE, "light": ATEN}, ("light", epilogues.SLOWER)),
    ({"none": ATEN}, ("none", epilogues.UNKNOWN)),
    ({"none": ATEN, "heavy": SMALL}, ("light", epilogues.UNKNOWN)),
]


@pytest.mark.parametrize(("configs", "expected"), ROWS_SAY)
def test_what_rows_say_of_the_epilogue(rows: Rows, configs: dict[str, Any], expected: tuple[str, str]) -> None:
    """Where a row prefers a second kernel, or no row has the epilogue, that is the reason."""
    rows(*by_class(**configs))
    assert reasons(EPILOGUES["relu"][1], *LINEAR) == {expected: 1}


TRANSPOSED = [Input((1024, 512)), *LINEAR[1:]]


def test_an_input_whose_layout_is_not_decided_yet(tmp_path: Path, rows: Rows) -> None:
    """The row for the layout that Inductor decides on last answers, and its kernel reads that layout."""
    rows(*by_class(any=ATEN), {"op": "addmm", "layout": "tt", "epilogue": "light", "configs": [SMALL]})
    lowered = lower(lambda x, w, b, r: linear(x.t() * 3, w, b).relu(), *TRANSPOSED)
    assert tiles(lowered) == [[64, 64, 32, 8]]
    compile_triton(lowered.triton_templates[0], tmp_path)
    assert "empty_strided_cuda((512, 1024), (1, 512), torch.bfloat16)" in lowered.code


@torch.library.custom_op("diode_lut_tests::in_order", mutates_args=())
def in_order(x: torch.Tensor) -> torch.Tensor:
    """An op that Inductor calls with the strides that eager mode has."""
    return x.sum()


in_order.register_fake(lambda x: x.new_empty(()))


def test_layouts_that_come_out_otherwise(rows: Rows) -> None:
    """Where another op decides on the layout of an input, and not as the fused kernel needs it, that is the reason."""
    rows(*by_class(any=SMALL, none=ATEN))

    def both(x: Any, w: Any, b: Any, r: Any) -> Any:
        packed = torch.ops.aten.clone.default(x.t() * 3, memory_format=torch.contiguous_format)
        return linear(packed, w, b).relu(), in_order(packed)

    assert reasons(both, *TRANSPOSED) == {("light", epilogues.LAYOUT): 1}


def test_only_the_kernel_of_the_epilogue_at_hand_is_made(rows: Rows) -> None:
    """A config is tried when its class of epilogues is asked about, and one that cannot run is skipped only then."""
    rows(*by_class(any=ATEN, light=SMALL), {"op": "addmm", "epilogue": "heavy", "configs": [TOO_LARGE, ATEN]})
    for name, skipped in (("relu", 0), ("gelu with tanh", 1)):
        with recorder.counting() as counts:
            lower(EPILOGUES[name][1], *LINEAR)
        assert counts.skipped_configs == skipped


def test_what_inductor_fuses_has_no_reason(rows: Rows) -> None:
    """What is fused is not among what is not, whoever decided on it."""
    rows(*by_class(any=ATEN, light=SMALL))
    assert not reasons(EPILOGUES["relu"][1], *LINEAR)
    rows(*by_class(any=LARGE))
    assert not reasons(EPILOGUES["relu"][1], *LINEAR)


def test_what_was_fused_is_counted(rows: Rows) -> None:
    """Decisions for an epilogue are counted when the epilogue is known, once for each matmul."""
    rows(*by_class(any=ATEN, light=SMALL, heavy=SMALL))
    with recorder.counting() as counts:
        lower(EPILOGUES["relu"][1], *LINEAR)
    assert counts.hits["user"] == 2
    with recorder.counting() as counts:
        lower(UNFUSED["nothing"], *LINEAR)
    assert counts.hits["user"] == 1


MATRIX = [Input((512, 2048)), Input((512, 1024)), Input((1024, 2048)), Input((512, 2048))]
"""An addmm whose bias is a whole matrix, such as a residual that Inductor has folded into it, and one matrix more."""

BIASED: dict[str, tuple[str, Function, list[Input]]] = {
    "matrix": ("medium", lambda c, a, b, r: torch.addmm(c, a, b), MATRIX),
    "column-major matrix": ("medium", lambda c, a, b, r: torch.addmm(c.t(), a, b), [Input((2048, 512)), *MATRIX[1:]]),
    "computed matrix": ("medium", lambda c, a, b, r: torch.addmm(c.sin(), a, b), MATRIX),
    "matrix, scaled": ("medium", lambda c, a, b, r: torch.addmm(c, a, b, beta=0.5, alpha=2), MATRIX),
    "matrix and relu": ("medium", lambda c, a, b, r: torch.addmm(c, a, b).relu(), MATRIX),
    "matrix and silu": ("medium", lambda c, a, b, r: functional.silu(torch.addmm(c, a, b)), MATRIX),
    "matrix, gate and silu": ("heavy", lambda c, a, b, r: functional.silu(torch.addmm(c, a, b)) * r, MATRIX),
    "matrix and gelu with tanh": ("heavy", lambda c, a, b, r: gelu_tanh(torch.addmm(c, a, b)), MATRIX),
    "column": ("light", lambda c, a, b, r: torch.addmm(c, a, b), [Input((512, 1)), *MATRIX[1:]]),
    "expanded column": (
        "light",
        lambda c, a, b, r: torch.addmm(c, a, b),
        [Input((512, 2048), stride=(1, 0)), *MATRIX[1:]],
    ),
}
"""Biases that are more than a row, and the class of the epilogue that they are, with what follows."""


@pytest.mark.parametrize("autotune", [False, True], ids=["default", "max-autotune"])
@pytest.mark.parametrize(
    ("name", "function", "inputs"), named(BIASED, "computed matrix", "matrix, gate and silu", "expanded column")
)
def test_a_bias_that_is_no_row_is_an_epilogue(
    tmp_path: Path, rows: Rows, name: str, function: Function, inputs: list[Input], autotune: bool
) -> None:
    """The row for an mm with an epilogue decides on it, and not that of an addmm, whose bias is a row."""
    rows(
        {"op": "addmm", "configs": [LARGE]},
        {"op": "mm", "configs": [ATEN]},
        {"op": "mm", "epilogue": name, "configs": [SMALL]},
    )
    with inductor_config.patch(max_autotune=autotune):
        lowered = lower(function, *inputs)
    assert tiles(lowered) == [[64, 64, 32, 8]]
    assert not lowered.extern
    compile_triton(lowered.triton_templates[0], tmp_path)
    rows({"op": "addmm", "configs": [LARGE]}, {"op": "mm", "configs": [ATEN]})
    assert not lower(function, *inputs).triton_templates


@pytest.mark.parametrize("bias", [Input((2048,)), Input((1, 2048)), Input((512, 2048), stride=(0, 1))])
def test_a_bias_that_is_a_row_is_none(rows: Rows, bias: Input) -> None:
    """An addmm with a row, however it is written, is an addmm."""
    rows({"op": "addmm", "configs": [LARGE]}, {"op": "mm", "configs": [SMALL]})
    assert tiles(lower(torch.addmm, bias, *MATRIX[1:3])) == [[64, 128, 32, 8]]


def test_a_bias_is_part_of_an_addmm_without_epilogues(rows: Rows) -> None:
    """With the setting ``epilogues`` off, every addmm is asked about as one."""
    rows({"op": "addmm", "configs": [LARGE]}, {"op": "mm", "configs": [SMALL]})
    with diode_lut.config.patch(epilogues=False):
        assert tiles(lower(torch.addmm, *MATRIX[:3])) == [[64, 128, 32, 8]]


def test_a_lookup_passes_few_modules(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a key made and a table read, the way from Inductor's question to a fused kernel leads through 15 modules."""
    rows(*({"op": "mm", "epilogue": name, "configs": [best]} for name, best in (("none", SMALL), ("light", LARGE))))
    monkeypatch.setattr(trace_log, "handlers", [])  # of pytest
    package, passed = str(Path(diode_lut.__file__).parent), set[str]()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            passed.add(frame.f_code.co_filename.removeprefix(package))

    def lower_with(rows_of_a: int) -> Lowered:
        return lower(lambda a, b: (a @ b).relu(), Input((rows_of_a, 1024)), Input((1024, 2048)))

    lower_with(256)
    with tracing(TracingContext(None)):
        assert V.choices.uuid()  # type: ignore[attr-defined]
        sys.setprofile(note)
        try:
            lowered = lower_with(512)
        finally:
            sys.setprofile(None)
    assert tiles(lowered) == [[64, 128, 32, 8]]
    assert len(passed) <= 15, " ".join(sorted(passed))
