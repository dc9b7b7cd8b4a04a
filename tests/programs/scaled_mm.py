"""Runs scaled_mm with rows for its kernels on the interpreter's device; tests/interpreter/test_scaled_mm.py reads it.

``python scaled_mm.py DIRECTORY``: a table goes there. Prints, by case, whether a Triton kernel of the row ran, and the
largest error of an element over the square root of K, against float64.
"""

import json
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.interpreter.device import interpreter_cuda

TILES = {"block_m": 32, "block_n": 32, "block_k": 32, "group_m": 8, "num_stages": 3, "num_warps": 4}
HARDWARE = {"name": "NVIDIA H200", "arch": "sm_90", "sm_count": 132}
SIZES = 48, 64, 80
CASES = (
    ("triton_mm", "float8_e4m3fn", "tensor-bfloat16"),
    ("triton_mm", "float8_e4m3fn", "tensor-float16-bias-fast"),
    ("triton_mm", "float8_e5m2", "tensor-float32"),
    ("triton_mm", "float8_e4m3fn", "row-bfloat16-bias"),
    ("triton_mm", "float8_e4m3fn", "row-bfloat16-fast"),
    ("triton_mm_persistent_tma", "float8_e4m3fn", "tensor-bfloat16"),
    ("triton_mm_persistent_tma", "float8_e4m3fn", "row-bfloat16-fast"),
)


def with_half(multiply: Any, a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    """Return the matmul, and that with the first half of the columns."""
    half = b.shape[1] // 2
    return multiply(a, b, scale_a, scale_b), multiply(a, b[:, :half], scale_a, scale_b[:, :half])


def main(directory: Path) -> dict[str, Any]:
    """For each case, whether the row's kernel ran, and the error."""
    import torch
    from torch._inductor.utils import fresh_cache, run_and_get_code

    import diode_lut
    from diode_lut.measure.gemm import exact_result, function_of, make_operands
    from diode_lut.problem import JOINED_SCALINGS, Problem

    torch.manual_seed(0)  # float16 rounds a result above 64 by more than is allowed, and some random operands give one
    m, n, k = SIZES
    found: dict[str, Any] = {}
    for template, dtype, variant in CASES:
        problem = Problem.of("scaled_mm", m, n, k, dtype=dtype, layout="nt", variant=variant)
        rows = [{"op": "scaled_mm", "variant": variant, "configs": [{"template": template, **TILES}]}]
        table = directory / f"{template}-{dtype}-{variant}.json"
        table.write_text(json.dumps({"schema_version": 2, "hardware": HARDWARE, "entries": rows}), encoding="utf-8")
        operands = make_operands(problem, "cuda")
        torch._dynamo.reset()
        with fresh_cache(), diode_lut.config.patch(tables=(str(table),), tiers=("user",)):
            result, codes = run_and_get_code(torch.compile(function_of(problem)), *operands)
        error = (result.cpu().double() - exact_result(problem, [each.cpu() for each in operands])).abs().max()
        ran = "triton_tem" in codes[0] and "extern_kernels._scaled_mm" not in codes[0]
        found[f"{template} {dtype} {variant}"] = [ran, float(error) / math.sqrt(k)]
    for scaling in JOINED_SCALINGS:
        problem = Problem.of("scaled_mm", m, n, k, dtype="float8_e4m3fn", layout="nt", variant=scaling)
        rows = [{"op": "joined_mm", "variant": "two", "configs": [{"template": "triton_joined_mm", **TILES}]}]
        table = directory / f"joined-{scaling}.json"
        table.write_text(json.dumps({"schema_version": 2, "hardware": HARDWARE, "entries": rows}), encoding="utf-8")
        operands = make_operands(problem, "cuda")
        torch._dynamo.reset()
        with fresh_cache(), diode_lut.config.patch(tables=(str(table),), tiers=("user",)):
            results, codes = run_and_get_code(torch.compile(partial(with_half, function_of(problem))), *operands)
        exact = exact_result(problem, [each.cpu() for each in operands])
        errors = [(each.cpu().double() - exact[:, : each.shape[1]]).abs().max() for each in results]
        found[f"joined {scaling}"] = ["TILES_N : tl.constexpr" in codes[0], float(max(errors)) / math.sqrt(k)]
    return found


if __name__ == "__main__":
    with interpreter_cuda():
        answer = main(Path(sys.argv[1]))
    print(json.dumps(answer))
