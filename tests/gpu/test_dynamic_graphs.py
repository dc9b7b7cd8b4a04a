"""Kernels for parts of a dynamic size's range in CUDA graphs: each size has a graph of its own, with its kernel."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from tests.gpu.gemms import ATEN, error, random, triton

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cold", "unpadded")]

Rows = Callable[..., None]
Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

BORDERS = (1, 33, 257, 4097)  # the sizes of M at which rows begin, and the end

KERNELS = [triton("triton_mm", block, 64, 32, stages=stages) for block, stages in ((16, 2), (64, 3), (128, 4))]
"""Those of the rows, which differ in the number of stages."""

SIZES = (2, 32, 33, 100, 256, 257, 1000)
K, N = 1024, 768


@pytest.fixture
def unpadded() -> Iterator[None]:
    """Without the benchmarks that Inductor's padding of GEMMs makes."""
    with inductor_config.patch(shape_padding=False):
        yield


@pytest.fixture(params=[None, 4096], ids=["unbounded", "bounded"])
def most(request: pytest.FixtureRequest) -> int | None:
    """The largest M that PyTorch knows of."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of stages of each Triton kernel that has been launched, or captured in a graph."""
    stages: list[int] = []
    launch = CachingAutotuner.run

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = launch(self, *args, **kwargs)
        stages.append(self.launchers[0].config.num_stages)
        return result

    monkeypatch.setattr(CachingAutotuner, "run", noted)
    return stages


def fused(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w)


def use(rows: Rows, *, library: bool = False) -> list[list[int]]:
    """Rows for three parts of the range, of which the library has the middle one or none; what each part launches."""
    configs = [{**kernel, "gain_permille": 1500} for kernel in KERNELS]
    parts = [(low, end - 1) for low, end in pairwise(BORDERS)]
    best = [configs[0], ATEN if library else configs[1], configs[2]]
    rows(*({"m": list(part), "configs": [config]} for part, config in zip(parts, best, strict=True)))
    return [[config["num_stages"]] if config != ATEN else [] for config in best]


def part_of(m: int) -> int:
    return sum(m >= border for border in BORDERS[1:])


def marked(m: int, most: int | None) -> torch.Tensor:
    """Random rows, whose number may change."""
    torch._dynamo.mark_dynamic(x := random(m, K), 0, **({} if most is None else {"min": 2, "max": most}))
    return x


def trash() -> None:
    """Fill freed memory with NaN."""
    blocks = [torch.full((size << 18,), float("nan"), device="cuda") for size in (1, 4, 16)]
    del blocks


@pytest.mark.parametrize(("function", "library"), [(torch.mm, False), (torch.mm, True), (fused, False)])
def test_a_graph_for_each_size(
    function: Function, library: bool, most: int | None, rows: Rows, launched: list[int]
) -> None:
    """One compile serves all sizes; the graph of a size has the kernel of its part, and is right with other data."""
    expected = use(rows, library=library)
    w = random(K, N) / K**0.5
    compiled = torch.compile(function)
    compiled(marked(100, most), w)
    graphs = {}
    for m in SIZES:
        x = marked(m, most)
        compiled(x, w)
        torch.cuda.synchronize()
        launched.clear()
        with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
            result = compiled(x, w)
        assert launched == expected[part_of(m)]
        graphs[m] = (graph, x, result)
    launched.clear()
    for m in Random(0).choices(SIZES, k=30):
        graph, x, result = graphs[m]
        x.copy_(random(m, K))
        trash()
        graph.replay()
        assert error(result, function(x.double(), w.double())) < 1e-2
    assert (launched, counters["stats"]["unique_graphs"]) == ([], 1)


@pytest.mark.parametrize(("function", "library"), [(torch.mm, True), (fused, False)])
def test_trees_of_graphs(function: Function, library: bool, most: int | None, rows: Rows, launched: list[int]) -> None:
    """Inductor's own graphs, too: each size is run, recorded with its kernel, and then replayed, in any order."""
    expected = use(rows, library=library)
    w = random(K, N) / K**0.5
    compiled = torch.compile(function, mode="reduce-overhead")
    runs = dict.fromkeys(SIZES, 0)
    for m in [*(m for m in SIZES for _ in range(3)), *Random(0).choices(SIZES, k=30)]:
        torch.compiler.cudagraph_mark_step_begin()
        x = marked(m, most)
        launched.clear()
        result = compiled(x, w).clone()
        assert launched == (expected[part_of(m)] if runs[m] < 2 else [])
        trash()
        assert error(result, function(x.double(), w.double())) < 1e-2
        runs[m] += 1
    assert counters["stats"]["unique_graphs"] == 1
