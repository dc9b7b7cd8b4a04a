"""Multiplies a matrix with others of many widths on the interpreter's device, for tests/interpreter/test_widths.py.

``python widths.py DIRECTORY``: a table goes there. Prints the relative errors of results and gradients, how many
Triton kernels of templates the forward pass has, and how often it launches them.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.interpreter.device import interpreter_cuda
from tests.programs.concat import ROWS
from tests.programs.convolve import HARDWARE

WIDTHS = (32, 64, 80, 112)  # the last tiles of 80 and 112 columns are cut


def main(directory: Path) -> dict[str, Any]:
    """What ran, and the error."""
    import torch
    from torch._inductor.utils import fresh_cache, run_and_get_code

    import diode_lut

    def function(x: Any, *given: Any) -> Any:
        weights, biases = given[: len(WIDTHS)], given[len(WIDTHS) :]
        whole = torch.cat([x @ weight.t() for weight in weights], 1)
        return whole, *(torch.addmm(bias, x, weight.t()) for bias, weight in zip(biases, weights, strict=True))

    def attempt(function: Any, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        leaves = [each.detach().requires_grad_() for each in tensors]
        results = function(*leaves)
        gradients = torch.autograd.grad(results, leaves, [each.detach() for each in results])
        return [each.detach().cpu().double() for each in (*results, *gradients)]

    torch.manual_seed(0)
    shapes = (40, 24), *((width, 24) for width in WIDTHS), *((width,) for width in WIDTHS)
    tensors = [torch.randn(shape, device="cuda") for shape in shapes]
    table = directory / "rows.json"
    table.write_text(json.dumps({"schema_version": 2, "hardware": HARDWARE, "entries": ROWS}), encoding="utf-8")
    with fresh_cache(), diode_lut.config.patch(tables=(str(table),), tiers=("user",)):
        results, codes = run_and_get_code(attempt, torch.compile(function), tensors)
    exact = attempt(function, [each.cpu().double() for each in tensors])
    return {
        "errors": [float((a - b).norm() / b.norm()) for a, b in zip(results, exact, strict=True)],
        "kernels": codes[0].count("triton_heuristics.template("),
        "launches": codes[0].count(".run("),
    }


if __name__ == "__main__":
    with interpreter_cuda():
        answer = main(Path(sys.argv[1]))
    print(json.dumps(answer))
