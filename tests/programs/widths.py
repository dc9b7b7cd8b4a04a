"""Multiplies a matrix with others of many widths on the interpreter's device, for tests/interpreter/test_widths.py.

``python widths.py DIRECTORY``: a table goes there. Prints the relative errors of results and gradients, how many
Triton kernels of templates the forward pass has, and how often it launches them.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.interpreter.device import interpreter_cuda
from tests.programs.concat import errors_and_code

WIDTHS = (32, 64, 80, 112)  # the last tiles of 80 and 112 columns are cut


def main(directory: Path) -> dict[str, Any]:
    """Return the errors, and the numbers of kernels and launches."""
    import torch

    def function(x: Any, *given: Any) -> Any:
        weights, biases = given[: len(WIDTHS)], given[len(WIDTHS) :]
        whole = torch.cat([x @ weight.t() for weight in weights], 1)
        return whole, *(torch.addmm(bias, x, weight.t()) for bias, weight in zip(biases, weights, strict=True))

    shapes = [(40, 24), *((width, 24) for width in WIDTHS), *((width,) for width in WIDTHS)]
    errors, code = errors_and_code(function, shapes, directory)
    return {
        "errors": errors,
        "kernels": code.count("triton_heuristics.template("),
        "launches": code.count(".run("),
    }


if __name__ == "__main__":
    with interpreter_cuda():
        answer = main(Path(sys.argv[1]))
    print(json.dumps(answer))
