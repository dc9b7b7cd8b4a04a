"""What matmuls become on the interpreter's device where a row pads, as JSON for tests/interpreter/test_padding.py.

``python pad.py DIRECTORY [CASE]...``: tables and Inductor's caches go there.
"""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from tests.interpreter.device import interpreter_cuda

TILES = {"block_m": 32, "block_n": 32, "block_k": 32, "group_m": 8, "num_stages": 3, "num_warps": 4}
MM, BMM, TMA = ({"template": f"triton_{name}", **TILES} for name in ("mm", "bmm", "mm_persistent_tma"))
ATEN = {"template": "aten"}

SHAPES = {
    "mm": [(40, 77), (77, 51)],
    "addmm": [(51,), (40, 77), (77, 51)],
    "addmm of a matrix": [(40, 1), (40, 77), (77, 51)],
    "bmm": [(3, 40, 77), (3, 77, 51)],
    "linear": [(2, 20, 77), (51, 77), (51,)],
}

MODES = ("default", "max-autotune-no-cudagraphs")
CASES = {
    f"{op} {dtype} {mode}": (op, dtype, mode)
    for number, op in enumerate(SHAPES)
    for place, dtype in enumerate(("bfloat16", "float32"))
    for mode in [MODES[(number + place) % 2]]
}
"""Each op with each type, and in each mode."""


def main(directory: str, *names: str) -> dict[str, Any]:
    """For these cases, or all, the largest error, the matmuls left to Inductor's benchmark, and how many kernels."""
    import torch

    functions: dict[str, Callable[..., Any]] = {
        "mm": torch.mm,
        "addmm": lambda *operands: torch.addmm(*operands, beta=0.5, alpha=2),
        "addmm of a matrix": torch.addmm,
        "bmm": torch.bmm,
        "relu": lambda x, w, b: torch.nn.functional.linear(x, w, b).relu(),
        "gelu": lambda x, w, b: torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b), approximate="tanh"),
        "linear": lambda x, w, b: torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b)),
    }
    table = Tables(Path(directory))
    found = {}
    for name in names or CASES:
        op, dtype, mode = CASES[name]
        pad = {"bfloat16": 8, "float32": 4}[dtype]
        path = table("padded", {"align": 2, "configs": [{**(BMM if op == "bmm" else MM), "pad": pad}]})
        found[name] = run(functions[op], SHAPES[op], path, getattr(torch, dtype), mode=mode)
    path = table("library", {"align": 2, "configs": [{**ATEN, "pad": 8}]})
    found["library"] = run(functions["linear"], SHAPES["linear"], path, torch.bfloat16)
    for kind, epilogue, n in (("light", "relu", 48), ("light", "relu", 51), ("heavy", "gelu", 48)):
        rows = [{"align": 2, "configs": [{**ATEN, "pad": 8}]}, {"align": 16, "epilogue": kind, "configs": [MM]}]
        shapes = [(2, 20, 77), (n, 77), (n,)]
        found[f"{epilogue} {n}"] = run(functions[epilogue], shapes, table("epilogue", *rows), torch.bfloat16)
    path = table("tma", {"op": "mm", "align": 2, "configs": [{**TMA, "pad": 8}]})
    found["tma"] = run(functions["mm"], SHAPES["mm"], path, torch.bfloat16)
    path = table("dynamic", {"op": "mm", "align": 2, "configs": [{**MM, "pad": 8}]})
    found["dynamic"] = run(functions["mm"], [(40, 77), (77, 51)], path, torch.bfloat16, dynamic=True)
    found["cache"] = caches(table, Path(directory))
    return found


class Tables:
    """Writes tables for this device."""

    def __init__(self, directory: Path) -> None:
        from diode_lut.hardware import detect_hardware

        self._directory, self._hardware = directory, {**detect_hardware("cuda")._asdict(), "aliases": []}

    def __call__(self, name: str, *entries: dict[str, Any]) -> str:
        path = self._directory / f"{name} {len(list(self._directory.iterdir()))}.json"
        header = {"schema_version": 2, "hardware": self._hardware, "provenance": {}}
        path.write_text(json.dumps({**header, "entries": entries}))
        return str(path)


def run(
    function: Callable[..., Any],
    shapes: Sequence[Sequence[int]],
    table: str,
    dtype: Any,
    mode: str = "default",
    dynamic: bool = False,
) -> dict[str, Any]:
    """What a function and its gradients become."""
    import torch
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.utils import run_and_get_code

    import diode_lut
    from diode_lut.hook.patches import should_pad

    torch._dynamo.reset()
    asked: list[str] = []

    def benchmark(*arguments: Any) -> bool:
        asked.append(str(arguments[3]))
        return False

    operands = [torch.randn(*shape, dtype=dtype) for shape in shapes]
    on_device = [operand.to("cuda").requires_grad_() for operand in operands]
    if dynamic:
        torch._dynamo.mark_dynamic(on_device[0], 0)
    with (
        diode_lut.config.patch(tables=(table,), tiers=("user",)),
        mock.patch.object(pad_mm, "_should_pad", partial(should_pad, benchmark)),
    ):
        found, code = run_and_get_code(_with_gradients, torch.compile(function, mode=mode), on_device)
    expected = _with_gradients(function, [operand.double().requires_grad_() for operand in operands])
    text = "\n".join(code)
    return {
        "error": max(
            float((each.cpu().double() - right).norm() / right.norm())
            for each, right in zip(found, expected, strict=True)
        ),
        "asked": asked,
        "templates": text.count("triton_heuristics.template("),
        "library": text.count("extern_kernels."),
        "padded": "constant_pad_nd" in text,
    }


def _with_gradients(function: Callable[..., Any], operands: Sequence[Any]) -> list[Any]:
    result = function(*operands)
    result.square().sum().backward()
    return [result.detach(), *(operand.grad for operand in operands)]


def caches(table: Tables, directory: Path) -> dict[str, list[list[Any]]]:
    """For either of Inductor's caches: whether it answers, and whether the graph pads, as rows and settings change."""
    import torch
    from torch._dynamo.utils import counters
    from torch._functorch import config as functorch_config
    from torch._inductor import config
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.utils import fresh_cache

    import diode_lut
    from diode_lut.hook.patches import should_pad

    padded = {**ATEN, "pad": 8}
    no, yes = (table("cache", {"align": 2, "configs": configs}) for configs in ([ATEN, padded], [padded]))
    steps: list[dict[str, Any]] = [{"tables": (no,)}, {"tables": (no,)}, {"tables": (yes,)}, {"tables": (yes,)}]
    steps += [{"tables": (yes,), "pad": False}, {"tables": (no,)}]
    found: dict[str, list[list[Any]]] = {}
    a, b = (torch.randn(*shape).bfloat16().to("cuda") for shape in SHAPES["mm"])
    for name in ("fxgraph_cache_hit", "autograd_cache_hit"):
        autograd = functorch_config.patch(enable_autograd_cache=name.startswith("autograd"))
        with fresh_cache(dir=str(directory)), autograd, config.patch(fx_graph_cache=True):
            for settings in steps:
                torch._dynamo.reset()
                counters.clear()
                calls: list[Any] = []
                with (
                    diode_lut.config.patch(tiers=("user",), **settings),
                    mock.patch.object(pad_mm, "_should_pad", partial(should_pad, lambda *_: False)),
                    mock.patch.object(
                        torch._inductor.runtime.triton_heuristics.CachingAutotuner, "run", _counting(calls)
                    ),
                ):
                    torch.compile(torch.mm)(a, b)
                hit = any(values[name] for values in counters.values())
                found.setdefault(name, []).append([hit, bool(calls)])
    return found


def _counting(calls: list[Any]) -> Callable[..., Any]:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    run = CachingAutotuner.run

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(self)
        return run(self, *args, **kwargs)

    return counted


if __name__ == "__main__":
    with interpreter_cuda():
        print(json.dumps(main(*sys.argv[1:])))
