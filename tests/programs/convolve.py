"""Runs 1x1 convolutions as GEMMs on the interpreter's device; tests/interpreter/test_convolutions.py reads it.

``python convolve.py DIRECTORY [CASE]...``: a table goes there. Prints by case the blocks of the Triton kernels that
ran, how many other kernels there were, and the relative error.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.interpreter.device import interpreter_cuda

HARDWARE = {"name": "NVIDIA H200", "arch": "sm_90", "sm_count": 132}


def rows() -> list[dict[str, Any]]:
    """Rows for a GEMM alone, and for one with an epilogue."""
    blocks = {"block_n": 32, "block_k": 32, "group_m": 8, "num_stages": 3, "num_warps": 4}
    return [
        {"op": "mm", "epilogue": epilogue, "configs": [{"template": "triton_mm", "block_m": block_m, **blocks}]}
        for epilogue, block_m in (("none", 16), ("light", 32), ("medium", 64))
    ]


def residual(x: Any, first: Any, second: Any, y: Any) -> Any:
    """Two convolutions with relu, and a sum."""
    from torch.nn import functional

    return (functional.conv2d(functional.conv2d(x, first).relu(), second) + y).relu()


def norm(x: Any, weight: Any, mean: Any, variance: Any, scale: Any, shift: Any) -> Any:
    """A batch norm with silu."""
    from torch.nn import functional

    y = functional.conv2d(x, weight)
    return functional.silu(functional.batch_norm(y, mean, variance.abs(), scale, shift))


def gelu(x: Any, weight: Any, bias: Any) -> Any:
    """A bias with gelu."""
    from torch.nn import functional

    return functional.gelu(functional.conv2d(x, weight, bias))


def chain(x: Any, first: Any, second: Any) -> Any:
    """Residual blocks."""
    for _ in range(3):
        x = residual(x, first, second, x)
    return x


class Case(NamedTuple):
    """A function, the shapes of its tensors, their dtype, and whether Inductor's option is set."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str = "bfloat16"
    option: bool = False


RESIDUAL = ((2, 48, 6, 8), (64, 48, 1, 1), (40, 64, 1, 1), (2, 40, 6, 8))
CASES = {
    "option": Case(residual, RESIDUAL, option=True),
    "residual": Case(residual, RESIDUAL),
    "norm": Case(norm, ((3, 24, 5, 7), (72, 24, 1, 1), *((72,),) * 4)),
    "norm in float16": Case(norm, ((3, 24, 5, 7), (40, 24, 1, 1), *((40,),) * 4), "float16"),
    "one pixel": Case(norm, ((3, 64, 1, 1), (40, 64, 1, 1), *((40,),) * 4)),
    "gelu": Case(gelu, ((2, 48, 5, 5), (72, 48, 1, 1), (72,))),
    "chain": Case(chain, ((2, 48, 6, 8), (64, 48, 1, 1), (48, 64, 1, 1))),
}


def run(case: Case) -> dict[str, Any]:
    """Return what ran, and the error."""
    import torch
    from torch._inductor import config as inductor_config
    from torch._inductor.utils import fresh_cache, run_and_get_code

    torch._dynamo.reset()
    torch.manual_seed(0)
    tensors = []
    for shape in case.shapes:
        drawn = torch.randn(shape).div(shape[1] ** 0.5 if len(shape) == 4 and shape[2:] == (1, 1) else 1)
        moved = drawn.to(getattr(torch, case.dtype)).to("cuda")
        tensors.append(moved.to(memory_format=torch.channels_last) if len(shape) == 4 else moved)
    with fresh_cache(), inductor_config.patch(conv_1x1_as_mm=case.option), torch.no_grad():
        result, codes = run_and_get_code(torch.compile(case.function), *tensors)
    exact = case.function(*(each.cpu().double() for each in tensors))
    return {
        "blocks": list(map(int, re.findall(r"BLOCK_M : tl.constexpr = (\d+)", codes[0]))),
        "others": len(re.findall(r"triton_heuristics\.pointwise\(|extern_kernels\.\w+\(", codes[0])),
        "error": float((result.cpu().double() - exact).norm() / exact.norm()),
    }


def main(directory: Path, *names: str) -> dict[str, Any]:
    """Return what ran in these cases, or all."""
    import diode_lut

    table = directory / "rows.json"
    table.write_text(json.dumps({"schema_version": 2, "hardware": HARDWARE, "entries": rows()}), encoding="utf-8")
    with diode_lut.config.patch(tables=(str(table),), tiers=("user",)):
        return {name: run(CASES[name]) for name in names or CASES}


if __name__ == "__main__":
    with interpreter_cuda():
        answer = main(Path(sys.argv[1]), *sys.argv[2:])
    print(json.dumps(answer))
