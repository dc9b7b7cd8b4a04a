"""Sizes that may change, on a CUDA device that is not there: the kernels depend on the range of the sizes only."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._inductor.codegen.triton import TritonScheduling
from torch._inductor.exc import LoweringException
from torch._inductor.virtualized import V

import diode_lut
from diode_lut.hook import handler
from diode_lut.hook.problems import NO_RANGE
from diode_lut.hook.wrapper import can_branch
from diode_lut.receipts import Device, recorder
from tests.fake_cuda import Input, Lowered, lower
from tests.hook.test_hook import ATEN, MM, TMA, blocks, triton, uses_aten

pytestmark = pytest.mark.usefixtures("h200")

Rows = Callable[..., None]
OTHER = triton("triton_mm", 128, 128, 64)
B = Input((1024, 2048))


@pytest.fixture
def one_kernel() -> Iterator[None]:
    """A matmul gets no more than one."""
    with diode_lut.config.patch(dynamic_kernels=1):
        yield


def gains(config: dict[str, Any], gain: int) -> dict[str, Any]:
    return {**config, "gain_permille": gain}


def mm_at(m: int, *, most: int | None = 8192) -> Lowered:
    """A product whose M may change, and is first ``m``."""
    return lower(torch.mm, Input((m, 1024), dynamic=[0], most=most), B)


SMALL_AND_LARGE = (
    {"m": [1, 63], "configs": [gains(MM, 1500), gains(OTHER, 995)]},
    {"m": [64, 8192], "configs": [gains(OTHER, 1200), gains(MM, 700)]},
)


@pytest.fixture(params=[16, 4096])
def m(request: pytest.FixtureRequest) -> int:
    """The size that M is first."""
    return int(request.param)


@pytest.mark.usefixtures("one_kernel")
def test_the_least_regret_over_the_range(m: int, rows: Rows) -> None:
    """One kernel serves all sizes well, and is taken whichever size comes first, although it is not the best for it."""
    rows(*SMALL_AND_LARGE)
    (kernel,) = mm_at(m).triton_templates
    assert blocks(kernel)[:3] == [128, 128, 64]


def test_bounds_narrow_the_range(rows: Rows) -> None:
    """Rows for sizes that M cannot have do not count."""
    rows(*SMALL_AND_LARGE)
    (kernel,) = mm_at(16, most=60).triton_templates
    assert blocks(kernel)[:3] == [64, 128, 32]


@pytest.mark.usefixtures("one_kernel")
def test_aten_where_no_kernel_is_safe(m: int, rows: Rows) -> None:
    """A kernel that is slower than the library at some size, by 2 %, is not taken for all."""
    rows(
        {"m": [1, 63], "configs": [gains(MM, 1500), gains(OTHER, 980)]},
        {"m": [64, 8192], "configs": [gains(OTHER, 1200), gains(MM, 700)]},
    )
    assert uses_aten(mm_at(m))


def test_a_row_for_one_size_is_not_for_all(rows: Rows) -> None:
    """What is the best at one size says nothing about sizes far from it: the library has those."""
    rows({"m": [16, 16], "configs": [gains(MM, 1500)]})
    assert [called == "extern_kernels.mm" for _, called in branches(mm_at(16))] == [True, False, True]
    with diode_lut.config.patch(dynamic_kernels=1):
        assert uses_aten(mm_at(16))


def test_without_a_bound_the_range_is_that_of_the_rows(m: int, rows: Rows) -> None:
    """Where nothing bounds M, sizes beyond those that rows cover do not count."""
    rows({"m": [1, 512], "configs": [gains(MM, 1500)]})
    assert len(mm_at(m, most=None).triton_templates) == 1


UNBACKED = Input((16, 1024), dynamic=[0], most=4096, unbacked=True)


def test_a_size_that_only_the_data_tell(rows: Rows) -> None:
    """With a bound it gets the kernels of any other size with this bound."""
    rows(*SMALL_AND_LARGE)
    with diode_lut.profile_predictions() as counts:
        kernels = lower(torch.mm, UNBACKED, B).triton_templates
    assert list(map(blocks, kernels)) == list(map(blocks, mm_at(16, most=4096).triton_templates))
    assert (len(kernels), counts.hits["user"], counts.no_choice) == (2, 2, 0)
    (kernel,) = lower(torch.mm, UNBACKED._replace(most=60), B).triton_templates
    assert blocks(kernel)[:3] == [64, 128, 32]


def test_a_size_that_nothing_bounds(rows: Rows, receipt: Callable[[], Device]) -> None:
    """Where only the data tell a size and nothing bounds it, there is no choice: no call, no miss under ``strict``."""
    rows(*SMALL_AND_LARGE)
    with diode_lut.config.patch(strict=True), diode_lut.profile_predictions() as counts:
        assert uses_aten(lower(torch.mm, UNBACKED._replace(most=None), B))
    assert (counts.total_predictions, counts.no_choice) == (0, 1)
    (left,) = receipt().no_choice
    assert (left.problem.n, left.problem.k, left.reason) == (2048, 1024, NO_RANGE)


def test_a_miss_has_a_size_in_the_range(rows: Rows, receipt: Callable[[], Device]) -> None:
    """A problem that is missed has one of the sizes that it may have, although Inductor assumes another one."""
    rows({"op": "bmm", "configs": [ATEN]})
    lower(torch.mm, UNBACKED._replace(most=60), B)
    (missed,) = receipt().misses
    assert (missed.problem.m, missed.over) == (60, "m from 1 to 60")


def test_a_size_that_only_the_data_tell_is_not_cut(rows: Rows) -> None:
    """Inductor makes no graph of its own with such a size, so ``decompose_k`` gives way to the next config."""
    rows({"op": "mm", "configs": [gains({"template": "decompose_k", "k_split": 4}, 1500), gains(MM, 1200)]})
    with diode_lut.profile_predictions() as counts:
        (kernel,) = lower(torch.mm, UNBACKED, B).triton_templates
    assert (blocks(kernel)[:3], counts.skipped_configs) == ([64, 128, 32], 1)


def test_two_sizes_that_change(rows: Rows) -> None:
    """Where two sizes may change, the kernel is one that is safe at all their combinations, or the library."""
    operands = Input((100, 1024), dynamic=[0], most=4096), Input((64, 1024), dynamic=[0], most=4096)
    rows({"m": [1, 4096], "configs": [gains(TMA, 1200)]})
    assert len(lower(lambda a, b: a @ b.t(), *operands).triton_templates) == 1
    rows({"n": [64, 64], "configs": [gains(TMA, 1200)]})
    assert uses_aten(lower(lambda a, b: a @ b.t(), *operands))


def linear_at(batch: int, length: int, **bounds: Any) -> Lowered:
    """A linear layer of an encoder, whose batch and length may change, and are first these."""
    weight = Input((2048, 1024))
    return lower(torch.nn.functional.linear, Input((batch, length, 1024), dynamic=[0, 1], **bounds), weight)


@pytest.mark.skipif(
    torch.__version__ < (2, 13), reason="linear without a bias asks fake tensors for a number of elements"
)
@pytest.mark.parametrize("first", [(2, 8), (64, 80)])
def test_batch_and_length_are_one_size_of_a_linear_layer(first: tuple[int, int], rows: Rows) -> None:
    """The number of rows is their product: it is one size, with a kernel for each part of its range."""
    rows(*SMALL_AND_LARGE)
    lowered = linear_at(*first, most=90)
    assert [blocks(kernel)[:3] for kernel in lowered.triton_templates] == [[64, 128, 32], [128, 128, 64]]
    assert len(re.findall(r"if s\d+\*s\d+ <= 63:", lowered.code)) == 1


@pytest.mark.skipif(torch.__version__ < (2, 12), reason="PyTorch's linear asks fake tensors for a number of elements")
@pytest.mark.parametrize("most", [None, 90], ids=["unbounded", "bounded"])
def test_an_epilogue_behind_the_view_of_batch_and_length(most: int | None, rows: Rows) -> None:
    """What follows a linear layer has batch and length apart, and is fused into each kernel for their product."""
    rows({"epilogue": "none", "configs": [ATEN]}, *({"epilogue": "medium", **row} for row in SMALL_AND_LARGE))

    def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias))

    lowered = lower(layer, Input((2, 8, 1024), dynamic=[0, 1], most=most), Input((2048, 1024)), Input((2048,)))
    assert [blocks(kernel)[:3] for kernel in lowered.triton_templates] == [[64, 128, 32], [128, 128, 64]]
    assert (len(lowered.triton_kernels), lowered.extern) == (2, [])
    assert len(re.findall(r"if s\d+\*s\d+ <= 63:", lowered.code)) == 1


@pytest.mark.parametrize(("least", "most", "kernels"), [(1, 60, [MM]), (64, 4096, [OTHER]), (1, 4096, [MM, OTHER])])
def test_a_check_of_batch_times_length(least: int, most: int, kernels: list[dict[str, Any]], rows: Rows) -> None:
    """Where the program checks the product of two sizes, that is its range, whatever bounds each of them has."""

    def tokens(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        torch._check(least <= batch * length)
        torch._check(batch * length <= most)
        return x.view(batch * length, width) @ weight

    rows(*SMALL_AND_LARGE)
    first = (2, 8) if most < 64 else (16, 8)
    lowered = lower(tokens, Input((*first, 1024), dynamic=[0, 1], most=512), Input((1024, 2048)))
    found = [blocks(kernel)[:3] for kernel in lowered.triton_templates]
    assert found == [[config[name] for name in ("block_m", "block_n", "block_k")] for config in kernels]


@pytest.mark.parametrize("first", [(2, 8), (64, 512)])
def test_batch_and_length_of_a_batch_of_products(first: tuple[int, int], rows: Rows) -> None:
    """A product of batches has one kernel that is safe for all batches and lengths."""
    batch, length = first
    rows(
        {"op": "bmm", "m": [1, 63], "configs": [gains({**MM, "template": "triton_bmm"}, 1300)]},
        {"op": "bmm", "m": [64, 512], "configs": [gains({**MM, "template": "triton_bmm"}, 1100)]},
    )
    inputs = Input((batch, length, 64), dynamic=[0, 1], most=512), Input((64, 128))
    lowered = lower(lambda a, b: torch.bmm(a, b.expand(a.shape[0], 64, 128)), *inputs)
    assert [blocks(kernel)[:3] for kernel in lowered.triton_templates] == [[64, 128, 32]]


def test_alignment_does_not_depend_on_the_first_size(rows: Rows) -> None:
    """A matrix whose row length may change is not aligned, even if it is so at first."""
    rows({"align": 16, "configs": [MM]})
    assert uses_aten(lower(torch.mm, Input((512, 1024), dynamic=[1]), Input((1024, 512), dynamic=[0])))


@pytest.mark.usefixtures("one_kernel")
def test_epilogues_over_the_range(m: int, rows: Rows) -> None:
    """The kernel of an epilogue is that with the least regret over the range too."""
    rows({"epilogue": "none", "configs": [ATEN]}, *({"epilogue": "light", **row} for row in SMALL_AND_LARGE))
    lowered = lower(lambda a, b: (a @ b).relu(), Input((m, 1024), dynamic=[0], most=8192), B)
    (kernel,) = lowered.triton_templates
    assert (blocks(kernel)[:3], lowered.extern) == ([128, 128, 64], [])


@pytest.mark.usefixtures("one_kernel")
def test_the_range_is_recorded(rows: Rows) -> None:
    """A decision over a range is counted once, as a match."""
    rows(*SMALL_AND_LARGE)
    with diode_lut.profile_predictions() as counts:
        mm_at(16)
    assert (counts.total_predictions, counts.fallbacks) == (1, 0)


def branches(lowered: Lowered) -> list[tuple[str, str]]:
    """The conditions in the wrapper code that choose a kernel, and what they run."""
    _, wrapper = lowered.code.split("def call(")
    pattern = r"^ +(if s\d+ <= \d+|elif s\d+ <= \d+|else):\n(?: +raw_stream.*\n| +stream.*\n)?(?: +)([\w.]+)\("
    return re.findall(pattern, wrapper, flags=re.MULTILINE)


def test_rows_along_a_size_become_branches(m: int, rows: Rows) -> None:
    """A kernel for each row, with the border where the rows have it, whichever size comes first."""
    rows(*SMALL_AND_LARGE)
    lowered = mm_at(m)
    (first, one), (second, other) = branches(lowered)
    assert (first.endswith(" <= 63"), second, one != other) == (True, "else", True)
    assert [blocks(kernel)[:3] for kernel in lowered.triton_templates] == [[64, 128, 32], [128, 128, 64]]


def test_the_kernels_of_all_branches_compile_in_parallel(rows: Rows) -> None:
    """All are handed to Inductor's compile workers before the program waits for any, also with an epilogue."""
    rows(*SMALL_AND_LARGE)
    for function in (torch.mm, lambda a, b: (a @ b).relu()):
        code = lower(function, Input((16, 1024), dynamic=[0], most=8192), B).code
        handed, _, rest = code.partition("async_compile.wait(globals())")
        assert handed.count("triton_heuristics.template(") == handed.count("async_compile.triton(") == 2
        assert "async_compile" not in rest.replace("del async_compile", "")


def test_the_library_can_have_a_branch(rows: Rows) -> None:
    """Where the library is the best for a part of the range, it is called there."""
    rows(SMALL_AND_LARGE[0], {"m": [64, 8192], "configs": [ATEN]})
    lowered = mm_at(16)
    assert [called for _, called in branches(lowered)][1] == "extern_kernels.mm"
    assert len(lowered.triton_templates) == 1


def test_the_library_has_what_no_row_covers(rows: Rows) -> None:
    """Where bounds allow sizes that no source knows, the library is called for them, and they are missed."""
    rows(SMALL_AND_LARGE[0], {**SMALL_AND_LARGE[1], "m": [64, 512]})
    with diode_lut.profile_predictions() as counts:
        lowered = mm_at(16, most=65536)
    assert [called for _, called in branches(lowered)][2] == "extern_kernels.mm"
    assert [blocks(kernel)[:3] for kernel in lowered.triton_templates] == [[64, 128, 32], [128, 128, 64]]
    assert counts.fallbacks == 1


@pytest.fixture
def receipt() -> Iterator[Callable[[], Device]]:
    """What this test has asked, for the only device."""
    with recorder.collecting() as collected:
        yield lambda: next(iter(collected.devices.values()))


def test_receipt_log_and_statistics_have_the_parts(
    m: int, rows: Rows, receipt: Callable[[], Device], caplog: pytest.LogCaptureFixture
) -> None:
    """Each part that is generated is recorded and logged with its range, and one kernel for all sizes is not."""
    rows(SMALL_AND_LARGE[0], {**SMALL_AND_LARGE[1], "m": [64, 512]})
    with caplog.at_level("DEBUG", "diode_lut"), diode_lut.profile_predictions() as counts:
        lowered = mm_at(m, most=65536)
    assert len(branches(lowered)) == counts.total_predictions == 3
    assert (counts.hits["user"], counts.fallbacks) == (2, 1)
    kernels = {hit.over: hit.configs for hit in receipt().hits}
    assert [*kernels] == ["m from 2 to 63", "m from 64 to 1448"]
    assert [len(configs) for configs in kernels.values()] == [1, 1]
    assert [miss.over for miss in receipt().misses] == ["m from 1449 to 65536"]
    parts = [*kernels, "m from 1449 to 65536"]
    logged = [record.message for record in caplog.records if record.levelname == "DEBUG" and " for m" in record.message]
    assert [re.findall(r" for (m from \d+ to \d+)$", text, re.MULTILINE) for text in logged] == [
        [part] for part in parts
    ]
    assert re.search(r" answers; for m from 2 to 63, triton_mm 64x128x32 .* is taken$", logged[0], re.MULTILINE)


@pytest.mark.usefixtures("one_kernel")
def test_the_only_kernel_has_the_whole_range(rows: Rows, receipt: Callable[[], Device]) -> None:
    """Where one kernel serves all sizes, it is recorded with all of them."""
    rows(*SMALL_AND_LARGE)
    mm_at(16)
    assert [hit.over for hit in receipt().hits] == ["m from 2 to 8192"]


def test_a_part_that_is_missed_is_an_error_under_strict(rows: Rows) -> None:
    """The error names the sizes that no source knows."""
    rows(SMALL_AND_LARGE[0], {**SMALL_AND_LARGE[1], "m": [64, 512]})
    with diode_lut.config.patch(strict=True):
        mm_at(16, most=512)
        with pytest.raises(LoweringException, match=r"MissError: .* for m from 1449 to 65536: no table and no model"):
            mm_at(16, most=65536)


def test_an_epilogue_is_fused_into_each_branch(m: int, rows: Rows) -> None:
    """The kernels of all branches do the pointwise work, and no other kernel does."""
    rows({"epilogue": "none", "configs": [ATEN]}, *({"epilogue": "light", **row} for row in SMALL_AND_LARGE))
    lowered = lower(lambda a, b: (a @ b).relu(), Input((m, 1024), dynamic=[0], most=8192), B)
    assert len(branches(lowered)) == len(lowered.triton_templates) == len(lowered.triton_kernels) == 2
    assert all("maximum" in kernel for kernel in lowered.triton_templates)


def test_no_more_kernels_than_the_setting_says(rows: Rows) -> None:
    """The parts of the range are those for which that many kernels lose the least."""
    edges = [1, 32, 128, 512, 8193]
    configs = [triton("triton_mm", 16 << n, 64, 64) for n in range(4)]
    rows(
        *(
            {"m": [low, high - 1], "configs": [gains(config, 1400), *(gains(c, 1000) for c in configs if c != config)]}
            for low, high, config in zip(edges, edges[1:], configs, strict=False)
        )
    )
    for most in (2, 3, 4):
        with diode_lut.config.patch(dynamic_kernels=most):
            assert len(branches(mm_at(16))) == most


def test_a_failure_in_a_branch_costs_the_branches_only(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If Inductor fails where branches are written, the matmul gets one kernel, and nothing is left of the branches."""
    write, failures = TritonScheduling.codegen_comment, [ValueError("no such kernel")]

    def fail_once(*arguments: Any, **named: Any) -> None:
        if failures:
            raise failures.pop()
        write(*arguments, **named)

    rows(*SMALL_AND_LARGE)
    monkeypatch.setattr(TritonScheduling, "codegen_comment", fail_once)
    lowered = mm_at(16)
    assert not failures
    assert "a matmul with a dynamic size is left to Inductor: ValueError: no such kernel" in caplog.text
    assert branches(lowered) == []
    assert lowered.code.count(".run(") + len(lowered.extern) == 1


@pytest.mark.parametrize("name", ["aot_mode", "cpp_wrapper", "fx_wrapper"])
@pytest.mark.parametrize("epilogue", [False, True])
def test_one_kernel_where_wrapper_code_cannot_branch(
    name: str, epilogue: bool, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AOTInductor and wrappers in C++ get the kernel with the least regret over the range, also with an epilogue."""

    def there() -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(V.graph, name, True)
            return can_branch()

    monkeypatch.setattr(handler, "can_branch", there)
    rows(*SMALL_AND_LARGE)
    function = (lambda a, b: (a @ b).relu()) if epilogue else torch.mm
    lowered = lower(function, Input((16, 1024), dynamic=[0], most=8192), B)
    (kernel,) = lowered.triton_templates
    assert (blocks(kernel)[:3], branches(lowered)) == ([128, 128, 64], [])
