"""Runs ops that tables do not know on the interpreter's device; tests/interpreter/test_bench_other_ops.py reads it.

Prints, by op, what its ways come to: Triton templates and kernels in the code, and the difference from float64; and the
config of the Triton kernel.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.forks import ROOT
from tests.interpreter.device import interpreter_cuda


def main() -> dict[str, Any]:
    """What the ways of each op come to."""
    sys.path.insert(0, str(ROOT / "tools"))
    from bench_other_ops import compiled_ways, config_in, operands_of, problems_of
    from modelbench.other_ops import KERNEL, OPS
    from modelbench.ways import difference
    from torch._inductor import config

    image = OPS["1x1 convolution"]  # of which the device's library has no results with channels last
    OPS["1x1 convolution"] = image._replace(ways={name: way for name, way in image.ways.items() if way.options})
    found: dict[str, Any] = {}
    for problem in problems_of(list(OPS), tiny=True):
        operands, exact = operands_of(problem, "cuda")
        with config.patch(benchmark_epilogue_fusion=False):  # the device has no times of fused kernels
            ways = compiled_ways(problem, operands, "cuda", "known")
        found[problem.op] = {
            name: {
                "templates": way.code.count("triton_heuristics.template("),
                "kernels": way.kernels,
                "difference": difference(way.results.cpu(), exact.cpu()),
            }
            for name, way in ways.items()
        }
        found[problem.op]["config"] = config_in(ways[KERNEL].code)
    return found


if __name__ == "__main__":
    with interpreter_cuda():
        answer = main()
    print(json.dumps(answer))
