"""1x1 convolutions, lowered to GEMMs by rows, or with Inductor's option ``conv_1x1_as_mm``; nothing runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._inductor import config as inductor_config
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import diode_lut
from diode_lut.hook import unasked
from diode_lut.hook.epilogues import epilogue_ahead
from diode_lut.receipts import recorder
from tests.fake_cuda import Input, Lowered, compile_triton, lower

pytestmark = [
    pytest.mark.usefixtures("h200"),
    pytest.mark.skipif(
        torch.version.cuda is not None and not torch.cuda.is_available(), reason="PyTorch asks for cuDNN's version"
    ),
]

Rows = Callable[..., None]


@pytest.fixture(autouse=True)
def cudnn() -> Iterator[None]:
    """Results are channels last if images are, as cuDNN has it."""

    def memory_format(x: Tensor, *_: object) -> torch.memory_format:
        last = x.is_contiguous(memory_format=torch.channels_last)
        return torch.channels_last if last else torch.contiguous_format

    with mock.patch("torch._C._conv_determine_backend_memory_format", memory_format):
        yield


BATCH, CHANNELS, RESULTS, HEIGHT, WIDTH = 4, 64, 256, 14, 16


def triton(block_m: int) -> dict[str, Any]:
    blocks = {"block_m": block_m, "block_n": 64, "block_k": 32}
    return {"template": "triton_mm", **blocks, "group_m": 8, "num_stages": 3, "num_warps": 4}


def images(*, last: bool = True) -> Input:
    strides = (HEIGHT * WIDTH * CHANNELS, 1, WIDTH * CHANNELS, CHANNELS) if last else None
    return Input((BATCH, CHANNELS, HEIGHT, WIDTH), torch.bfloat16, strides)


WEIGHT, BIAS = Input((RESULTS, CHANNELS, 1, 1)), Input((RESULTS,))


def lowered(function: Callable[..., Tensor], *inputs: Input, as_mm: bool = True) -> Lowered:
    with inductor_config.patch(conv_1x1_as_mm=as_mm):
        return lower(function, *inputs, inference=True)


def test_gemm(rows: Rows, tmp_path: Path) -> None:
    """A 1x1 convolution is an mm of all pixels with the weight, which is column-major, and its rows answer."""
    sizes = {"m": [BATCH * HEIGHT * WIDTH] * 2, "n": [RESULTS] * 2, "k": [CHANNELS] * 2}
    rows({"op": "mm", "dtype": "bfloat16", "layout": "nt", "align": 16, **sizes, "configs": [triton(64)]})
    made = lowered(functional.conv2d, images(), WEIGHT)
    (kernel,) = made.triton_kernels
    assert made.extern == []
    assert "BLOCK_M : tl.constexpr = 64\n" in kernel
    compile_triton(kernel, tmp_path)


def test_bias(rows: Rows) -> None:
    """With a bias it is an addmm."""
    rows({"op": "addmm", "configs": [triton(64)]})
    assert len(lowered(functional.conv2d, images(), WEIGHT, BIAS).triton_templates) == 1


def test_epilogue(rows: Rows, tmp_path: Path) -> None:
    """Pointwise work behind it is an epilogue of the GEMM, with rows of its own."""
    rows({"op": "mm", "configs": [triton(64)]}, {"op": "mm", "epilogue": "light", "configs": [triton(128)]})
    made = lowered(
        lambda x, first, second: functional.conv2d(functional.conv2d(x, first).relu(), second),
        *(images(), WEIGHT, Input((CHANNELS, RESULTS, 1, 1))),
    )
    first, second = made.triton_kernels
    assert "BLOCK_M : tl.constexpr = 128\n" in first
    assert "BLOCK_M : tl.constexpr = 64\n" in second
    for kernel in (first, second):
        compile_triton(kernel, tmp_path)


def test_images_whose_channels_come_first(rows: Rows) -> None:
    """Inductor copies such images before the GEMM."""
    rows({"op": "mm", "configs": [triton(64)]})
    made = lowered(functional.conv2d, images(last=False), WEIGHT)
    assert len(made.triton_templates) == 1
    assert len(made.triton_kernels) == 2


def test_without_the_option(rows: Rows) -> None:
    """Without the option a convolution is the library's."""
    rows({"configs": [triton(64)]})
    assert lowered(functional.conv2d, images(), WEIGHT, as_mm=False).extern == ["convolution"]


def relu(x: Tensor, weight: Tensor) -> Tensor:
    return functional.conv2d(x, weight).relu()


def norm(x: Tensor, weight: Tensor, *factors: Tensor) -> Tensor:
    return functional.silu(functional.batch_norm(functional.conv2d(x, weight), *factors))


def blocks(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Two residual blocks, whose sums are read twice."""
    for _ in range(2):
        x = (x + functional.conv2d(functional.conv2d(x, first).relu(), second)).relu()
    return functional.max_pool2d(x, 2)


FACTORS = (BIAS,) * 4
OTHER = Input((CHANNELS, RESULTS, 1, 1))


@pytest.mark.parametrize(
    ("program", "inputs", "epilogue"),
    [
        pytest.param(relu, (), "light", id="relu"),
        pytest.param(norm, FACTORS, "medium", id="batch norm and silu"),
        pytest.param(lambda x, w, b: functional.conv2d(x, w, b).relu(), (BIAS,), "light", id="bias"),
        pytest.param(
            lambda x, w, y: functional.conv2d(x, w) + y,
            (Input((BATCH, RESULTS, HEIGHT, WIDTH), torch.bfloat16, (57344, 1, 4096, 256)),),
            "medium",
            id="residual",
        ),
    ],
)
def test_row_for_the_epilogue(
    rows: Rows, tmp_path: Path, program: Callable[..., Tensor], inputs: tuple[Input, ...], epilogue: str
) -> None:
    """Without the option, a row for the epilogue makes a convolution one kernel, and is recorded."""
    rows({"op": "mm", "epilogue": epilogue, "configs": [triton(64)]})
    with recorder.collecting() as collected:
        made = lowered(program, images(), WEIGHT, *inputs, as_mm=False)
    (kernel,) = made.triton_kernels
    assert made.extern == []
    compile_triton(kernel, tmp_path)
    (device,) = collected.devices.values()
    assert [(hit.problem.op, hit.problem.epilogue) for hit in device.hits] == [("mm", epilogue)]


def test_inputs_are_computed_once(rows: Rows) -> None:
    """Several convolutions and sums read one tensor, while with Inductor's option each reader computes it."""
    rows({"op": "mm", "configs": [triton(64)]})
    made = lowered(blocks, images(), WEIGHT, OTHER, as_mm=False)
    assert made.extern == []
    assert [kernel.count("tl.store(") for kernel in made.triton_kernels] == [1, 1, 1]
    assert len(re.findall(r"\.run\(", made.code)) == 5


@pytest.mark.parametrize(
    ("program", "inputs"),
    [
        pytest.param(functional.conv2d, (images(), WEIGHT), id="nothing follows"),
        pytest.param(lambda x, w: functional.conv2d(x, w).sum(1).relu(), (images(), WEIGHT), id="a sum follows"),
        pytest.param(lambda x, w: (y := functional.conv2d(x, w), y.relu()), (images(), WEIGHT), id="it is returned"),
        pytest.param(relu, (images(last=False), WEIGHT), id="channels come first"),
        pytest.param(
            lambda x, w: functional.conv2d(x.narrow(1, 8, 56), w).relu(), (images(), Input((8, 56, 1, 1))), id="gaps"
        ),
        pytest.param(relu, (images(), Input((RESULTS, CHANNELS, 3, 1))), id="a larger window"),
        pytest.param(lambda x, w: functional.conv2d(x, w, stride=2).relu(), (images(), WEIGHT), id="stride"),
        pytest.param(lambda x, w: functional.conv2d(x, w, padding=1).relu(), (images(), WEIGHT), id="padding"),
        pytest.param(
            lambda x, w: functional.conv2d(x, w, groups=2).relu(), (images(), Input((RESULTS, 32, 1, 1))), id="groups"
        ),
        pytest.param(
            lambda x, w: functional.conv_transpose2d(x, w).relu(),
            (images(), Input((CHANNELS, CHANNELS, 1, 1))),
            id="transposed",
        ),
        pytest.param(
            relu,
            (images()._replace(dtype=torch.float32), WEIGHT._replace(dtype=torch.float32)),
            id="another precision",
        ),
        pytest.param(relu, (images()._replace(dynamic=(0,)), WEIGHT), id="a dynamic size"),
    ],
)
def test_what_stays_a_convolution(
    rows: Rows, caplog: pytest.LogCaptureFixture, program: Callable[..., Any], inputs: tuple[Input, ...]
) -> None:
    """Convolutions stay the library's where no kernel would do what follows, or something would be copied."""
    rows({"configs": [triton(64)]})
    assert lowered(program, *inputs, as_mm=False).extern == ["convolution"]
    assert "left to Inductor" not in caplog.text


@pytest.mark.parametrize("setting", [{"policy": "verify"}, {"top_k": 2}, {"epilogues": False}, {"default_mode": False}])
def test_settings(rows: Rows, caplog: pytest.LogCaptureFixture, setting: dict[str, Any]) -> None:
    """Only a single kernel with an epilogue is a reason not to call cuDNN."""
    rows({"configs": [triton(64)]})
    with diode_lut.config.patch(**setting):
        assert lowered(relu, images(), WEIGHT, as_mm=False).extern == ["convolution"]
    assert "left to Inductor" not in caplog.text


@pytest.mark.parametrize("setting", ["max_autotune", "max_autotune_gemm", "triton.native_matmul"])
def test_inductors_settings_win(rows: Rows, setting: str) -> None:
    """Where a setting of Inductor's decides about convolutions or matmuls, nothing else does."""
    rows({"configs": [triton(64)]})
    with inductor_config.patch(setting, True), mock.patch.object(unasked, "convert_1x1_conv_to_mm") as ours:
        lowered(relu, images(), WEIGHT, as_mm=False)
    assert not ours.called


def test_an_error_leaves_it_to_cudnn(rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    """If lowering fails, the convolution is Inductor's, and a warning says so."""
    rows({"configs": [triton(64)]})
    with mock.patch.object(unasked, "convert_1x1_conv_to_mm", side_effect=OSError("no")):
        assert lowered(relu, images(), WEIGHT, as_mm=False).extern == ["convolution"]
    assert "a convolution is left to Inductor: OSError: no" in caplog.text


def test_rows_that_keep_it(rows: Rows) -> None:
    """A row with aten, and a row for other epilogues, leave a convolution to cuDNN."""
    rows({"epilogue": "light", "configs": [{"template": "aten"}]}, {"epilogue": "medium", "configs": [triton(64)]})
    assert lowered(relu, images(), WEIGHT, as_mm=False).extern == ["convolution"]


def test_a_model_is_no_reason() -> None:
    """Models were not measured against cuDNN, so a convolution stays where only a model answers for the matmul."""
    problem = diode_lut.Problem.of(
        "mm", BATCH * HEIGHT * WIDTH, RESULTS, CHANNELS, dtype="bfloat16", layout="nt", epilogue="light"
    )
    with diode_lut.config.patch(tables=(), tiers=("model",)):
        decision = diode_lut.select(problem, hardware="nvidia-h200")
        assert decision.configs[0].template == "triton_mm"
        assert lowered(relu, images(), WEIGHT, as_mm=False).extern == ["convolution"]


def test_training(rows: Rows) -> None:
    """In training, a batch norm follows that reads each convolution's result twice."""
    rows({"configs": [triton(64)]})
    assert lower(relu, images(), WEIGHT).extern == ["convolution"]


def test_rows_of_an_epilogue_are_read_once(rows: Rows) -> None:
    """A fused batch norm computes with rows of factors, and not with tiles of them."""
    rows({"op": "mm", "configs": [triton(64)]})
    (kernel,) = lowered(norm, images(), WEIGHT, *FACTORS, as_mm=False).triton_kernels
    assert len(re.findall(r"tl\.load\(in_ptr\d \+ \(idx_n\), \(idx_n < 256\)", kernel)) == 4


def test_estimate_of_an_epilogue_assumes_no_size() -> None:
    """Looking ahead in a graph with sizes that may change adds no guard, which a size within its bounds might break."""
    traced = make_fx(lambda x, w: (x.neg() @ w, x.neg() * 2), tracing_mode="symbolic")(
        torch.ones(4, 6), torch.ones(6, 8)
    )
    nodes = traced.graph.find_nodes(op="call_function", target=torch.ops.aten.neg.default)
    guards = nodes[0].meta["val"].shape[0].node.shape_env.guards
    before = len(guards)
    assert [epilogue_ahead(node) for node in nodes] == [None, "light"]
    assert len(guards) == before
