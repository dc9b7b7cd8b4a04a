"""Runs grouped matmuls with a row on the interpreter's device; tests/interpreter/test_grouped_mm.py reads it.

``python grouped_mm.py DIRECTORY``: a table goes there. Prints, by case, how often the row's kernel is in the code, and
the largest errors of the result and of each gradient, over the largest element, against float64.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.interpreter.device import interpreter_cuda

HARDWARE = {"name": "NVIDIA H200", "arch": "sm_90", "sm_count": 132}
CONFIG = {"template": "triton_grouped_mm", "block_m": 16, "block_n": 64, "block_k": 32, "num_stages": 3, "num_warps": 4}


class Case(NamedTuple):
    """Rows of each group, N and K, how B is stored, and what follows."""

    rows: tuple[int, ...]
    n: int
    k: int
    layout: str = "nt"
    then: str = "nothing"
    gradients: bool = False


CASES = {
    "transposed": Case((5, 0, 20, 7), 72, 40),
    "row-major": Case((16, 17), 40, 72, "nn"),
    "activation": Case((5, 0, 20, 7), 72, 40, then="relu"),
    "gate and up": Case((3, 12), 96, 32, then="gate"),
    "gradients": Case((24, 8, 16), 48, 40, gradients=True),
}


def multiply(a: Any, b: Any, ends: Any) -> Any:
    """The grouped matmul, in a type that the library lacks by one product for each group."""
    import torch

    if a.dtype == torch.bfloat16:
        return torch._grouped_mm(a, b, ends)
    starts = [0, *ends.tolist()]
    return torch.cat([a[start:end] @ each for start, end, each in zip(starts, starts[1:], b, strict=False)])


def then(what: str, result: Any) -> Any:
    """What follows the matmul."""
    import torch

    if what == "relu":
        return result.relu()
    if what == "gate":
        gate, up = result.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up
    return result


def operands(case: Case) -> tuple[Any, Any, Any]:
    """A, B and the ends of the groups on "cuda"."""
    import torch

    a = torch.randn(sum(case.rows), case.k, dtype=torch.bfloat16, device="cuda")
    shape = (case.k, case.n) if case.layout == "nn" else (case.n, case.k)
    stored = torch.randn(len(case.rows), *shape, dtype=torch.bfloat16, device="cuda")
    ends = torch.tensor(case.rows).cumsum(0).int().to("cuda")
    return a, stored if case.layout == "nn" else stored.mT, ends


def run(case: Case) -> dict[str, Any]:
    """How often the row's kernel is in the code, the names of library kernels, and the errors."""
    import torch
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    a, b, ends = operands(case)
    doubles = [each.cpu().double().requires_grad_(case.gradients) for each in (a, b)]
    a, b = (each.detach().requires_grad_(case.gradients) for each in (a, b))
    function: Callable[..., Any] = torch.compile(lambda *tensors: then(case.then, multiply(*tensors)))
    expected = then(case.then, multiply(*doubles, ends.cpu()))
    result, codes = run_and_get_code(function, a, b, ends)
    pairs = [(result, expected)]
    if case.gradients:
        gradient = torch.randn_like(result)
        expected.backward(gradient.cpu().double())
        _, more = run_and_get_code(lambda: result.backward(gradient))
        codes = [*codes, *more]
        pairs += [(ours.grad, double.grad) for ours, double in zip((a, b), doubles, strict=True)]
    errors = [float(((ours.cpu().double() - exact).abs().max() / exact.abs().max()).detach()) for ours, exact in pairs]
    code = "\n".join(codes)
    kernels = sum(code.count(f"BLOCK_N : tl.constexpr = {CONFIG['block_n']}\n") for code in codes)
    return {"kernels": kernels, "library": code.count("extern_kernels._grouped_mm("), "errors": errors}


def main(directory: Path) -> dict[str, Any]:
    """The findings of ``run`` for each case."""
    from torch._inductor.utils import fresh_cache

    import diode_lut

    table = directory / "grouped.json"
    rows = [{"op": "grouped_mm", "configs": [CONFIG]}]
    table.write_text(json.dumps({"schema_version": 2, "hardware": HARDWARE, "entries": rows}), encoding="utf-8")
    with fresh_cache(), diode_lut.config.patch(tables=(str(table),), tiers=("user",)):
        return {name: run(case) for name, case in CASES.items()}


if __name__ == "__main__":
    with interpreter_cuda():
        answer = main(Path(sys.argv[1]))
    print(json.dumps(answer))
