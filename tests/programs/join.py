"""Computes joined matmuls, and few rows, by rows on the interpreter's device; tests/interpreter/test_joined.py reads
what it prints.

``python join.py DIRECTORY [CASE]...``: a table goes there. Prints, by case, how many kernels are joined, how many
library kernels are called, and the relative errors of results and gradients against float64.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.interpreter.device import interpreter_cuda
from tests.programs.convolve import HARDWARE

BLOCKS = {"block_m": 16, "block_n": 32, "block_k": 32, "group_m": 2, "num_stages": 2, "num_warps": 4}
CONFIG = {"template": "triton_joined_mm", **BLOCKS}
OF_FEW_ROWS = {"template": "triton_few_rows", "block_n": 4, "block_k": 128, "num_stages": 2, "num_warps": 1}


def projections(x: Any, *weights: Any) -> Any:
    """Projections with biases, where there are some: a bias follows its weight."""
    from torch.nn import functional

    pairs = zip(weights, [*weights[1:], None], strict=True)
    return [functional.linear(x, w, b if b is not None and b.dim() == 1 else None) for w, b in pairs if w.dim() == 2]


def attention(x: Any, q: Any, k: Any, v: Any, o: Any) -> Any:
    """A residual block with attention and views behind the projections."""
    from torch.nn import functional

    def heads(w: Any) -> Any:
        return functional.linear(x, w).view(*x.shape[:2], -1, 16).transpose(1, 2)

    y = functional.scaled_dot_product_attention(heads(q), heads(k), heads(v), enable_gqa=True)
    return x + functional.linear(y.transpose(1, 2).flatten(-2), o)


def mlp(x: Any, gate: Any, up: Any, down: Any) -> Any:
    """A gated network."""
    from torch.nn import functional

    return functional.linear(functional.silu(functional.linear(x, gate)) * functional.linear(x, up), down)


def biased_mlp(x: Any, gate: Any, of_gate: Any, up: Any, of_up: Any) -> Any:
    """The same with biases."""
    from torch.nn import functional

    return functional.silu(functional.linear(x, gate, of_gate)) * functional.linear(x, up, of_up)


def of_gelu(x: Any, gate: Any, up: Any) -> Any:
    """The same of gelu."""
    from torch.nn import functional

    return functional.gelu(functional.linear(x, gate), approximate="tanh") * functional.linear(x, up)


def residual(x: Any, w: Any, b: Any, y: Any) -> Any:
    """A linear layer with a bias, an activation and a residual."""
    from torch.nn import functional

    return functional.gelu(functional.linear(x, w, b)) + y


def scaled(x: Any, w: Any, b: Any) -> Any:
    """Factors of a matmul and of its bias, which is a matrix, and a row-major B."""
    import torch

    return torch.addmm(b, x, w, alpha=0.5, beta=2)


def computed(x: Any, v: Any, w: Any) -> Any:
    """A is computed, B is a part of another matrix, and results change in place."""
    a = (x.sin() * 2).t().contiguous().t()
    first, second = a @ v.t(), a @ w.narrow(1, 8, 24).t().narrow(0, 0, x.shape[1])
    first.add_(1)
    second[1:3] = second[:2] * 2
    return first, second.relu()


def packed(x: Any, w: Any) -> Any:
    """Parts of one weight, and one of them twice."""
    first, second = w.split(40)
    return x @ first.t(), x @ second.t(), x @ first.t()


def chained(x: Any, v: Any, w: Any, u: Any) -> Any:
    """A of the second group is a result of the first."""
    first, second = x @ v, x @ w
    return first @ u, first @ u.narrow(1, 0, 16), second


def float8(x: Any, *weights: Any) -> Any:
    """Linear layers as torchao leaves them: each rounds its input to float8 by rows. A scale follows each weight."""
    import torch

    def linear(w: Any, of_w: Any) -> Any:
        wide = x if x.dtype == torch.float64 else x.float()
        of_a = wide.abs().amax(1, keepdim=True).clamp(min=1e-12) / 448
        a, b = (wide / of_a).clamp(-448, 448).to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)
        if x.dtype == torch.float64:
            return (a.double() * of_a) @ (b.double() * of_w).t()
        scales = of_a, of_w.float().t()
        return torch._scaled_mm(a, b.t(), *scales, out_dtype=torch.bfloat16, use_fast_accum=True)

    return [linear(*each) for each in zip(weights[::2], weights[1::2], strict=True)]


def float8_mlp(x: Any, *weights: Any) -> Any:
    """A gate of such layers."""
    from torch.nn import functional

    gate, up = float8(x, *weights)
    return functional.silu(gate) * up


class Case(NamedTuple):
    """A function, the shapes of its tensors, their dtype, how many kernels are of the project's template, and more.

    ``gradients`` are computed, rows are for ``few`` rows of A, and the first size may change: it is run ``again``.
    """

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str = "bfloat16"
    kernels: int = 1
    gradients: bool = False
    few: bool = False
    again: tuple[int, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """Return rows of a table for it. Those for sizes that may change say that a kernel is faster."""
        if self.few:
            return [{"op": op, "m": [1, 4], "configs": [OF_FEW_ROWS]} for op in ("joined_mm", "mm", "addmm")]
        if not self.again:
            return [{"op": "joined_mm", "configs": [CONFIG]}]
        parts = (16, [1, 16]), (32, [17, 64])
        faster = {**CONFIG, "gain_permille": 1500}
        return [{"op": "joined_mm", "m": m, "configs": [{**faster, "block_m": block_m}]} for block_m, m in parts]


CASES = {
    "one row": Case(projections, ((1, 64), (96, 64), (32, 64), (32, 64))),
    "odd sizes": Case(projections, ((50, 56), (33, 56), (17, 56), (80, 56)), "float32"),
    "biases": Case(projections, ((2, 9, 64), (96, 64), (96,), (32, 64), (40, 64), (40,)), "float16"),
    "attention": Case(attention, ((2, 12, 64), (64, 64), (32, 64), (32, 64), (64, 64))),
    "training": Case(attention, ((2, 12, 64), (64, 64), (32, 64), (32, 64), (64, 64)), "float32", gradients=True),
    "swiglu": Case(mlp, ((2, 25, 64), (72, 64), (72, 64), (64, 72))),
    "swiglu in float32": Case(mlp, ((3, 56), (64, 56), (64, 56), (56, 64)), "float32"),
    "swiglu with biases": Case(biased_mlp, ((20, 64), (72, 64), (72,), (72, 64), (72,))),
    "swiglu in training": Case(mlp, ((20, 64), (72, 64), (72, 64), (64, 72)), gradients=True),
    "geglu": Case(of_gelu, ((2, 25, 64), (72, 64), (72, 64))),
    "geglu in float32": Case(of_gelu, ((3, 56), (64, 56), (64, 56)), "float32"),
    "float8": Case(float8, ((18, 64), (96, 64), (96, 1), (32, 64), (32, 1), (48, 64), (48, 1))),
    "float8, swiglu": Case(float8_mlp, ((5, 64), (64, 64), (64, 1), (64, 64), (64, 1))),
    "computed": Case(computed, ((20, 24), (32, 24), (24, 40)), "float32"),
    "packed": Case(packed, ((20, 64), (80, 64)), "float32"),
    "chained": Case(chained, ((20, 56), (56, 40), (56, 24), (40, 40)), "float32", kernels=2),
    "a size may change": Case(projections, ((12, 64), (96, 64), (32, 64), (32, 64)), kernels=2, again=(2, 17, 64)),
    "a batch may change, with biases": Case(
        *(projections, ((2, 3, 64), (96, 64), (96,), (32, 64), (40, 64), (40,)), "float16", 2),
        again=(5, 6, 21),
    ),
    "swiglu, and a batch may change": Case(mlp, ((5, 2, 64), (72, 64), (72, 64), (64, 72)), kernels=2, again=(32, 9)),
    "a size may change in training": Case(
        *(projections, ((12, 56), (33, 56), (17, 56), (80, 56)), "float32", 2, True), again=(50, 3)
    ),
    "few rows": Case(residual, ((1, 200), (96, 200), (96,), (1, 96)), few=True),
    "few rows, odd sizes": Case(residual, ((3, 129), (33, 129), (33,), (3, 33)), "float32", few=True),
    "few rows, row-major": Case(scaled, ((2, 64), (64, 48), (2, 48)), "float16", few=True),
    "few rows, joined": Case(attention, ((1, 2, 64), (64, 64), (32, 64), (32, 64), (64, 64)), kernels=2, few=True),
    "few rows, swiglu": Case(mlp, ((4, 64), (72, 64), (72, 64), (64, 72)), kernels=2, few=True),
    "few rows, training": Case(mlp, ((2, 64), (72, 64), (72, 64), (64, 72)), "float32", 5, gradients=True, few=True),
}


def run(case: Case) -> dict[str, Any]:
    """Return how many kernels are of the project's template, and the errors."""
    import torch
    from torch._inductor.utils import run_and_get_code

    def attempt(function: Any, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        leaves = [each.detach().clone().requires_grad_(case.gradients) for each in tensors]
        if case.again:
            torch._dynamo.mark_dynamic(leaves[0], 0, min=2, max=64 // math.prod(leaves[0].shape[1:-1]))
        results = function(*leaves)
        results = list(results) if isinstance(results, (tuple, list)) else [results]
        if case.gradients:
            results += torch.autograd.grad(results, leaves, [each.detach() for each in results])
        return [each.detach().cpu().double() for each in results]

    def attempts(function: Any, given: list[list[torch.Tensor]]) -> list[torch.Tensor]:
        return [result for tensors in given for result in attempt(function, tensors)]

    torch._dynamo.reset()
    torch.manual_seed(0)
    dtype = getattr(torch, case.dtype)
    (first, *inner), *shapes = case.shapes
    given = []
    for size in (first, *case.again):
        tensors = [torch.randn(shape).div(shape[-1] ** 0.25) for shape in ((size, *inner), *shapes)]
        given.append([each.to(dtype).to("cuda") for each in tensors])
    compiled = torch.compile(case.function, dynamic=False)
    results, codes = run_and_get_code(attempts, compiled, given)
    exact = attempts(case.function, [[each.cpu().double() for each in tensors] for tensors in given])
    return {
        "kernels": sum(code.count("TILES_N : tl.constexpr") for code in codes),
        "errors": [float((a - b).norm() / b.norm()) for a, b in zip(results, exact, strict=True)],
    }


def compiles(directory: Path) -> list[str]:
    """Whether a graph comes from Inductor's cache, and is in the receipt: with a row, again, with other rows."""
    import torch
    from torch._dynamo.utils import counters
    from torch._inductor import config

    import diode_lut
    from diode_lut.receipts.recorder import own_receipt

    def joined() -> int:
        hits = [(hit, count) for device in own_receipt().devices.values() for hit, count in device.hits.items()]
        return sum(count for hit, count in hits if hit.problem.op == "joined_mm")

    tensors = [torch.randn(shape, device="cuda") for shape in ((16, 32), (64, 32), (32, 32))]
    found = []
    other, apart = {**CONFIG, "block_n": 16}, {"template": "default"}
    for name, config_of_row in (("a", CONFIG), ("b", CONFIG), ("c", other), ("d", apart)):
        table = write(directory / f"{name}.json", {"op": "joined_mm", "configs": [config_of_row]})
        torch._dynamo.reset()
        counters.clear()
        before = joined()
        with config.patch(fx_graph_cache=True), diode_lut.config.patch(tables=(table,)):
            torch.compile(projections)(*tensors)
        found.append(f"{'hit' if counters['inductor']['fxgraph_cache_hit'] else 'miss'} {joined() - before}")
    return found


def write(table: Path, *entries: dict[str, Any]) -> str:
    """Write a table with rows, and return its path."""
    table.write_text(json.dumps({"schema_version": 2, "hardware": HARDWARE, "entries": entries}), encoding="utf-8")
    return str(table)


def main(directory: Path, *names: str) -> dict[str, Any]:
    """The findings of ``run`` for these cases or all, those of ``compiles``, and what was written beside tensors."""
    from torch._inductor.utils import fresh_cache

    import diode_lut
    from tests.interpreter.device import overruns

    found: dict[str, Any] = {}
    with fresh_cache(), diode_lut.config.patch(tiers=("user",)):
        for name in names or CASES:
            with diode_lut.config.patch(tables=(write(directory / f"{name}.json", *CASES[name].rows()),)):
                found[name] = run(CASES[name])
        return found | {"compiles": compiles(directory), "overruns": overruns()}


if __name__ == "__main__":
    with interpreter_cuda():
        answer = main(Path(sys.argv[1]), *sys.argv[2:])
    print(json.dumps(answer))
