"""GEMMs of many widths that share a kernel, on a CUDA device that is not there."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from sympy import Symbol
from torch import Tensor
from torch._inductor import config as inductor_config
from torch._inductor.codecache import PyCodeCache
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch.utils._sympy.symbol import SymT, symbol_is_type

import diode_lut
from diode_lut.hook import choices
from diode_lut.hook.choices import SHARED_N
from tests.fake_cuda import Input, Lowered, compile_triton, lower
from tests.hook.test_concat import parts
from tests.hook.test_hook import triton

pytestmark = pytest.mark.usefixtures("h200")

Rows = Callable[..., None]
MM = triton("triton_mm", 64, 64, 64)
WIDTHS = (192, 256, 320, 448)
X = Input((512, 96))


def linears(
    widths: Sequence[int],
    then: Callable[[Tensor], Tensor] = lambda result: result,
    whole: Callable[[list[Tensor]], Any] = list,
) -> Lowered:
    """Linear layers of one input, without bias."""

    def function(x: Tensor, *weights: Tensor) -> Any:
        return whole([then(x @ weight.t()) for weight in weights])

    return lower(function, X, *(Input((width, 96)) for width in widths))


def launches(lowered: Lowered) -> list[tuple[str, int]]:
    """The kernel and N of each launch of a shared kernel."""
    found = re.findall(r"(triton_tem_\w+)\.run\(arg0_1, arg\d+_1, buf\d+, (\d+), \d+, 1, 1, stream", lowered.code)
    return [(name, int(n)) for name, n in found]


@pytest.mark.parametrize("block_m", [16, 64])
@pytest.mark.parametrize("concatenated", [False, True])
def test_one_kernel_for_many_widths(concatenated: bool, block_m: int, rows: Rows) -> None:
    """Each launch has its N, and each result is where it would be."""
    rows({"configs": [triton("triton_mm", block_m, 64, 64)]})
    lowered = linears(WIDTHS, whole=(lambda results: torch.cat(results, 1)) if concatenated else list)
    (source,) = lowered.triton_templates
    assert f"N = {SHARED_N}\n" in source
    assert ("rn % N" in source) == (block_m == 64)
    assert launches(lowered) == [("triton_tem_fused_0", width) for width in WIDTHS]
    stores = "idx_n + 1216*idx_m" if concatenated else "xindex"
    assert re.search(rf"tl\.store\(out_ptr0 \+ \(tl\.broadcast_to\({re.escape(stores)}, ", source)
    assert len(parts(lowered)) == (4 if concatenated else 0)


@pytest.mark.parametrize(("block_m", "remainders"), [(16, [False, True]), (64, [True])])
def test_small_blocks_that_end_where_b_ends_have_their_own_kernel(
    rows: Rows, block_m: int, remainders: list[bool]
) -> None:
    """It has no remainders by N, which others need. Larger blocks share one."""
    rows({"configs": [triton("triton_mm", block_m, 64, 64)]})
    lowered = linears((*WIDTHS, *(width + 16 for width in WIDTHS)))
    assert ["rn % N" in source for source in lowered.triton_templates] == remainders
    assert len(launches(lowered)) == 8


def test_the_argument_is_not_taken_for_a_size() -> None:
    """Inductor would make another argument of it where it renames an index twice."""
    assert not symbol_is_type(Symbol(SHARED_N), list(SymT))


def test_with_biases(rows: Rows) -> None:
    """Their results and N are arguments of the same kernel."""
    rows({"op": "addmm", "configs": [MM]})

    def function(x: Tensor, *given: Tensor) -> list[Tensor]:
        return [torch.addmm(bias, x, weight.t()) for bias, weight in zip(given[::2], given[1::2], strict=True)]

    lowered = lower(function, X, *(each for width in WIDTHS for each in (Input((width,)), Input((width, 96)))))
    (source,) = lowered.triton_templates
    assert f"N = {SHARED_N}\n" in source
    assert lowered.code.count("triton_tem_fused_0.run(") == len(WIDTHS)


@pytest.mark.parametrize(
    ("settings", "codes"),
    [({}, 2), ({"top_k": 2}, 5)],
    ids=["one choice", "two"],
)
def test_choices_of_many_widths_have_one_code(
    settings: dict[str, Any], codes: int, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a benchmark would run their codes. One width is a stride, too. The graph's kernels are as they would be."""
    rows({"configs": [MM]})
    written: list[str] = []
    write = PyCodeCache.write.__func__  # type: ignore[attr-defined]

    def noted(cls: Any, source: str, *arguments: Any, **named: Any) -> Any:
        written.append(source)
        return write(cls, source, *arguments, **named)

    monkeypatch.setattr(PyCodeCache, "write", classmethod(noted))
    with diode_lut.config.patch(**settings):
        lowered = linears((*WIDTHS, 96))
        assert len({source for source in written if "def triton_mm" in source}) == codes
        monkeypatch.setattr(choices, "_may_run_codes", lambda: True)
        assert linears((*WIDTHS, 96)).triton_kernels == lowered.triton_kernels


@pytest.mark.parametrize(
    ("widths", "kernels"),
    [
        (WIDTHS[:3], 3),  # few kernels
        ((192, 192, 256, 256, 320), 3),  # the same kernels, of few widths
        ((*WIDTHS, 200), 2),  # rows of 200 begin on 16 bytes, but an argument would not say so
        ((*WIDTHS, 32), 2),  # fewer columns than a block
        ((*WIDTHS, 96), 2),  # K, with which loads count
        ((*WIDTHS, 256), 1),
    ],
    ids=str,
)
def test_which_widths_share(widths: Sequence[int], kernels: int, rows: Rows) -> None:
    """The others have kernels of their own, with constant sizes."""
    rows({"configs": [MM]})
    sources = linears(widths).triton_templates
    assert len(sources) == kernels
    assert sum(SHARED_N in source for source in sources) == (len(set(widths)) > 3)


@pytest.mark.parametrize("config", [MM, triton("triton_mm_persistent_tma", 64, 64, 64)], ids=["rows", "tma"])
def test_rows_of_b_are_constants(config: dict[str, Any], rows: Rows) -> None:
    """Where N is a stride of B, and where tensor descriptors have it, there is a kernel for each N."""
    rows({"configs": [config]})

    def function(x: Tensor, *weights: Tensor) -> list[Tensor]:
        return [x @ weight for weight in weights]

    sources = lower(function, X, *(Input((96, width)) for width in WIDTHS)).triton_templates
    assert len(sources) == len(WIDTHS)
    assert not any(SHARED_N in source for source in sources)


def test_what_is_fused_has_constants(rows: Rows) -> None:
    """A GEMM that fuses something is measured with it, and may differ in it from the others."""
    rows({"configs": [MM]}, {"epilogue": "light", "configs": [MM]})
    sources = linears(WIDTHS, torch.relu).triton_templates
    assert len(sources) == len(WIDTHS)
    assert not any(SHARED_N in source for source in sources)


@pytest.mark.parametrize("setting", ["cpp_wrapper", "triton.autotune_at_compile_time"])
def test_wrappers_that_know_no_such_argument(setting: str, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are arguments in Python wrapper code alone, unless Inductor runs parts of it with types of arguments."""
    rows({"configs": [MM]})
    is_cpp = setting == "cpp_wrapper"
    monkeypatch.setattr(choices, "can_branch", lambda: not is_cpp)
    monkeypatch.setattr(PythonWrapperCodegen, "generate_and_run_autotune_block", lambda _: None)
    with inductor_config.patch({} if is_cpp else {setting: True}):
        assert len(linears(WIDTHS).triton_templates) == len(WIDTHS)


def test_a_failure_leaves_each_its_kernel(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph compiles as if nothing were shared."""
    rows({"configs": [MM]})

    def fail() -> bool:
        raise RuntimeError("no wrapper")

    monkeypatch.setattr(choices, "can_branch", fail)
    assert len(linears(WIDTHS).triton_templates) == len(WIDTHS)


def test_the_shared_kernel_stores_as_wide(rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the loads and stores of a kernel with a constant N, and a branch less for the empty result."""
    rows({"configs": [MM]})
    (shared,) = linears(WIDTHS).triton_templates
    monkeypatch.setattr(choices, "_LEAST_WIDTHS", 5)
    alone = linears(WIDTHS).triton_templates[0]
    accesses = [
        re.findall(r"(?:st\.global|cp\.async\.cg\.shared\.global)\S*", compile_triton(source, tmp_path).asm["ptx"])
        for source in (shared, alone)
    ]
    assert accesses[0] == accesses[1]
    assert any("v4" in access for access in accesses[0])
