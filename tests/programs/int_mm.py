"""Runs int_mm with rows for its kernel on the interpreter's device; tests/interpreter/test_int_mm.py reads it.

``python int_mm.py DIRECTORY [CASE]...``: tables go there. Prints, by case, whether a Triton kernel of the row ran and
the library did not, and the largest error: of integers as it is, of what epilogues make of them over the root mean
square.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.interpreter.device import interpreter_cuda

TILES = {"block_m": 32, "block_n": 32, "block_k": 64, "group_m": 8, "num_stages": 3, "num_warps": 4}
HARDWARE = {"name": "NVIDIA H200", "arch": "sm_90", "sm_count": 132}
CASES = {
    "linear": ("nt", (48, 64, 256), "none"),
    "row-major": ("nn", (48, 64, 256), "none"),
    "column-major": ("tt", (48, 64, 256), "none"),
    "odd sizes": ("nt", (33, 72, 200), "none"),
    "short K": ("nt", (33, 72, 8), "none"),
    "large sums": ("nt", (32, 32, 4096), "none"),
    "light": ("nt", (48, 64, 256), "light"),
    "medium": ("nt", (48, 64, 256), "medium"),
    "heavy": ("nt", (33, 72, 200), "heavy"),
}


def main(directory: Path, *names: str) -> dict[str, Any]:
    """For these cases, or all, whether the row's kernel ran, and the error."""
    import torch
    from torch._inductor.utils import fresh_cache, run_and_get_code

    import diode_lut
    from diode_lut.measure.gemm import exact_result, make_operands, make_tensors, with_epilogue
    from diode_lut.problem import NO_EPILOGUE, Problem

    found: dict[str, Any] = {}
    for case in names or CASES:
        layout, (m, n, k), epilogue = CASES[case]
        problem = Problem.of("int_mm", m, n, k, dtype="int8", layout=layout, epilogue=epilogue)
        configs = [{"template": "triton_mm", **TILES}]
        rows = [{"op": "int_mm", "epilogue": each, "configs": configs} for each in dict.fromkeys(("none", epilogue))]
        table = directory / f"{case}.json"
        table.write_text(json.dumps({"schema_version": 2, "hardware": HARDWARE, "entries": rows}), encoding="utf-8")
        operands, tensors = make_operands(problem, "cuda"), make_tensors(problem, "cuda")
        if case == "large sums":
            operands = tuple(torch.full_like(each, -128) for each in operands)
        torch._dynamo.reset()
        with fresh_cache(), diode_lut.config.patch(tables=(str(table),), tiers=("user",)):
            result, codes = run_and_get_code(torch.compile(with_epilogue(problem)), *operands, *tensors)
        exact = exact_result(problem, [each.cpu() for each in operands], [each.cpu() for each in tensors])
        error = (result.cpu().double() - exact).abs().max()
        size = 1.0 if problem.epilogue == NO_EPILOGUE else exact.square().mean().sqrt()
        found[case] = ["triton_tem" in codes[0] and "extern_kernels._int_mm" not in codes[0], float(error / size)]
    return found


if __name__ == "__main__":
    with interpreter_cuda():
        answer = main(Path(sys.argv[1]), *sys.argv[2:])
    print(json.dumps(answer))
