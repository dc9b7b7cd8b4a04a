"""Runs matmuls with a size that only the data tell, on the interpreter's device; test_unbacked.py reads what it prints.

``python unbacked.py DIRECTORY [CASE]...``: tables go there. Prints, by case, what is counted for the only compile, and
the largest error for all sizes; and whether a program's own Triton allocator is in force after a call with tensor
descriptors.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.interpreter.device import interpreter_cuda

HARDWARE = {"name": "NVIDIA H200", "arch": "sm_90", "sm_count": 132}
SIZES = (7, 0, 1, 30, 50)


def config(template: str, m: int, n: int, k: int) -> dict[str, Any]:
    blocks = {"block_m": m, "block_n": n, "block_k": k}
    return {"template": template, **blocks, "group_m": 8, "num_stages": 3, "num_warps": 4, "gain_permille": 1200}


SMALL, LARGE = config("triton_mm", 16, 32, 32), config("triton_mm", 32, 16, 16)
ATEN = {"template": "aten", "gain_permille": 1000}
ROWS: dict[str, list[dict[str, Any]]] = {
    "one kernel": [{"op": "mm", "configs": [SMALL]}],
    "two kernels": [{"op": "mm", "m": [1, 16], "configs": [SMALL]}, {"op": "mm", "m": [17, 50], "configs": [LARGE]}],
    "library": [{"op": "mm", "m": [1, 16], "configs": [SMALL]}, {"op": "mm", "m": [17, 50], "configs": [ATEN]}],
    "tma": [{"op": "mm", "configs": [config("triton_mm_persistent_tma", 32, 32, 32)]}],
    "batch": [{"op": "bmm", "configs": [config("triton_bmm", 16, 32, 32)]}],
    "along k": [{"op": "mm", "configs": [SMALL]}],
    "checked": [{"op": "mm", "configs": [SMALL]}],
    "unbounded": [{"op": "mm", "configs": [SMALL]}],
}


def multiply(case: str, x: Any, w: Any, mask: Any) -> Any:
    """The matmul, of as many rows, or with as many products to add up, as the mask has ones."""
    import torch

    if case == "batch":
        return torch.bmm(x.view(50, 1, 48)[mask], w.expand(50, 48, 40)[mask])
    if case == "along k":
        return x[mask].t() @ x[mask]
    if case in ("checked", "unbounded"):
        size = mask.sum().item()
        torch._check(size >= 0)
        if case == "checked":
            torch._check(size <= 50)
        return x[:size] @ w
    return torch.relu(x[mask] @ w + 1)


def run(case: str, table: Path) -> dict[str, Any]:
    """Return the counts and the largest error."""
    import torch

    import diode_lut

    torch._dynamo.reset()
    x, w = torch.randn(50, 48, device="cuda"), torch.randn(48, 40, device="cuda")
    compiled = torch.compile(lambda *tensors: multiply(case, *tensors), fullgraph=True)
    errors = []
    with diode_lut.config.patch(tables=(str(table),), strict=True), diode_lut.profile_predictions() as counts:
        for size in SIZES:
            operands = x, w, torch.arange(50, device="cuda") < size
            result = compiled(*operands)
            expected = multiply(case, *(each.cpu() for each in operands))
            assert result.shape == expected.shape
            errors.append(float((result.cpu() - expected).abs().max()) if expected.numel() else 0.0)
    return {
        "asked": counts.total_predictions,
        "hits": counts.hits["user"],
        "no_choice": counts.no_choice,
        "error": max(errors),
    }


def keeps_allocator(table: Path) -> bool:
    """Whether the allocator that a program has set is in force after a call of a kernel with tensor descriptors."""
    import torch
    import triton
    from triton.runtime import _allocation

    import diode_lut

    def own(size: int, align: int, stream: Any) -> Any:
        return torch.empty(size, dtype=torch.int8, device="cuda")

    torch._dynamo.reset()
    triton.set_allocator(own)
    x = torch.randn(64, 64, device="cuda")
    with diode_lut.config.patch(tables=(str(table),), strict=True):
        torch.compile(torch.mm)(x, x)
    return _allocation._allocator.get() is own


def main(directory: Path, *names: str) -> dict[str, Any]:
    """The findings of ``run`` for these cases, or all."""
    import torch
    from torch._inductor.utils import fresh_cache

    import diode_lut

    for case, entries in ROWS.items():
        rows = {"schema_version": 2, "hardware": HARDWARE, "entries": entries}
        (directory / f"{case}.json").write_text(json.dumps(rows), encoding="utf-8")
    captured = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    with fresh_cache(), torch._dynamo.config.patch(captured), diode_lut.config.patch(tiers=("user",)):
        found = {case: run(case, directory / f"{case}.json") for case in names or ROWS}
        return {**found, "own allocator": keeps_allocator(directory / "tma.json")}


if __name__ == "__main__":
    with interpreter_cuda():
        answer = main(Path(sys.argv[1]), *sys.argv[2:])
    print(json.dumps(answer))
