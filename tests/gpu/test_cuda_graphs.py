"""A row's kernels in CUDA graphs and their trees: recorded once, replayed with other data in reused memory."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.utils import run_and_get_code

import diode_lut
from tests.gpu.gemms import ATEN, MM, TMA, error, random

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cold")]

Rows = Callable[..., None]

KERNELS: dict[str, list[dict[str, Any]]] = {
    "triton_mm": [MM, ATEN],
    "persistent TMA": [TMA, MM, ATEN],
    "decompose_k": [{"template": "decompose_k", "k_split": 4}, MM],
}
ORDER = [0, 0, 0, 1, 1, 1, 2, 0, 1, 2, 2, 2, 1, 0, 0, 2, 1, 0, 2, 1, 0]  # eagerly, recorded, replayed, then in turns


@pytest.fixture(params=KERNELS)
def served(request: pytest.FixtureRequest, rows: Rows) -> Iterator[None]:
    """Rows with one kind of kernel, which answer for every GEMM in the test."""
    rows({"configs": KERNELS[request.param]})
    with inductor_config.patch(shape_padding=False), diode_lut.profile_predictions() as counts:
        yield
        assert counts.hits["user"] == counts.total_predictions > 0
        assert counts.unserved == 0


def trash() -> None:
    """Fill freed memory, and the pool that graphs do not own, with NaN."""
    blocks = [torch.full((size << 18,), float("nan"), device="cuda") for size in (1, 4, 16, 64)]
    del blocks


def chain(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ v) @ w


def two_outputs(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = x @ v
    return hidden, torch.tanh(hidden) @ w


def broken(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    hidden = x @ v
    torch._dynamo.graph_break()
    return torch.nn.functional.silu(hidden) @ w


def as_tuple(result: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("trees", [True, False], ids=["trees", "single graphs"])
def test_functions_in_turns(trees: bool) -> None:
    """Several functions whose graphs share a pool of memory give right results, in whatever order they are replayed."""
    v, w = random(1024, 2048) / 32, random(2048, 512) / 45
    functions = [chain, two_outputs, broken]
    with inductor_config.patch({"triton.cudagraph_trees": trees}):
        compiled = [torch.compile(function, mode="reduce-overhead") for function in functions]
        for number in ORDER:
            torch.compiler.cudagraph_mark_step_begin()
            x = random(256, 1024)
            results = [each.clone() for each in as_tuple(compiled[number](x, v, w))]
            trash()
            for result, expected in zip(
                results, as_tuple(functions[number](x.double(), v.double(), w.double())), strict=True
            ):
                assert error(result, expected) < 1e-2


@pytest.mark.usefixtures("served")
def test_a_result_is_the_next_input() -> None:
    """A graph may read what another graph of the tree has just written."""
    w = random(1024, 1024) / 32
    first = torch.compile(lambda x: torch.relu(x @ w), mode="reduce-overhead")
    second = torch.compile(lambda x: (x @ w) * 2, mode="reduce-overhead")
    for _ in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        x = random(512, 1024)
        result = second(first(second(first(x)))).clone()
        trash()
        expected = x.double()
        for _ in range(2):
            expected = (torch.relu(expected @ w.double()) @ w.double()) * 2
        assert error(result, expected) < 3e-2


@pytest.mark.usefixtures("served")
def test_training() -> None:
    """Forward and backward are graphs of one tree: after ten steps the weights are as without diode_lut."""

    def trained(policy: str) -> list[torch.Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(1)
        layers = [torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)]
        model = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with diode_lut.config.patch(policy=policy):
            compiled = torch.compile(model, mode="reduce-overhead")
            for _ in range(10):
                torch.compiler.cudagraph_mark_step_begin()
                loss = (compiled(random(256, 512)).float() - 1).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                trash()
        return [parameter.detach().double() for parameter in model.parameters()]

    without, start = trained("off"), trained("pick")
    for ours, theirs in zip(start, without, strict=True):
        assert error(ours, theirs) < 2e-2


@pytest.mark.usefixtures("served")
def test_sizes_that_come_back() -> None:
    """Each size of a dynamic dimension gets its own graph, and sizes may come back in any order."""
    w = random(1024, 768) / 32
    compiled = torch.compile(lambda x: torch.sigmoid(x @ w), mode="reduce-overhead", dynamic=True)
    for rows in (64, 64, 64, 200, 200, 200, 64, 129, 129, 129, 200, 64, 129):
        torch.compiler.cudagraph_mark_step_begin()
        x = random(rows, 1024)
        result = compiled(x).clone()
        trash()
        assert error(result, torch.sigmoid(x.double() @ w.double())) < 1e-2


def test_the_row_is_what_is_recorded(rows: Rows) -> None:
    """The code whose graph is recorded holds the row's kernel, not the library's."""
    rows({"configs": [MM, ATEN]})
    compiled = torch.compile(chain, mode="reduce-overhead")
    _, codes = run_and_get_code(compiled, random(256, 1024), random(1024, 2048), random(2048, 512))
    assert "extern_kernels.mm(" not in "".join(codes)
