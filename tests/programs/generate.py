"""Runs generated kernels with fixed configs on the interpreter's device; tests/interpreter/test_generated.py reads it.

``python generate.py DIRECTORY``: tables go there. Prints, for each graph and set of blocks, the error against float64
over that of Inductor's own configs, and which heuristics the kernels have.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.interpreter.device import interpreter_cuda
from tests.programs.convolve import HARDWARE

POINTWISE = [
    {"template": "pointwise", "block_x": 32, "block_y": 4, "num_warps": 1},
    {"template": "pointwise", "block_x": 64, "num_warps": 1},
]
SETS = {
    "persistent": {"template": "persistent_reduction", "block_x": 1, "num_warps": 1},
    "persistent rows": {"template": "persistent_reduction", "block_x": 16, "num_warps": 4},
    "looped": {"template": "looped_reduction", "block_x": 1, "block_r": 8, "num_warps": 1},
    "looped rows": {"template": "looped_reduction", "block_x": 32, "block_r": 4, "num_warps": 4},
}


def graphs() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Functions, and the shapes of what they take; gradients are those of the first result."""
    from torch.nn import functional

    def rms_norm(x: Any, w: Any) -> Any:
        return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * w

    def loss(x: Any) -> Any:
        targets = x.detach().argmin(-1)
        return functional.cross_entropy(x, targets), x.argmax(-1), x.var(-1), x.amax(0), (x > 2).any(-1)

    return {
        "softmax": (lambda x: x.softmax(-1), ((37, 50),)),
        "layer norm": (lambda x, w, b: functional.layer_norm(x, (70,), w, b), ((21, 70), (70,), (70,))),
        "rms norm": (rms_norm, ((16, 64), (64,))),
        "column sum": (lambda x: x.sum(0) + x.prod(0), ((33, 40),)),
        "whole": (lambda x: (x.sum(), x.mean((0, 2))), ((5, 12, 14),)),
        "transpose": (lambda x, y: x.transpose(1, 2) + y, ((3, 20, 48), (3, 48, 20))),
        "cross entropy": (loss, ((19, 43),)),
    }


def main(directory: Path) -> dict[str, Any]:
    """By set and graph: the largest error of results and gradients, and the kernels."""
    import torch
    from torch._inductor.utils import fresh_cache, run_and_get_code

    import diode_lut

    def attempt(function: Any, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        leaves = [each.detach().requires_grad_() for each in tensors]
        found = function(*leaves)
        results = found if isinstance(found, tuple) else (found,)
        gradients = torch.autograd.grad(results[0], leaves, torch.ones_like(results[0]))
        return [each.detach().cpu().double() for each in (*results, *gradients)]

    torch.manual_seed(0)
    answer: dict[str, Any] = {}
    inputs = {
        name: [torch.randn(shape, device="cuda") for shape in shapes] for name, (_, shapes) in graphs().items()
    }
    for blocks, reduction in SETS.items():
        table = directory / f"{blocks}.json"
        entries = [{"op": "pointwise", "configs": POINTWISE}, {"op": "reduction", "configs": [reduction]}]
        table.write_text(json.dumps({"schema_version": 2, "hardware": HARDWARE, "entries": entries}), encoding="utf-8")
        for name, (function, _) in graphs().items():
            torch._dynamo.reset()
            with fresh_cache(), diode_lut.config.patch(tables=(str(table),), tiers=("user",)):
                results, codes = run_and_get_code(attempt, torch.compile(function), inputs[name])
            exact = attempt(function, [each.cpu().double() for each in inputs[name]])
            answer[f"{blocks}: {name}"] = {
                "error": max(
                    float((a - b).norm() / b.norm().clamp(min=1e-3)) for a, b in zip(results, exact, strict=True)
                ),
                "kernels": [each for code in codes for each in re.findall(r"@triton_heuristics\.(\w+)\(", code)],
            }
    return answer


if __name__ == "__main__":
    with interpreter_cuda():
        found = main(Path(sys.argv[1]))
    print(json.dumps(found))
