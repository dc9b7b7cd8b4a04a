"""What matmuls with a dynamic size run on the interpreter's device, as JSON for tests/interpreter/test_branches.py.

``python branch.py DIRECTORY [CASE]...``: tables go there. ``python branch.py DIRECTORY SIZE OTHER``: what
``after_another`` says, with these sizes first.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.interpreter.device import interpreter_cuda
from tests.programs.pad import ATEN, TILES, Tables

WAYS: dict[str, tuple[bool | None, Mapping[str, Any] | None]] = {
    "a second size": (None, None),
    "dynamic=True": (True, None),
    "without bounds": (None, {}),
    "specialize_on": (None, {"specialize_on": [lambda m: m == 20]}),
    "hint_override": (None, {"hint_override": 100}),
}
"""How sizes become dynamic: what ``torch.compile`` gets, and ``mark_dynamic``, if it is called."""

BLOCKS = (16, 32, 64)  # BLOCK_M of the kernels for small, middling and large sizes
BORDERS = (1, 9, 33, 257)  # the sizes of M at which the rows begin, and the end
SIZES = (2, 8, 9, 20, 32, 33, 100)  # the sizes of M, in the order in which they are run

SHAPES: dict[str, tuple[Sequence[Any], ...]] = {
    "mm": (("m", 40), (40, 48)),
    "mm silu": (("m", 40), (40, 48)),
    "mm residual": (("m", 40), (40, 48), ("m", 48)),
    "addmm": ((48,), ("m", 40), (40, 48)),
    "addmm relu": ((48,), ("m", 40), (40, 48)),
    "bmm": ((3, "m", 40), (3, 40, 48)),
    "baddbmm": ((3, 1, 48), (3, "m", 40), (3, 40, 48)),
    "linear": ((2, "m", 40), (48, 40), (48,)),
    "linear of any batch": (("b", "m", 40), (48, 40), (48,)),
    "linear gelu of any batch": (("b", "m", 40), (48, 40), (48,)),
    "encoder of any batch": (("b", "m", 32), (96, 32), (96,), (32, 32), (32,), (64, 32), (64,), (32, 64), (32,)),
}
"""Of the operands, ``m`` and ``b`` being sizes that may change."""

FUSED = [op for op in SHAPES if op.startswith(("mm ", "addmm ", "linear gelu ", "encoder "))]  # with work after them


def sizes_of(op: str, *, library: bool) -> tuple[int, ...]:
    """The sizes at which an op is run, in this order: half of the ops have the largest first, with the library others.

    An encoder is run at one size of each part of the range.
    """
    sizes = SIZES[1::2] if op.startswith("encoder ") else SIZES
    return sizes if ([*SHAPES].index(op) + library) % 2 else sizes[::-1]


def main(directory: str, *names: str) -> dict[str, Any]:
    """Return ``run``'s findings on cases, or all, with and without the library for small sizes."""
    import torch
    from torch.nn import functional

    functions: dict[str, Callable[..., Any]] = {
        "mm": torch.mm,
        "mm silu": lambda a, b: functional.silu(a @ b),
        "mm residual": lambda a, b, r: a @ b + (r * 2).sin(),
        "addmm": lambda *operands: torch.addmm(*operands, beta=0.5, alpha=2),
        "addmm relu": lambda *operands: torch.addmm(*operands).relu(),
        "bmm": torch.bmm,
        "baddbmm": torch.baddbmm,
        "linear": functional.linear,
        "linear of any batch": functional.linear,
        "linear gelu of any batch": lambda *operands: functional.gelu(functional.linear(*operands)),
        "encoder of any batch": encode,
    }
    table = Tables(Path(directory))
    found = {}
    for op, shapes in SHAPES.items():
        for library in (False, True):
            name = f"{op} {'library' if library else 'triton'}"
            if names and name not in names:
                continue
            found[name] = run(functions[op], shapes, table(op, *rows(op, library)), sizes_of(op, library=library))
    path = table("artifact", *rows("mm", library=True))
    found["artifact"] = run(torch.mm, SHAPES["mm"], path, SIZES, backend=as_servers_compile)
    found["sglang"] = run(torch.mm, SHAPES["mm"], path, SIZES, as_sglang_compiles, marks={}, mark="maybe_mark_dynamic")
    for way, (dynamic, marks) in WAYS.items():
        found[way] = run(lambda a, b: a @ b, SHAPES["mm"], path, SIZES, dynamic=dynamic, marks=marks)
    return found


def after_another(directory: str, *first: str) -> dict[str, Any]:
    """For two graphs what ``run`` says, each with its first size, and whether Inductor's cache had them."""
    import torch
    from torch._dynamo.utils import counters
    from torch._inductor import config
    from torch.nn import functional

    table = Tables(Path(directory))
    found = {}
    functions = {"mm": torch.mm, "mm silu": lambda a, b: functional.silu(a @ b)}
    with config.patch(fx_graph_cache=True, fx_graph_remote_cache=False):
        for (op, function), size in zip(functions.items(), map(int, first), strict=True):
            counters.clear()
            path = table(op, *rows(op, library=op == "mm"))
            case = run(function, SHAPES[op], path, (size, *SIZES))
            found[op] = {**case, "cached": counters["inductor"]["fxgraph_cache_hit"]}
    return found


def as_servers_compile(graph: Any, inputs: Any) -> Callable[..., Any]:
    """A backend that makes an artifact of the graph, which can be saved."""
    import torch

    artifact: Callable[..., Any] = torch._inductor.standalone_compile(graph, inputs, dynamic_shapes="from_graph")
    return artifact


def as_sglang_compiles(graph: Any, inputs: Any) -> Callable[..., Any]:
    """A backend that compiles a graph as SGLang's does each piece of a model: a copy, by Inductor, on fake tensors.

    AOTAutograd's cache is off, and Inductor's is asked and filled without a shape environment, so without guards.
    """
    import torch
    from torch._guards import detect_fake_mode
    from torch._inductor.codecache import FxGraphCache
    from torch._inductor.compile_fx import compile_fx

    mode: Any = detect_fake_mode()
    fake = [mode.from_tensor(each) if isinstance(each, torch.Tensor) else each for each in inputs]
    none = SimpleNamespace(
        guards=[],
        var_to_hint_override={},
        evaluate_guards_expression=lambda *_: True,
        get_pruned_guards=lambda *_: [],
        produce_guards_expression=lambda *_, **__: "",
    )
    without_guards = mock.patch.object(FxGraphCache, "_get_shape_env", return_value=none)
    with without_guards, torch._functorch.config.patch(enable_autograd_cache=False):
        compiled: Callable[..., Any] = compile_fx(deepcopy(graph), fake, config_patches={"fx_graph_cache": True})
    return compiled


def encode(x: Any, qkv: Any, qkv_bias: Any, out: Any, out_bias: Any, *mlp: Any) -> Any:
    """A layer of an encoder: attention with two heads and an MLP, each added to what it reads, of batch x length x 32.

    ``mlp`` are the weights and biases of its two linear layers.
    """
    from torch.nn.functional import gelu, linear

    up, up_bias, down, down_bias = mlp
    batch, length, width = x.shape
    q, k, v = linear(x, qkv, qkv_bias).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
    seen = (q @ k.transpose(-1, -2) * width**-0.5).softmax(-1) @ v
    x = x + linear(seen.transpose(1, 2).reshape(x.shape), out, out_bias)
    return x + linear(gelu(linear(x, up, up_bias)), down, down_bias)


def rows(op: str, library: bool) -> list[dict[str, Any]]:
    """Rows for three parts of the range of M; the library has the first part, or none."""
    template = "triton_bmm" if op in ("bmm", "baddbmm") else "triton_mm"
    kernels = [{**TILES, "template": template, "block_m": block} for block in BLOCKS]
    best = [ATEN if library else kernels[0], *kernels[1:]]
    scale = 2 if "b" in SHAPES[op][0] or op == "linear" else 1
    return [
        {
            "m": [scale * low, scale * high - 1],
            "configs": [{**config, **({} if config == ATEN else {"gain_permille": 1500})}],
        }
        for config, (low, high) in zip(best, pairwise(BORDERS), strict=True)
    ]


MOST = {"b": 4, "m": 128}  # the largest sizes, as PyTorch is told
BOUNDED: Mapping[str, Any] = {"min": 2}  # marks that stand for bounds, whose largest size is that of the dimension


def batch_and_rows(m: int) -> dict[Any, int]:
    """Twice as many rows as ``m``, in batches of different sizes."""
    batch = 4 if m % 2 == 0 and m > 2 else 2
    return {"b": batch, "m": 2 * m // batch}


@cache
def blocks_of(kernel: Callable[..., Any]) -> list[int]:
    """BLOCK_M of a kernel's source; nothing if it is no template's."""
    return [*map(int, re.findall(r"BLOCK_M : tl.constexpr = (\d+)", inspect.getsource(kernel)))]


def run(
    function: Callable[..., Any],
    shapes: Sequence[Sequence[Any]],
    table: str,
    sizes: Sequence[int],
    backend: Any = "inductor",
    *,
    dynamic: bool | None = None,
    marks: Mapping[str, Any] | None = BOUNDED,
    mark: str = "mark_dynamic",
) -> dict[str, Any]:
    """The largest error, the number of compiles, and each BLOCK_M of what ran per size; none for the library."""
    import torch
    from torch._dynamo.testing import CompileCounterWithBackend
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    import diode_lut

    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    ran: list[Any] = []
    launch = CachingAutotuner.run

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        ran.extend(blocks_of(self.fn.fn))
        return launch(self, *args, **kwargs)

    compiled = torch.compile(function, backend=counter, dynamic=dynamic)
    errors, blocks = [], {}
    settings = diode_lut.config.patch(tables=(table,), tiers=("user",))
    with settings, mock.patch.object(CachingAutotuner, "run", noted):
        for m in sizes:
            ran.clear()
            sizes_of = batch_and_rows(m) if any("b" in shape for shape in shapes) else {"m": m}
            first, *others = [torch.randn([sizes_of.get(size, size) for size in shape]) for shape in shapes]
            operands = [first, *(other / other.shape[-1] ** 0.5 for other in others)]
            on_device = [operand.to("cuda") for operand in operands]
            for operand, shape in zip(on_device, shapes, strict=True):
                if not sizes_of.keys() & shape:
                    torch._dynamo.mark_static(operand)  # as parameters of a module are
                for name in sizes_of.keys() & shape if marks is not None else ():
                    bounds = {"min": 2, "max": MOST[name]} if marks is BOUNDED else marks
                    getattr(torch._dynamo, mark)(operand, shape.index(name), **bounds)
            if not blocks:
                compiled(*on_device)
                ran.clear()  # an artifact's kernels have been run once already, to compile them
            found, expected = compiled(*on_device).cpu().double(), function(*(each.double() for each in operands))
            errors.append(float((found - expected).norm() / expected.norm()))
            blocks[m] = [*dict.fromkeys(ran)]
    return {"error": max(errors), "compiles": counter.frame_count, "blocks": blocks}


if __name__ == "__main__":
    with interpreter_cuda():
        print(json.dumps((after_another if sys.argv[2:] and sys.argv[2].isdigit() else main)(*sys.argv[1:])))
