"""The pass that joins matmuls with the same A, on a CUDA device that is not there: which it joins, and leaves."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor import config as inductor_config
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import diode_lut
from diode_lut.hook import joined
from diode_lut.receipts import NO_ANSWER, recorder
from tests.fake_cuda import H200, L4, Input, as_hardware, compile_triton, fake_cuda, lower
from tests.hook.test_hook import Rows

pytestmark = pytest.mark.usefixtures("h200")

BLOCKS = {"block_m": 16, "block_n": 64, "block_k": 64, "group_m": 8, "num_stages": 4, "num_warps": 4}
CONFIG = {"template": "triton_joined_mm", **BLOCKS}
X, Q, K = Input((16, 256)), Input((512, 256)), Input((128, 256))


def row(config: dict[str, Any] = CONFIG, **key: Any) -> dict[str, Any]:
    return {"op": "joined_mm", "configs": [config], **key}


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Compute a linear layer in its steps. PyTorch 2.11 cannot trace the layer of a view whose size may change."""
    return (x.flatten(0, -2) @ weight.t()).view(*x.shape[:-1], -1)


def projections(x: Tensor, *weights: Tensor) -> list[Tensor]:
    return [linear(x, weight) for weight in weights]


def gated(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(linear(x, gate)) * linear(x, up)


def of_gelu(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return linear(x, up) * functional.gelu(linear(x, gate), approximate="tanh")


F8 = torch.float8_e4m3fn
X8, Q8, K8 = Input((16, 256), F8), Input((512, 256), F8), Input((128, 256), F8)


def of_float8(x: Tensor, scale: Tensor, *others: Tensor, **settings: Any) -> list[Tensor]:
    """Multiply with scales, as torchao leaves linear layers. ``others`` are weights, and after these their scales."""
    half = len(others) // 2
    settings = {"out_dtype": torch.bfloat16, "use_fast_accum": True, **settings}
    return [
        torch._scaled_mm(x, weight.t(), scale, of_weight.t(), **settings)
        for weight, of_weight in zip(others[:half], others[half:], strict=True)
    ]


def rounded(x: Tensor, low: float = 1e-12) -> tuple[Tensor, Tensor]:
    """Round to float8 with a scale for each row."""
    scale = x.float().abs().amax(1, keepdim=True).clamp(min=low) / 448
    return (x / scale).clamp(-448, 448).to(F8), scale


def each_rounding(x: Tensor, *others: Tensor, lows: tuple[float, float] = (1e-12, 1e-12)) -> list[Tensor]:
    """Multiply as torchao leaves linear layers of one input: each rounds it on its own."""
    v, w, of_v, of_w = others
    return [*of_float8(*rounded(x, lows[0]), v, of_v), *of_float8(*rounded(x, lows[1]), w, of_w)]


def gated_float8(*inputs: Tensor) -> Tensor:
    gate, up = of_float8(*inputs)
    return functional.silu(gate) * up


def scales(*rows: int) -> tuple[Input, ...]:
    return tuple(Input((each, 1), torch.float32) for each in rows)


def variants(function: Callable[..., Any], *inputs: Input) -> list[str]:
    """The variants of what is joined."""
    found: list[str] = []

    def then(graph: Graph) -> None:
        joined.join(graph)
        graph.lint()
        found.extend(str(node.args[3]) for node in graph.nodes if node.target is joined.lower_joined)

    lowered = lower(function, *inputs, then=then)
    assert lowered.code.count("TILES_N : tl.constexpr") >= bool(found)
    return found


@pytest.mark.parametrize(
    ("program", "inputs", "variant"),
    [
        pytest.param(projections, (X, Q, K, K), "three", id="three"),
        pytest.param(projections, (X, Q, K), "two", id="two"),
        pytest.param(projections, (Input((2, 8, 256)), Q, K), "two", id="views"),
        pytest.param(gated, (X, Q, Q), "swiglu", id="swiglu"),
        pytest.param(gated, (Input((2, 8, 256)), Q, Q), "swiglu", id="swiglu, views"),
        pytest.param(of_gelu, (X, Q, Q), "geglu", id="geglu"),
        pytest.param(lambda x, v, w: (x @ v, x @ w), (X, Input((256, 512)), Input((256, 64))), "two", id="row-major"),
        pytest.param(
            lambda x, w: [functional.linear(x, part) for part in w.split(128)],
            (X, Input((384, 256))),
            "three",
            id="packed",
        ),
        pytest.param(
            lambda x, v, w, b: (functional.linear(x, v, b), functional.linear(x, w)),
            (X, Q, K, Input((512,))),
            "two",
            id="a bias",
        ),
        pytest.param(of_float8, (X8, *scales(16), Q8, K8, K8, *scales(512, 128, 128)), "three", id="float8, rows"),
        pytest.param(of_float8, (X8, *scales(1), Q8, K8, *scales(1, 1)), "two", id="float8, tensors"),
        pytest.param(each_rounding, (X, Q8, K8, *scales(512, 128)), "two", id="float8, each rounds A"),
        pytest.param(gated_float8, (X8, *scales(16), Q8, Q8, *scales(512, 512)), "swiglu", id="float8, swiglu"),
    ],
)
def test_row_joins_them(
    rows: Rows, tmp_path: Path, program: Callable[..., Any], inputs: tuple[Input, ...], variant: str
) -> None:
    """A row for the variant makes one kernel of the matmuls, which Triton compiles for sm_90, and a receipt tells."""
    rows(row(variant=variant))
    with recorder.collecting() as collected:
        lowered = lower(program, *inputs, then=joined.join)
    (kernel,) = lowered.triton_templates
    assert lowered.extern == []
    assert compile_triton(kernel, tmp_path).metadata.shared <= H200.shared_memory_per_block_optin
    (device,) = collected.devices.values()
    (hit,) = device.hits
    assert (hit.problem.op, hit.problem.variant, hit.tier) == ("joined_mm", variant, "user")
    assert not device.misses


def test_problem_has_all_columns(rows: Rows) -> None:
    """The row is asked about M, K, and the columns of all B together."""
    rows(row(variant="three", m=[16, 16], n=[768, 768], k=[256, 256], dtype="bfloat16", layout="nt", align=16))
    assert variants(projections, X, Q, K, K) == ["three"]
    assert variants(projections, X, Q, Q, K) == []


def test_receipt_has_what_stays_apart(rows: Rows) -> None:
    """Matmuls that could be joined are in the receipt if no row has an answer, and not if a row says default."""
    for config, expected in ((None, [("three", 768, NO_ANSWER)]), ({"template": "default"}, [])):
        rows(*([row(config)] if config else []))
        with recorder.collecting() as collected:
            lower(projections, X, Q, K, K, then=joined.join)
        apart = [asked for device in collected.devices.values() for asked in device.apart]
        assert [(asked.problem.variant, asked.problem.n, asked.reason) for asked in apart] == expected


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda x, v, w: (x @ v, x.sin() @ w), id="another A"),
        pytest.param(lambda x, v, w: (x.narrow(0, 0, 8) @ v, x.narrow(0, 8, 8) @ w), id="another part of A"),
        pytest.param(lambda x, v, w: (x @ v, x.t().reshape(16, 256) @ w), id="another order of A"),
        pytest.param(lambda x, v, w: ((x * 2) @ v, (x * 2.5) @ w), id="A times another number"),
        pytest.param(lambda x, v, w: x @ (v * (x @ w).amax()), id="one depends on another"),
        pytest.param(lambda x, v, w: ((y := x @ v), x @ (w * y.amax())), id="B depends on another"),
        pytest.param(lambda x, v, w: torch.cat([x @ v, x @ w], 1), id="parts of a concatenation"),
        pytest.param(lambda x, v, w: (x @ v, x @ w.t()), id="other layouts of B"),
        pytest.param(lambda x, v, w: (x @ v, torch.addmm(w.narrow(0, 0, 16), x, w)), id="a bias that is a matrix"),
        pytest.param(lambda x, v, w: (x @ v, torch.addmm(w.select(0, 0), x, w, alpha=2)), id="a factor"),
        pytest.param(lambda x, v, w: (x @ v, x.float() @ w.float()), id="another dtype"),
    ],
)
def test_others_stay_apart(rows: Rows, program: Callable[..., Any]) -> None:
    """Matmuls without the same A, and those for which the kernel is not made, are Inductor's."""
    rows(row())
    assert variants(program, X, Input((256, 256)), Input((256, 256))) == []


@pytest.mark.parametrize("what", ["equal", "random", "written into"])
def test_equal_words_are_not_always_equal_numbers(rows: Rows, what: str) -> None:
    """Two random A are not equal, nor are two that read a tensor before and after it is written into."""
    rows(row())
    found: list[Any] = []

    def program(x: Tensor, v: Tensor, w: Tensor, of_v: Tensor, of_w: Tensor) -> list[Tensor]:
        noise = [torch.rand_like(x) if what == "random" else torch.ones_like(x) for _ in range(2)]
        first, second = (rounded(x + each) for each in noise)
        return [*of_float8(*first, v, of_v), *of_float8(*second, w, of_w)]

    def then(graph: Graph) -> None:
        if what == "written into":
            _, second = graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
            x = second.args[0]
            with graph.inserting_before(second):
                graph.call_function(torch.ops.aten.copy_.default, (x, x))
        joined.join(graph)
        found.extend(node.target for node in graph.nodes)
        raise NotImplementedError  # nothing more is to be seen

    with pytest.raises(NotImplementedError):
        lower(program, X, Q8, K8, *scales(512, 128), then=then)
    assert found.count(torch.ops.aten._scaled_mm.default) == (0 if what == "equal" else 2)


def test_looking_for_an_activation_assumes_no_size(rows: Rows) -> None:
    """A product with a tensor whose size may change adds no guard, which a size within its bounds might break."""
    rows(row())
    program = make_fx(lambda x, v, w, y: (x @ v, (x @ w) * y), tracing_mode="symbolic")
    traced = program(*(torch.ones(size) for size in ((4, 6), (6, 8), (6, 8), (3, 4, 8))))
    gate, up = traced.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    guards = up.meta["val"].shape[0].node.shape_env.guards
    before = len(guards)
    assert joined._gated(gate, up) is None
    assert len(guards) == before


def test_what_is_read_between_is_not_swiglu(rows: Rows) -> None:
    """If something else reads the gate, both products are written."""
    rows(row())

    def program(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        gate = functional.linear(x, v)
        return functional.silu(gate) * functional.linear(x, w), gate

    assert variants(program, X, Q, Q) == ["two"]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda x, v, w: functional.gelu(functional.linear(x, v)) * functional.linear(x, w), id="gelu"),
        pytest.param(lambda x, v, w: functional.silu(functional.linear(x, v)) + functional.linear(x, w), id="a sum"),
        pytest.param(
            lambda x, v, w: functional.silu(functional.linear(x, v)).float() * functional.linear(x, w),
            id="another dtype",
        ),
    ],
)
def test_other_activations_are_not_swiglu(rows: Rows, program: Callable[..., Any]) -> None:
    """Only ``silu(gate) * up`` is computed in the kernel."""
    rows(row())
    assert variants(program, X, Q, Q) == ["two"]


@pytest.mark.parametrize("program", [gated, of_gelu])
def test_gates_are_joined_without_their_activation(rows: Rows, program: Callable[..., Any]) -> None:
    """Where no row computes the activation in the kernel, a row for two matmuls joins them."""
    rows(row(variant="two"))
    assert variants(program, X, Q, Q) == ["two"]


def test_up_and_gate_in_any_order(rows: Rows) -> None:
    """The order in the program decides about nothing: the gate is the product that goes through silu."""
    rows(row(variant="swiglu"))
    assert variants(lambda x, v, w: functional.linear(x, w) * functional.silu(functional.linear(x, v)), X, Q, Q) == [
        "swiglu"
    ]


@pytest.mark.parametrize(("m", "found"), [(64, ["two"]), (65, [])])
def test_many_rows_keep_their_epilogues(rows: Rows, m: int, found: list[str]) -> None:
    """With more than 64 rows, matmuls that pointwise work follows stay apart."""
    rows(row())
    program = lambda x, v, w: (functional.linear(x, v).relu(), functional.linear(x, w))  # noqa: E731
    assert variants(program, Input((m, 256)), Q, K) == found
    assert variants(projections, Input((m, 256)), Q, K) == ["two"]


BLOCKS_OF = {rows: Input((rows, 2), torch.float32) for rows in (16, 128, 512)}  # a scale for 128 elements of a row
OF_ROWS = (X8, *scales(16), Q8, K8, *scales(512, 128))


@pytest.mark.parametrize(
    ("program", "inputs"),
    [
        pytest.param(partial(of_float8, use_fast_accum=False), OF_ROWS, id="precise sums"),
        pytest.param(partial(of_float8, out_dtype=torch.float16), OF_ROWS, id="another result"),
        pytest.param(
            lambda x, s, v, w, of_v, of_w: (*of_float8(x, s, v, of_v), *of_float8(x, s + 1, w, of_w)),
            OF_ROWS,
            id="other scales of A",
        ),
        pytest.param(
            partial(each_rounding, lows=(0.0, -0.0)), (X, Q8, K8, *scales(512, 128)), id="A rounded in another way"
        ),
        pytest.param(of_float8, (X8, BLOCKS_OF[16], Q8, K8, BLOCKS_OF[512], BLOCKS_OF[128]), id="scales of blocks"),
    ],
)
def test_other_float8_stays_apart(rows: Rows, program: Callable[..., Any], inputs: tuple[Input, ...]) -> None:
    """Float8 is joined only as kernels are timed: with fast sums, a result in bfloat16, and scales of rows."""
    rows(row())
    assert variants(program, *inputs) == []


def test_what_each_matmul_computes_is_computed_once(rows: Rows) -> None:
    """Of equal computations of A, one is left."""
    rows(row())
    maxima: list[int] = []

    def then(graph: Graph) -> None:
        for step in (id, joined.join):
            step(graph)
            maxima.append(sum(node.target is torch.ops.aten.amax.default for node in graph.nodes))

    lower(each_rounding, X, Q8, K8, *scales(512, 128), then=then)
    assert maxima == [2, 1]


def test_float8_of_a_size_that_may_change(rows: Rows) -> None:
    """Joined float8 may have a dynamic M, with the scales of its rows."""
    rows(_gaining(16, [1, 64], "two"))
    x, scale = (Input((16, size), dtype, dynamic=(0,), most=64) for size, dtype in ((256, F8), (1, torch.float32)))
    assert variants(of_float8, x, scale, Q8, K8, *scales(512, 128)) == ["two"]


def test_nothing_is_fused(rows: Rows) -> None:
    """Work after a joined kernel has a kernel of its own, because nobody has timed it in this one."""
    rows(row())
    lowered = lower(
        lambda x, v, w: (functional.linear(x, v).relu(), functional.linear(x, w).relu()), X, Q, Q, then=joined.join
    )
    assert (len(lowered.triton_templates), len(lowered.triton_kernels)) == (1, 3)


def test_what_is_joined_may_be_read_by_others(rows: Rows) -> None:
    """A is the result of a joined matmul, and B of another group."""
    rows(row())

    def program(x: Tensor, v: Tensor, w: Tensor) -> list[Tensor]:
        first, second = x @ v, x @ w
        third = functional.silu(first @ v) * (first @ w)
        return [first, second @ second.t(), third @ v, third @ w, first.t() @ w.narrow(0, 0, 16), first.t() @ second]

    square = Input((256, 256))
    assert variants(program, X, square, square) == ["two", "swiglu", "two", "two"]


def test_casts_that_are_emulated(rows: Rows) -> None:
    """With Inductor's setting for it, silu is rounded before it is multiplied, as in eager mode."""
    rows(row())
    with inductor_config.patch(emulate_precision_casts=True):
        assert variants(gated, X, Q, Q) == ["two"]


def test_three_of_four(rows: Rows) -> None:
    """A kernel has at most three B."""
    rows(row())
    assert variants(projections, X, Q, K, K, Q) == ["three"]


def test_nothing_moves_over_what_is_written_in_place(rows: Rows) -> None:
    """A was changed between the matmuls."""
    rows(row())

    def program(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        first = x @ v
        x.view(-1).add_(1)
        return first, x @ w

    assert variants(program, X, Input((256, 256)), Input((256, 256))) == []


@pytest.mark.parametrize(("device", "expected"), [(H200, ["two"]), (L4, [])], ids=["H200", "L4"])
def test_precision_of_timings(device: Any, expected: list[str], rows: Rows) -> None:
    """Where the program lets the library add up in float16, they stay apart if that may make the library faster."""
    rows(row(), hardware=as_hardware(device))
    shapes = [Input(each.shape, torch.float16) for each in (X, Q, K)]
    matmul = torch.backends.cuda.matmul
    with fake_cuda(device):
        assert variants(projections, *shapes) == ["two"]
        before, matmul.allow_fp16_accumulation = matmul.allow_fp16_accumulation, True
        try:
            assert variants(projections, *shapes) == expected
        finally:
            matmul.allow_fp16_accumulation = before


def _gaining(block_m: int, m: list[int], variant: str) -> dict[str, Any]:
    return row({**CONFIG, "block_m": block_m, "gain_permille": 1500}, variant=variant, m=m)


@pytest.mark.parametrize(
    ("program", "shape", "columns", "variant"),
    [
        pytest.param(projections, (16, 256), (Q, K, K), "three", id="three"),
        pytest.param(projections, (16, 2, 256), (Q, K), "two", id="views"),
        pytest.param(gated, (16, 256), (Q, Q), "swiglu", id="swiglu"),
        pytest.param(of_gelu, (16, 2, 256), (Q, Q), "geglu", id="geglu, views"),
    ],
)
def test_a_size_that_may_change_has_kernels_for_parts_of_its_range(
    rows: Rows, tmp_path: Path, program: Callable[..., Any], shape: tuple[int, ...], columns: Any, variant: str
) -> None:
    """Each part has the kernel of its row, and the code compares the size with the border."""
    rows(_gaining(16, [1, 16], variant), _gaining(64, [17, 64], variant))
    x = Input(shape, dynamic=(0,), most=64 // (shape[1] if len(shape) > 2 else 1))
    with recorder.collecting() as collected:
        lowered = lower(program, x, *columns, then=joined.join)
    assert len(lowered.triton_templates) == lowered.code.count(".run(") == 2
    assert re.search(r"if (2\*)?s\d+ <= 16:\n", lowered.code)
    assert lowered.extern == []
    for kernel in lowered.triton_templates:
        assert compile_triton(kernel, tmp_path).metadata.shared <= H200.shared_memory_per_block_optin
    (device,) = collected.devices.values()
    assert [hit.over.partition(" to ")[2] for hit in device.hits] == ["16", "64"]


@pytest.mark.parametrize("dynamic", ["m", "m without bounds", "n"])
def test_sizes_that_may_change_stay_apart(rows: Rows, dynamic: str) -> None:
    """Matmuls stay apart if no row says that a kernel is faster for all sizes, or if columns may change."""
    rows(_gaining(16, [1, 64], "two"))
    if dynamic == "n":
        shapes = [X, Q, Input((128, 256), dynamic=(0,))]
    else:
        shapes = [Input((16, 256), dynamic=(0,), most=4096 if dynamic == "m" else None), Q, K]
    assert variants(projections, *shapes) == []


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(row({"template": "default"}), id="apart"),
        pytest.param(row(m=[17, 32]), id="other sizes"),
        pytest.param(row(variant="three"), id="another number"),
        pytest.param({"configs": [{"template": "aten"}]}, id="any op"),
    ],
)
def test_other_rows_leave_them_apart(rows: Rows, entry: dict[str, Any]) -> None:
    """Rows that name no kernel for the group leave it apart, and nobody misses it."""
    rows(entry)
    with diode_lut.config.patch(strict=True):
        found = [] if "op" not in entry else variants(lambda x, v, w: x.sin(), X, Q, K)
    assert found == []
    assert variants(projections, X, Q, K) == []


def test_config_that_cannot_run_is_skipped(rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    """A warning tells of it, and the next is taken."""
    caplog.set_level(logging.WARNING)
    large = {**CONFIG, "block_n": 256, "block_k": 256}
    rows({"op": "joined_mm", "configs": [large, CONFIG]})
    assert variants(projections, X, Q, K) == ["two"]
    assert "bytes of shared memory" in caplog.text
    rows({"op": "joined_mm", "configs": [{**CONFIG, "block_k": 16}, CONFIG]})
    assert variants(of_float8, *OF_ROWS) == ["two"]
    assert "32 elements of float8" in caplog.text


@pytest.mark.parametrize("setting", ["cpp_wrapper", "triton.native_matmul", "batch_invariant"])
def test_inductors_settings_win(rows: Rows, setting: str) -> None:
    """With these settings of Inductor's, matmuls stay apart."""
    if setting == "batch_invariant" and not hasattr(inductor_config, setting):
        pytest.skip("this release has no such setting")
    rows(row())
    graph = _graph()
    with inductor_config.patch({setting: True}):
        joined.join(graph)
    assert not any(node.target is joined.lower_joined for node in graph.nodes)


@pytest.mark.parametrize("settings", [{"policy": "off"}, {"policy": "verify"}, {"default_mode": False}])
def test_our_settings_win(rows: Rows, settings: dict[str, Any]) -> None:
    """Where tables are not to decide alone, matmuls stay apart."""
    rows(row())
    graph = _graph()
    with diode_lut.config.patch(**settings):
        joined.join(graph)
    assert not any(node.target is joined.lower_joined for node in graph.nodes)


def _graph() -> Graph:
    found: list[Graph] = []
    lower(projections, X, Q, K, then=found.append)
    return found[0]


def test_a_kernel_that_fails_leaves_them_apart(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in Inductor costs the kernel, and not the compile."""

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no kernel")

    rows(row())
    monkeypatch.setattr(joined, "joined_template", fail)
    for program, inputs in ((projections, (X, Q, K)), (gated, (X, Q, Q)), (of_gelu, (X, Q, Q))):
        lowered = lower(program, *inputs, then=joined.join)
        assert lowered.extern == ["mm", "mm"]
