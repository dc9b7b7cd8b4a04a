"""The pass that computes a matmul and the work after it by one kernel of QuACK, on a CUDA device that is not there.

tests/gpu/test_fused.py compares results where QuACK is installed.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor import config as inductor_config
from torch.fx import Graph
from torch.nn import functional

import diode_lut
from diode_lut.hook import fused, patches, quack
from diode_lut.receipts import recorder
from diode_lut.templates.config import Config
from tests.fake_cuda import H200, Input, fake_cuda, lower
from tests.hook.test_hook import Rows

pytestmark = pytest.mark.usefixtures("h200", "installed")

TILES = {"tile_m": 128, "tile_n": 192, "cluster_m": 2, "cluster_n": 1, "pingpong": 1, "swap_ab": 1}
CONFIG = {"template": "quack_gemm", **TILES}
COMPILE_KERNELS = quack.compile_kernels
X, W, BIAS, C = Input((2, 64, 256)), Input((512, 256)), Input((512,)), Input((2, 64, 512))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """QuACK seems to be installed. The names of the kernels that are to be compiled."""
    names: list[str] = []
    monkeypatch.setattr(quack, "versions", lambda: ("0.6.5", "4.8.1", "0.1.15"))
    monkeypatch.setattr(quack, "compile_kernels", names.extend)
    return names


def row(config: dict[str, Any] = CONFIG, **key: Any) -> dict[str, Any]:
    return {"op": "fused_mm", "configs": [config], **key}


def gelu(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(functional.linear(x, w, bias))


def gated(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(functional.linear(x, gate)) * functional.linear(x, up)


def works(function: Callable[..., Any], *inputs: Input) -> list[str]:
    """The work that is computed with a matmul."""
    found: list[str] = []

    def then(graph: Graph) -> None:
        fused.fuse(graph)
        graph.lint()
        found.extend(str(node.args[4]) for node in graph.nodes if node.target is fused.lower_fused)

    lowered = lower(function, *inputs, then=then)
    assert lowered.code.count("torch.ops.diode_lut.fused_mm.default(") == len(found)
    return found


@pytest.mark.parametrize(
    ("program", "inputs", "variant"),
    [
        pytest.param(gelu, (X, W, BIAS), "gelu", id="gelu"),
        pytest.param(
            lambda x, w, b: functional.gelu(functional.linear(x, w, b), approximate="tanh"),
            (X, W, BIAS),
            "gelu_tanh",
            id="gelu with tanh",
        ),
        pytest.param(lambda x, w: functional.linear(x, w).relu(), (X, W), "relu", id="relu"),
        pytest.param(lambda x, w, b, c: c + functional.linear(x, w, b), (X, W, BIAS, C), "add", id="a residual"),
        pytest.param(lambda x, w, c: functional.linear(x, w) + c, (X, W, C), "add", id="a residual on the right"),
        pytest.param(gated, (X, W, W), "swiglu", id="swiglu"),
        pytest.param(
            lambda x, g, u: functional.linear(x, u) * functional.gelu(functional.linear(x, g), approximate="tanh"),
            (X, W, W),
            "geglu",
            id="geglu",
        ),
    ],
)
def test_row_takes_the_work_along(
    rows: Rows, installed: list[str], program: Callable[..., Any], inputs: tuple[Input, ...], variant: str
) -> None:
    """A row for the variant makes one call of the matmul and its work, and a receipt tells."""
    rows(row(variant=variant))
    with recorder.collecting() as collected:
        lowered = lower(program, *inputs, then=fused.fuse)
    assert lowered.code.count("torch.ops.diode_lut.fused_mm.default(") == 1
    assert lowered.triton_kernels == []
    (device,) = collected.devices.values()
    fusions = [hit for hit in device.hits if hit.problem.op == "fused_mm"]
    (hit,) = fusions
    assert (hit.problem.variant, hit.problem.m, hit.problem.n, hit.tier) == (variant, 128, 512, "user")
    assert installed == [quack.name_of(variant, Config.parse(hit.configs[0]), bias=BIAS in inputs)]


@pytest.mark.parametrize(
    ("program", "inputs"),
    [
        pytest.param(lambda x, w, b: (y := functional.linear(x, w, b), functional.gelu(y)), (X, W, BIAS), id="read"),
        pytest.param(lambda x, w, b: functional.linear(x, w, b).sin(), (X, W, BIAS), id="other work"),
        pytest.param(lambda x, w, c: c.float() + functional.linear(x, w), (X, W, C), id="another dtype"),
        pytest.param(lambda x, w, b: functional.linear(x, w) + b, (X, W, BIAS), id="a row"),
        pytest.param(lambda x, w, c: functional.linear(x, w) + c, (X, W, Input((1, 64, 512))), id="a broadcast"),
        pytest.param(lambda x, w: (x @ w).relu(), (X, Input((256, 512))), id="row-major B"),
        pytest.param(lambda x, w: functional.linear(x, w).relu(), (Input((2, 64, 100)), Input((512, 100))), id="rows"),
        pytest.param(lambda x, w: functional.linear(x, w).exp().relu(), (X, W), id="a step before"),
        pytest.param(
            lambda x, w: functional.linear(x, w).relu(),
            (Input((2, 64, 256), torch.float16), Input((512, 256), torch.float16)),
            id="float16",
        ),
        pytest.param(lambda x, w: functional.linear(x, w).relu(), (Input((64, 256), dynamic=[0]), W), id="sizes"),
        pytest.param(lambda x, w, c: functional.linear(x, w) + c, (X, W, Input((2, 64, 512), offset=1)), id="offset"),
        pytest.param(gelu, (X, W, Input((512,), offset=1)), id="offset of the bias"),
        pytest.param(lambda x, w: (y := functional.linear(x, w)) * functional.silu(y), (X, W), id="its own gate"),
        pytest.param(lambda x, w: (y := functional.linear(x, w)) + y, (X, W), id="its own residual"),
        pytest.param(
            lambda x, w, c: torch.cat([functional.linear(x, w).relu(), c], 2), (X, W, C), id="a part of a concatenation"
        ),
    ],
)
def test_others_are_left(rows: Rows, program: Callable[..., Any], inputs: tuple[Input, ...]) -> None:
    """Steps that are read elsewhere, and work and operands for which there is no kernel, are Inductor's."""
    rows(row())
    assert works(program, *inputs) == []


def test_a_gate_is_activated_where_it_is_multiplied(rows: Rows) -> None:
    """With rows for both, the gate's matmul is left alone."""
    rows(row(variant="geglu"), row(variant="gelu_tanh"))
    program: Callable[..., Any] = lambda x, g, u: (  # noqa: E731
        functional.gelu(functional.linear(x, g), approximate="tanh") * functional.linear(x, u)
    )
    assert works(program, X, W, W) == ["geglu"]


def test_layers_follow_each_other(rows: Rows) -> None:
    """A residual that is itself such a result is read where it is now."""

    def program(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        y = x + functional.linear(functional.linear(x, v).relu(), w)
        return y + functional.linear(functional.linear(y, v).relu(), w)

    rows(row())
    assert works(program, X, W, Input((256, 512))) == ["relu", "add", "relu", "add"]


def test_nothing_moves_over_what_is_written_in_place(rows: Rows) -> None:
    """A matmul is not computed where its result is activated, if anything is written between."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        y = functional.linear(x, w)
        x.view(-1).add_(1)
        return y.relu()

    rows(row())
    assert works(program, X, W) == []


def test_rows_that_are_not_aligned(rows: Rows) -> None:
    """The kernel reads rows of 16 bytes at least, and writes such rows."""
    rows(row())
    program: Callable[..., Any] = lambda x, w: functional.linear(x, w).relu()  # noqa: E731
    assert works(program, X, Input((500, 256))) == []
    assert works(program, X, Input((504, 256))) == ["relu"]


def test_without_quack_nothing_changes(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package, nobody is asked."""
    rows(row())
    monkeypatch.setattr(quack, "versions", tuple)
    with recorder.collecting() as collected:
        assert works(gelu, X, W, BIAS) == []
    assert all(hit.problem.op != "fused_mm" for device in collected.devices.values() for hit in device.hits)


@pytest.mark.parametrize("setting", ["cpp_wrapper", "emulate_precision_casts"])
def test_inductors_settings_win(rows: Rows, setting: str) -> None:
    """A wrapper that calls no Python, and roundings of each step, leave the work to Inductor."""
    rows(row())
    found: list[Any] = []
    with inductor_config.patch({setting: True}):
        lower(gelu, X, W, BIAS, then=lambda graph: (fused.fuse(graph), found.extend(graph.nodes)))
    assert all(node.target is not fused.lower_fused for node in found)


@pytest.mark.parametrize("settings", [{"policy": "verify"}, {"policy": "off"}, {"epilogues": False}])
def test_our_settings_win(rows: Rows, settings: dict[str, Any]) -> None:
    """Nothing is computed together where tables are off, where choices are benchmarked, or without epilogues."""
    rows(row())
    with diode_lut.config.patch(**settings):
        assert works(gelu, X, W, BIAS) == []


def test_what_no_row_knows_is_apart(rows: Rows) -> None:
    """A receipt lists work for which no row has a config, once, though there are views of its result."""
    rows(row(variant="relu"), row(variant="gelu_tanh", m=[1, 16]))
    with recorder.collecting() as collected:
        assert works(lambda x, w, bias: gelu(x, w, bias).view(128, 512), X, W, BIAS) == []
    (device,) = collected.devices.values()
    counted = {(each.problem.op, each.problem.variant, each.problem.m): count for each, count in device.apart.items()}
    assert counted == {("fused_mm", "gelu", 128): 1}


def test_other_gpus_are_not_asked_about(rows: Rows) -> None:
    """On a GPU without such kernels, nobody is asked, and a receipt does not tell ``tune`` to measure any."""
    rows(row(m=[1, 16]))
    a100 = SimpleNamespace(**{**vars(H200), "name": "NVIDIA A100", "major": 8})
    with fake_cuda(a100), recorder.collecting() as collected:
        assert works(gelu, X, W, BIAS) == []
    assert all(not device.apart for device in collected.devices.values())


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        pytest.param("exit 1", "QuACK compiles no kernel", id="a process that ends"),
        pytest.param('read library failed; echo "no compiler" > "$failed"', "no compiler", id="an error"),
    ],
)
def test_a_kernel_that_cannot_be_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    """There is a reason instead of a kernel, and it is given once for a process."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(quack, "compile_kernels", COMPILE_KERNELS)
    name = quack.name_of("relu", Config.from_json(CONFIG), bias=False)
    stale = quack.directory() / f"{name}{quack.FAILED}"
    stale.write_text("of another day")
    found = quack.kernel.__wrapped__(name)
    assert isinstance(found, str)
    assert found.startswith(reason)


def test_a_kernel_that_cannot_run(caplog: pytest.LogCaptureFixture) -> None:
    """PyTorch's kernels compute the same, with a warning."""
    a, b = torch.randn(8, 16), torch.randn(16, 8)
    found = quack.fused_mm(a, b, None, None, "relu", str(Config.from_json(CONFIG)))
    assert torch.equal(found, (a @ b).relu())
    assert "PyTorch's kernels take the place of quack_gemm 128x192" in caplog.text


def test_a_cache_that_cannot_be_written(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where kernels cannot be kept, the work is left to Inductor."""
    rows(row())

    def unwritable() -> Path:
        raise PermissionError("read-only")

    monkeypatch.setattr(quack, "compile_kernels", COMPILE_KERNELS)
    monkeypatch.setattr(quack, "directory", unwritable)
    found: list[Any] = []

    def then(graph: Graph) -> None:
        patches.reinplace_inplaceable_ops(lambda *_: None, None, graph)
        found.extend(graph.nodes)

    lower(gelu, X, W, BIAS, then=then)
    assert all(node.target is not fused.lower_fused for node in found)
    assert "read-only" in caplog.text


def test_library_takes_its_place() -> None:
    """Without a kernel, PyTorch's own compute the same."""
    x, w, bias, c = torch.randn(8, 16), torch.randn(16, 8), torch.randn(8), torch.randn(8, 8)
    y = torch.addmm(bias, x, w)
    expected = {
        "relu": y.relu(),
        "gelu": functional.gelu(y),
        "gelu_tanh": functional.gelu(y, approximate="tanh"),
    }
    for work, value in expected.items():
        assert torch.equal(quack.apart(x, w, bias, None, work, ""), value)
    assert torch.equal(quack.apart(x, w, bias, c, "add", ""), c + y)
    assert torch.equal(quack.apart(x, w, bias, c, "swiglu", ""), functional.silu(c) * y)
