"""The demo, without running it: that takes two minutes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import demo_module
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
