"""The demo, without running it: that takes two minutes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import demo
import demo_module
import pytest
import torch

import diode_lut
from tests.fake_cuda import Input, fake_cuda, lower


def test_problems_are_what_the_module_asks_on_a_gpu(table_file: Callable[..., Path]) -> None:
    """On an H200, a table with a row for each of the demo's problems answers for all GEMMs of its module."""
    module = demo_module.Module("cuda")
    names = [name for name, _ in module.named_parameters()]
    rows, outer, _, b, m, n, k = demo_module.SIZES["cuda"]
    shapes = [(rows, outer), (b, m, k), (b, k, n), *(parameter.shape for parameter in module.parameters())]

    def call(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *parameters: torch.Tensor) -> Any:
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (x, a, b))

    entries = [row(problem) for problem in demo_module.problems("cuda")]
    with (
        fake_cuda(),
        diode_lut.config.patch(tables=(str(table_file("rows.json", *entries)),)),
        diode_lut.profile_predictions() as counts,
    ):
        lower(call, *(Input(shape, getattr(torch, demo_module.DTYPES["cuda"])) for shape in shapes))
    assert counts.hits["user"] == counts.total_predictions == len(entries)


def row(problem: dict[str, Any]) -> dict[str, Any]:
    sizes = {name.lower(): [problem[name]] * 2 for name in "BMNK"}
    kind = {name: problem[name] for name in ("op", "dtype", "layout")}
    return {**kind, "align": 16, **sizes, "configs": [{"template": "aten"}]}


@pytest.mark.parametrize(
    ("without", "tuned", "spread", "says"),
    [
        (120.0, 100.0, 0.01, "The table gains: a call is 1.20 times as fast with the table"),
        (
            120.0,
            100.0,
            0.3,
            "Other programs disturb this machine too much to tell what is gained: a call is 1.20 times",
        ),
        (
            96.3,
            949.0,
            0.671,
            "Other programs disturb this machine too much to tell what is gained: a call is 0.10 times",
        ),
        (105.0, 100.0, 0.08, "There is no gain on this machine: a call is 1.05 times as fast"),
        (101.0, 100.0, 0.001, "There is no gain on this machine"),
        (80.0, 100.0, 0.01, "The table makes this module slower on this machine: a call is 0.80 times as fast"),
    ],
)
def test_verdict(without: float, tuned: float, spread: float, says: str) -> None:
    """The demo claims a gain or a loss only if times spread little, and it is larger than their spread."""
    reports = [demo_module.Report(1.0, us, spread, 0, 0.0, 0.0, {}) for us in (without, tuned)]
    assert demo.verdict(*reports).startswith(says)
