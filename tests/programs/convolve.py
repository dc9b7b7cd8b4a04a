"""Runs 1x1 convolutions as GEMMs on the interpreter's device; tests/interpreter/test_convolutions.py reads it.

``python convolve.py DIRECTORY``: a table goes there. Prints the blocks of the Triton kernels that ran, how many other
kernels there were, and the relative error.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.interpreter.device import interpreter_cuda

HARDWARE = {"name": "NVIDIA H200", "arch": "sm_90", "sm_count": 132}


def rows() -> list[dict[str, Any]]:
    """Rows for a GEMM alone, and for one with an epilogue."""
    blocks = {"block_n": 32, "block_k": 32, "group_m": 8, "num_stages": 3, "num_warps": 4}
    return [
        {"op": "mm", "epilogue": epilogue, "configs": [{"template": "triton_mm", "block_m": block_m, **blocks}]}
        for epilogue, block_m in (("none", 16), ("light", 32), ("medium", 64))
    ]


def main(directory: Path) -> dict[str, Any]:
    """What ran, and the error."""
    import torch
    from torch._inductor import config as inductor_config
    from torch._inductor.utils import fresh_cache, run_and_get_code
    from torch.nn import functional

    import diode_lut

    def block(x: Any, first: Any, second: Any, residual: Any) -> Any:
        y = functional.conv2d(functional.conv2d(x, first).relu(), second)
        return (y + residual).relu()

    def images(channels: int) -> torch.Tensor:
        drawn = torch.randn(2, channels, 6, 8, dtype=torch.bfloat16, device="cuda")
        return drawn.to(memory_format=torch.channels_last)

    table = directory / "rows.json"
    table.write_text(json.dumps({"schema_version": 2, "hardware": HARDWARE, "entries": rows()}), encoding="utf-8")
    weights = [
        torch.randn(rows, columns, 1, 1, dtype=torch.bfloat16, device="cuda") for rows, columns in ((64, 48), (40, 64))
    ]
    tensors = [images(48), *weights, images(40)]
    with (
        fresh_cache(),
        inductor_config.patch(conv_1x1_as_mm=True),
        diode_lut.config.patch(tables=(str(table),), tiers=("user",)),
    ):
        result, codes = run_and_get_code(torch.compile(block), *tensors)
    exact = block(*(each.cpu().double() for each in tensors))
    return {
        "blocks": list(map(int, re.findall(r"BLOCK_M : tl.constexpr = (\d+)", codes[0]))),
        "others": len(re.findall(r"triton_heuristics\.pointwise\(|extern_kernels\.\w+\(", codes[0])),
        "error": float((result.cpu().double() - exact).norm() / exact.norm()),
    }


if __name__ == "__main__":
    with interpreter_cuda():
        answer = main(Path(sys.argv[1]))
    print(json.dumps(answer))
