"""Runs generated kernels with fixed configs on the interpreter's device; tests/interpreter/test_generated.py reads it.

``python generate.py DIRECTORY [FORM]...``: tables go there. Prints for each form of reductions the errors of all
results and gradients against float64, and how often which heuristics are in the code; first with fixed sizes, then of
one compile with a number of rows that may change, for several numbers.
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.interpreter.device import interpreter_cuda
from tests.programs.convolve import HARDWARE

POINTWISE = [
    {"op": "pointwise", "variant": "flat", "configs": [{"template": "pointwise", "block_x": 64, "num_warps": 1}]},
    {"op": "pointwise", "configs": [{"template": "pointwise", "block_x": 32, "block_y": 4, "num_warps": 1}]},
]
REDUCTIONS = {
    "persistent": {"template": "persistent_reduction", "block_x": 1, "num_warps": 1},
    "persistent rows": {"template": "persistent_reduction", "block_x": 16, "num_warps": 4},
    "looped": {"template": "looped_reduction", "block_x": 1, "block_r": 4, "num_warps": 1},
    "looped rows": {"template": "looped_reduction", "block_x": 32, "block_r": 4, "num_warps": 4},
}
ROWS = (30, 2, 17, 65)  # numbers of rows, first that of the compile

SHAPES = ((37, 50), (21, 70), (70,), (70,), (16, 64), (64,), (33, 40), (5, 12, 14), (3, 20, 48), (3, 48, 20), (19, 43))


def main(directory: Path, *forms: str) -> dict[str, Any]:
    """The errors, and the heuristics, of these forms or all."""
    import torch
    from torch._inductor.utils import fresh_cache, run_and_get_code
    from torch.nn import functional

    import diode_lut

    def function(a: Any, b: Any, w: Any, v: Any, c: Any, u: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
        norms = functional.layer_norm(b, (70,), w, v), c * (c.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * u
        loss = functional.cross_entropy(h, h.detach().argmin(-1))
        sums = d.sum(0), d.detach().prod(0), e.sum(), e.mean((0, 2)), h.var(-1), h.detach().amax(0)
        return (a.softmax(-1), *norms, *sums, f.transpose(1, 2) + g, loss, (h > 2).any(-1), h.argmax(-1))

    def attempt(function: Any, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        leaves = [each.detach().requires_grad_() for each in tensors]
        results = function(*leaves)
        some = [each for each in results if each.requires_grad]
        gradients = torch.autograd.grad(some, leaves, [each.detach() + 1 for each in some])
        return [each.detach().cpu().double() for each in (*results, *gradients)]

    def rows(a: Any, b: Any, c: Any, d: Any) -> Any:
        return a.softmax(-1), functional.layer_norm(b, (70,)), functional.gelu(c), d.square().sum(-1)

    def of_rows(count: int) -> list[torch.Tensor]:
        tensors = [torch.randn(count, width, device="cuda") for width in (50, 70, 33, 20)]
        for each in tensors:
            torch._dynamo.mark_dynamic(each, 0)
        return tensors

    torch.manual_seed(0)
    tensors = [torch.randn(shape, device="cuda") for shape in SHAPES]
    exact = attempt(function, [each.cpu().double() for each in tensors])
    answer: dict[str, Any] = {}
    for name in forms or REDUCTIONS:
        torch._dynamo.reset()
        table = directory / f"{name}.json"
        entries = [*POINTWISE, {"op": "reduction", "configs": [REDUCTIONS[name]]}]
        table.write_text(json.dumps({"schema_version": 2, "hardware": HARDWARE, "entries": entries}), encoding="utf-8")
        with fresh_cache(), diode_lut.config.patch(tables=(str(table),), tiers=("user",)):
            results, codes = run_and_get_code(attempt, torch.compile(function), tensors)
            answer[name] = {
                "errors": [float((a - b).norm() / b.norm()) for a, b in zip(results, exact, strict=True)],
                "kernels": Counter(re.findall(r"@triton_heuristics\.(\w+)\(", "".join(codes))),
            }
            compiled, errors = torch.compile(rows), []
            _, codes = run_and_get_code(compiled, *of_rows(ROWS[0]))
            for count in ROWS:
                several = of_rows(count)
                with torch._dynamo.config.patch(error_on_recompile=True):
                    results = compiled(*several)
                right = rows(*(each.cpu().double() for each in several))
                errors += [float((a.cpu() - b).norm() / b.norm()) for a, b in zip(results, right, strict=True)]
            answer[f"{name}, any number"] = {
                "errors": errors,
                "kernels": Counter(re.findall(r"@triton_heuristics\.(\w+)\(", "".join(codes))),
            }
    return answer


if __name__ == "__main__":
    with interpreter_cuda():
        found = main(Path(sys.argv[1]), *sys.argv[2:])
    print(json.dumps(found))
