"""A row's kernel is compiled with the options that it was timed with, whatever Inductor derives, or is not taken."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from diode_lut.decide.decide import NOT_AS_TIMED
from diode_lut.hook.snapshot import snapshot
from diode_lut.receipts import recorder
from diode_lut.templates.config import Config
from tests.fake_cuda import H200, L4, Input, Lowered, as_hardware, fake_cuda, lower
from tests.hook.test_hook import ATEN, BMM, MM, TMA, constants, triton, uses_aten

pytestmark = pytest.mark.usefixtures("h200", "settings")

Rows = Callable[..., None]
MATMUL = torch.backends.cuda.matmul
WIDE = triton("triton_mm", 128, 128, 64)
BETWEEN_TWO = (
    {"m": [1, 63], "configs": [{**MM, "gain_permille": 1500}, {**WIDE, "gain_permille": 995}]},
    {"m": [64, 8192], "configs": [{**WIDE, "gain_permille": 1200}, {**MM, "gain_permille": 700}]},
)
"""Rows for which a dynamic M gets a kernel for each part of its range."""


@pytest.fixture
def settings() -> Iterator[None]:
    """Puts PyTorch's settings back."""
    precision, in_float16 = torch.get_float32_matmul_precision(), MATMUL.allow_fp16_accumulation
    yield
    torch.set_float32_matmul_precision(precision)
    MATMUL.allow_fp16_accumulation = in_float16
    torch._C._set_sm_carveout_experimental(None)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b.t()


def mm(
    m: int = 512, n: int = 2048, k: int = 1024, *, dtype: torch.dtype = torch.bfloat16, dynamic: str = ""
) -> Lowered:
    """A product with a column-major B, whose sizes in ``dynamic`` may change."""
    a = Input((m, k), dtype, dynamic=["mk".index(name) for name in dynamic if name in "mk"], most=8192)
    b = Input((n, k), dtype, dynamic=["nk".index(name) for name in dynamic if name in "nk"], most=8192)
    return lower(product, a, b)


def options(lowered: Lowered, name: str) -> set[str]:
    """The values of an option in all kernels of templates, of which there are some."""
    assert lowered.triton_templates
    return {constants(kernel)[name] for kernel in lowered.triton_templates}


DYNAMIC = pytest.mark.parametrize("dynamic", ["", "m"], ids=["static", "dynamic"])


@DYNAMIC
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (512, 2048, 1024),
        (8, 2048, 1024),
        pytest.param(512, 64, 1024, marks=pytest.mark.slow),
        pytest.param(512, 2048, 128, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("config", [MM, TMA], ids=lambda config: config["template"])
def test_tf32_wherever_it_is_allowed(config: dict[str, Any], m: int, n: int, k: int, dynamic: str, rows: Rows) -> None:
    """Rows for tf32 get it in every size and range, and rows for float32 in none."""
    rows({"dtype": "float32", "configs": [config]}, {"dtype": "tf32", "configs": [{**config, "num_stages": 2}]})
    for precision, tf32, stages in (("highest", "False", 3), ("high", "True", 2)):
        torch.set_float32_matmul_precision(precision)
        lowered = mm(m, n, k, dtype=torch.float32, dynamic=dynamic)
        assert options(lowered, "ALLOW_TF32") == {tf32}
        assert all(f"num_stages={stages}," in kernel for kernel in lowered.triton_templates)


@pytest.mark.parametrize("fused", [False, True])
def test_tf32_in_all_parts_of_a_range(fused: bool, rows: Rows) -> None:
    """Each kernel for a part of a dynamic size's range has it, with and without an epilogue."""
    rows(*({"dtype": "tf32", **row} for row in BETWEEN_TWO))
    torch.set_float32_matmul_precision("high")
    inputs = Input((16, 1024), torch.float32, dynamic=[0], most=8192), Input((1024, 2048), torch.float32)
    lowered = lower((lambda a, b: (a @ b).relu()) if fused else torch.mm, *inputs)
    assert len(lowered.triton_templates) == 2
    assert options(lowered, "ALLOW_TF32") == {"True"}


@pytest.mark.parametrize("dynamic", [(), (0,)], ids=["static", "dynamic"])
def test_tf32_in_a_batch(dynamic: tuple[int, ...], rows: Rows) -> None:
    """So has a kernel for a batch, where Inductor sees no size of at least 512."""
    rows({"op": "bmm", "dtype": "tf32", "configs": [BMM]})
    torch.set_float32_matmul_precision("high")
    a, b = Input((8, 128, 64), torch.float32, dynamic=dynamic, most=512), Input((64, 96), torch.float32)
    lowered = lower(lambda a, b: torch.bmm(a, b.expand(a.shape[0], 64, 96)), a, b)
    assert options(lowered, "ALLOW_TF32") == {"True"}


@pytest.mark.skipif(not hasattr(inductor_config, "force_same_precision"), reason="this release has no such setting")
def test_tf32_only_where_the_library_has_it(rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    """Where a user keeps TF32 to sizes that are multiples, rows for tf32 give way at all others."""
    rows({"dtype": "tf32", "configs": [MM, ATEN]})
    torch.set_float32_matmul_precision("high")
    with inductor_config.patch(force_same_precision=True), caplog.at_level(logging.WARNING, "diode_lut"):
        assert options(mm(dtype=torch.float32), "ALLOW_TF32") == {"True"}
        assert uses_aten(mm(513, dtype=torch.float32))
    assert "force_same_precision" in caplog.text


@DYNAMIC
@pytest.mark.parametrize("precision", ["high", "highest"])
def test_tritons_own_precision(
    precision: str, dynamic: str, rows: Rows, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A variable that has Triton multiply float32 otherwise than kernels ask for keeps rows' kernels away."""
    rows({"configs": [MM, ATEN], "note": f"{precision} {dynamic}"})
    torch.set_float32_matmul_precision(precision)
    same, other = ("tf32", "ieee") if precision == "high" else ("ieee", "tf32")
    monkeypatch.setenv("TRITON_F32_DEFAULT", same)
    assert mm(dtype=torch.float32, dynamic=dynamic).triton_templates
    monkeypatch.setenv("TRITON_F32_DEFAULT", other)
    with caplog.at_level(logging.WARNING, "diode_lut"):
        assert uses_aten(mm(dtype=torch.float32, dynamic=dynamic))
    assert f"TRITON_F32_DEFAULT={other}" in caplog.text
    assert mm(dynamic=dynamic).triton_templates


def test_a_precision_that_changes_within_a_compile(rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    """Where a backward pass is compiled after the precision has changed, no kernel has a precision of before."""
    rows({"dtype": "tf32", "configs": [MM, ATEN], "note": "changes"})  # a row of its own, as each is warned of once
    torch.set_float32_matmul_precision("high")
    with tracing(TracingContext(FakeTensorMode(shape_env=ShapeEnv()))):
        assert mm(dtype=torch.float32).triton_templates
        torch.set_float32_matmul_precision("highest")
        with caplog.at_level(logging.WARNING, "diode_lut"):
            assert uses_aten(mm(dtype=torch.float32))
        assert not snapshot().answered
    assert "has changed since the compile began" in caplog.text


@pytest.mark.parametrize(("k", "expected"), [(1024, "True"), (1000, "False")])
def test_even_k_is_derived(k: int, expected: str, rows: Rows) -> None:
    """EVEN_K holds only where this K is known to be a multiple of this BLOCK_K."""
    rows({"configs": [triton("triton_mm", 64, 64, 64)]})
    for dynamic in ("", "m"):
        assert options(mm(k=k, dynamic=dynamic), "EVEN_K") == {expected}


LOST: dict[str, tuple[Callable[..., Any], Input, Input]] = {
    "N": (product, Input((512, 1024)), Input((2048, 1024), dynamic=(0,))),
    "N of a row-major B": (torch.mm, Input((512, 1024)), Input((1024, 2048), dynamic=(1,))),
    "K": (product, Input((512, 1024), dynamic=(1,)), Input((2048, 1024), dynamic=(1,))),
    "K of a gradient": (lambda a, b: a.t() @ b, Input((1024, 512), dynamic=(0,)), Input((1024, 2048), dynamic=(0,))),
    "M of a column-major A": (lambda a, b: a.t() @ b, Input((1024, 512), dynamic=(1,)), Input((1024, 2048))),
}


@pytest.mark.parametrize("most", [None, 4096], ids=["unbounded", "bounded"])
@pytest.mark.parametrize("name", LOST)
def test_sizes_that_were_constants(name: str, most: int | None, rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    """Where a size may change that the timed kernel depends on, the library is taken, and receipts say why."""
    rows({"configs": [{**MM, "gain_permille": 1500}]})
    function, *inputs = LOST[name]
    assert lower(function, *(each._replace(dynamic=()) for each in inputs)).triton_templates
    with recorder.collecting() as collected:
        assert uses_aten(lower(function, *(each._replace(most=most) for each in inputs)))
    (device,) = collected.devices.values()
    assert [(skip.config, skip.reason) for skip in device.skipped] == [(str(Config.from_json(MM)), NOT_AS_TIMED)]
    assert [hit.configs for hit in device.hits] == [("aten",)]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_sizes_that_were_constants_behind_an_epilogue(rows: Rows) -> None:
    """No epilogue is fused into such a kernel either."""
    rows({"epilogue": "none", "configs": [ATEN]}, {"epilogue": "light", "configs": [MM]})

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a @ b.t()).relu()

    a, b = Input((512, 1024)), Input((2048, 1024))
    assert lower(function, a, b).triton_templates
    assert lower(function, a, b._replace(dynamic=(0,))).triton_templates == []


@pytest.mark.parametrize("dynamic", ["m", "n", "mn"])
def test_tensor_descriptors_need_no_constants(dynamic: str, rows: Rows) -> None:
    """Kernels with tensor descriptors are taken with any dynamic size that keeps rows aligned."""
    rows({"configs": [TMA]})
    assert mm(dynamic=dynamic).triton_templates


def test_a_dynamic_batch_changes_nothing_in_a_kernel(rows: Rows) -> None:
    """Of the number of matrices a kernel knows nothing but where they end, so all else in it is the same."""
    rows({"configs": [BMM]})

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a, b.expand(a.shape[0], 64, 96))

    bodies = []
    for dynamic in ((), (0,)):
        (kernel,) = lower(function, Input((8, 128, 64), dynamic=dynamic, most=512), Input((64, 96))).triton_templates
        *_, body = kernel.partition("@triton.jit")[2].partition("):\n")
        bodies.append(re.sub(r"BATCH = \w+\n", "", body))
    assert bodies[0] == bodies[1]


@DYNAMIC
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_kernels_add_up_in_float32(dtype: torch.dtype, dynamic: str, rows: Rows) -> None:
    """The accumulator's type is that of the timings, and so is how it adds, in every release."""
    rows({"configs": [MM]})
    lowered = mm(dtype=dtype, dynamic=dynamic)
    assert options(lowered, "ACC_TYPE") == {"tl.float32"}
    assert options(lowered, "USE_FAST_ACCUM") == {"False"}
    assert options(lowered, "INDEX_DTYPE") == {"tl.int32"}


SPLIT = {"template": "decompose_k", "k_split": 4}


@DYNAMIC
@pytest.mark.parametrize("config", [MM, TMA], ids=lambda config: config["template"])
def test_accumulation_in_float16(config: dict[str, Any], dynamic: str, rows: Rows) -> None:
    """Where the library may add up in float16, kernels still add up in float32, and are taken as ever on an H200."""
    rows({"configs": [config, ATEN]})
    apart = [kernel.partition("def triton")[2] for kernel in mm(dtype=torch.float16, dynamic=dynamic).triton_templates]
    MATMUL.allow_fp16_accumulation = True
    allowed = mm(dtype=torch.float16, dynamic=dynamic).triton_templates
    assert [kernel.partition("def triton")[2] for kernel in allowed] == apart
    assert apart


@DYNAMIC
@pytest.mark.parametrize(
    ("device", "config", "reason"),
    [
        pytest.param(H200, SPLIT, "the library multiplies the parts of K", id="parts of K"),
        pytest.param(L4, {**MM, "gain_permille": 1500}, "may make the library faster", id="L4"),
    ],
)
def test_accumulation_in_float16_of_the_library(
    device: Any, config: dict[str, Any], reason: str, dynamic: str, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows are passed over where the library computes a part of it, or may be faster than it was timed."""
    rows({"configs": [config, ATEN], "note": dynamic}, hardware=as_hardware(device))
    with fake_cuda(device):
        assert config is SPLIT or mm(dtype=torch.float16, dynamic=dynamic).triton_templates
        MATMUL.allow_fp16_accumulation = True
        with caplog.at_level(logging.WARNING, "diode_lut"):
            assert uses_aten(mm(dtype=torch.float16, dynamic=dynamic))
        assert reason in caplog.text
        assert config is SPLIT or mm(dynamic=dynamic).triton_templates


@DYNAMIC
def test_fewer_sms(dynamic: str, rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    """Where kernels are to leave SMs free, none is taken: they were timed on all."""
    rows({"configs": [TMA, MM, ATEN], "note": dynamic})
    assert mm(dynamic=dynamic).triton_templates
    torch._C._set_sm_carveout_experimental(16)
    with caplog.at_level(logging.WARNING, "diode_lut"):
        assert uses_aten(mm(dynamic=dynamic))
    assert "SM carve-out" in caplog.text


def test_settings_are_part_of_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs that were compiled with other settings for matmuls are served to nobody."""
    found = {snapshot().identity}
    MATMUL.allow_fp16_accumulation = True
    found.add(snapshot().identity)
    torch._C._set_sm_carveout_experimental(16)
    found.add(snapshot().identity)
    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    found.add(snapshot().identity)
    torch.set_float32_matmul_precision("high")
    found.add(snapshot().identity)
    assert len(found) == 5
