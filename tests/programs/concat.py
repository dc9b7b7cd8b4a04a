"""Concatenates results of matmuls on the interpreter's device; tests/interpreter/test_concat.py reads what it prints.

``python concat.py DIRECTORY``: a table goes there. Prints the relative errors of results and gradients, and how many
parts of concatenations and library kernels the forward pass has.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.interpreter.device import interpreter_cuda
from tests.programs.convolve import HARDWARE

BLOCKS = {"block_m": 32, "block_n": 32, "block_k": 16, "group_m": 8, "num_stages": 2, "num_warps": 4}
ROWS = [
    {"op": op, "configs": [{"template": template, **BLOCKS}]}
    for op, template in (("mm", "triton_mm"), ("addmm", "triton_mm"), ("bmm", "triton_bmm"))
]


def main(directory: Path) -> dict[str, Any]:
    """Return the errors, and the numbers of concatenated parts and library kernels."""
    import torch

    def function(x: Any, w: Any, v: Any, bias: Any, heads: Any) -> Any:
        wide = torch.cat([x @ w, torch.addmm(bias, x, v), x], 1)
        return torch.cat([wide @ wide.t(), x @ w], 1).relu(), torch.cat([torch.bmm(heads, heads), heads], -1)

    errors, code = errors_and_code(function, [(40, 24), (24, 56), (24, 16), (16,), (2, 24, 24)], directory)
    return {"errors": errors, "written": code.count("  # alias"), "library": code.count("extern_kernels.")}


def errors_and_code(
    function: Callable[..., Any], shapes: Sequence[tuple[int, ...]], directory: Path
) -> tuple[list[float], str]:
    """Return the relative errors of results and gradients with ROWS, and the code of the forward pass."""
    import torch
    from torch._inductor.utils import fresh_cache, run_and_get_code

    import diode_lut

    def attempt(function: Any, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        leaves = [each.detach().requires_grad_() for each in tensors]
        results = function(*leaves)
        gradients = torch.autograd.grad(results, leaves, [each.detach() for each in results])
        return [each.detach().cpu().double() for each in (*results, *gradients)]

    torch.manual_seed(0)
    tensors = [torch.randn(shape, device="cuda") for shape in shapes]
    table = directory / "rows.json"
    table.write_text(json.dumps({"schema_version": 2, "hardware": HARDWARE, "entries": ROWS}), encoding="utf-8")
    with fresh_cache(), diode_lut.config.patch(tables=(str(table),), tiers=("user",)):
        results, codes = run_and_get_code(attempt, torch.compile(function), tensors)
    exact = attempt(function, [each.cpu().double() for each in tensors])
    return [float((a - b).norm() / b.norm()) for a, b in zip(results, exact, strict=True)], codes[0]


if __name__ == "__main__":
    with interpreter_cuda():
        answer = main(Path(sys.argv[1]))
    print(json.dumps(answer))
