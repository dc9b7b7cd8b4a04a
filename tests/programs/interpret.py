"""What the interpreter's device makes of some functions, as JSON; tests/interpreter/test_device.py reads it."""

from __future__ import annotations

import gc
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from tests.interpreter.device import interpreter_cuda, overruns

BLOCKS = {"block_m": 32, "block_n": 32, "block_k": 32, "group_m": 8, "num_stages": 3, "num_warps": 4}


def main() -> dict[str, Any]:
    """All that is found out in this process."""
    import torch

    found: dict[str, Any] = {
        "unwritten": bool(torch.empty(64, device="cuda").isnan().all()),
        "linear": {str(dtype): linear(dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32)},
        "templates": {name: template(name) for name in ("triton_mm", "triton_mm_persistent_tma", "triton_bmm")},
        "reductions": reductions(),
        "dynamic": dynamic(),
        "programs": {f"{epilogue} {op}": programs(epilogue, op) for epilogue, op in PROGRAMS},
    }
    found["overruns"] = [freed_overruns()]
    for name, change in WRONG.items():
        found[name] = wrong_kernel(*change)
        found["overruns"].append(freed_overruns())
    return found


def linear(dtype: Any) -> float:
    """The largest relative error of a linear layer with relu, its result and gradients."""
    import torch

    def layer(x: Any, weight: Any, bias: Any) -> Any:
        return torch.nn.functional.linear(x, weight, bias).relu()

    operands = [torch.randn(*size, dtype=dtype) for size in ((48, 72), (40, 72), (40,))]
    tangent = torch.randn(48, 40, dtype=dtype)
    return max(
        errors(
            _with_gradients(torch.compile(layer), [*operands, tangent], "cuda"),
            _with_gradients(layer, [each.double() for each in [*operands, tangent]], "cpu"),
        )
    )


def _with_gradients(function: Callable[..., Any], tensors: Sequence[Any], device: str) -> list[Any]:
    import torch

    *operands, tangent = [each.to(device) for each in tensors]
    operands = [each.requires_grad_() for each in operands]
    result = function(*operands)
    return [result, *torch.autograd.grad(result, operands, tangent)]


def errors(found: Sequence[Any], expected: Sequence[Any]) -> list[float]:
    """Of each tensor, its distance from what it should be over the length of that; infinite where there is NaN."""
    pairs = [(each.detach().cpu().double(), other) for each, other in zip(found, expected, strict=True)]
    distances = [float((each - other).norm() / other.norm()) for each, other in pairs]
    return [distance if distance == distance else float("inf") for distance in distances]


def template(name: str) -> list[Any]:
    """The error of a GEMM with a row's kernel, and whether such a kernel was run."""
    import torch
    from torch._inductor.utils import run_and_get_code

    import diode_lut
    from diode_lut.hardware import detect_hardware

    batch = (3,) if name == "triton_bmm" else ()
    a, b = torch.randn(*batch, 64, 48).bfloat16(), torch.randn(*batch, 48, 72).bfloat16()
    hardware = detect_hardware("cuda")
    table = {
        "schema_version": 2,
        "hardware": {"name": hardware.name, "arch": hardware.arch, "sm_count": hardware.sm_count},
        "entries": [{"configs": [{"template": name, **BLOCKS}]}],
    }
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.json"
        path.write_text(json.dumps(table), encoding="utf-8")
        with diode_lut.config.patch(tables=(str(path),), tiers=("user",)):
            compiled = torch.compile(lambda a, b: (a @ b).relu())
            result, codes = run_and_get_code(compiled, a.to("cuda"), b.to("cuda"))
    (error,) = errors([result], [(a.double() @ b.double()).relu()])
    return [error, "triton_heuristics.template(" in "".join(codes)]


PROGRAMS = [
    ("light", "mm"),
    ("medium", "mm"),
    ("heavy", "mm"),
    ("medium", "addmm"),
    ("heavy", "bmm"),
    ("light", "baddbmm"),
]
"""Each epilogue and each op."""


def programs(epilogue: str, op: str) -> dict[str, Any]:
    """Of a GEMM with an epilogue, as the collector measures it: the error and the number of kernels per config."""
    import torch

    from diode_lut.measure.gemm import make_operands, make_tensors, with_epilogue
    from diode_lut.measure.programs import Program
    from diode_lut.measure.stages import generate_program
    from diode_lut.problem import Problem
    from diode_lut.templates.config import ATEN, Config

    batch = 3 if op in ("bmm", "baddbmm") else 1
    problem = Problem.of(op, 64, 72, 48, b=batch, dtype="bfloat16", layout="nt", epilogue=epilogue)
    tensors = [*make_operands(problem, "cpu"), *make_tensors(problem, "cpu")]
    found = {}
    for config in (ATEN, Config("triton_bmm" if batch > 1 else "triton_mm", tuple(BLOCKS.values()))):
        code = generate_program(problem, torch.device("cuda", 0), config)
        program = Program(lambda code=code: code)
        program.compile()
        assert program.load() is None
        result = program.bind(problem, torch.empty(0))([each.to("cuda") for each in tensors])
        (error,) = errors([result], [with_epilogue(problem)(*(each.double() for each in tensors))])
        found[config.template] = [error, code.count("async_compile.triton(")]
    return found


def reductions() -> float:
    """The largest relative error of functions that go through reductions, libdevice and views."""
    import torch

    def function(x: Any) -> tuple[Any, ...]:
        normal = torch.nn.functional.layer_norm(torch.nn.functional.gelu(x), x.shape[-1:])
        return torch.softmax(x, -1), normal, torch.cat([x.amax(0), x.var(0)]).tanh(), x.prod(-1), x.t().cumsum(0)

    x = torch.randn(40, 70)
    return max(errors(torch.compile(function)(x.to("cuda")), function(x.double())))


def dynamic() -> float:
    """The largest relative error of one compiled function at several sizes."""
    import torch

    torch.manual_seed(0)  # a sum of terms that cancel has a large relative error
    compiled = torch.compile(lambda a, b: (a @ b).sum(-1), dynamic=True)
    pairs = [(torch.randn(rows, 33), torch.randn(33, 20)) for rows in (5, 64, 129)]
    return max(
        error
        for a, b in pairs
        for error in errors([compiled(a.to("cuda"), b.to("cuda"))], [(a.double() @ b.double()).sum(-1)])
    )


WRONG = {
    "digit": (r"tl\.full\(\[1\], 2\.0", "tl.full([1], 2.5"),
    "unwritten element": (r"(tl\.store\(.*), xmask\)", r"\1, xmask & (xindex != 3))"),
    "overrun": (r"(tl\.store\(.*), xmask\)", r"\1)"),
}
"""Mistakes in a kernel that doubles 50 numbers in blocks of 64: a pattern in its source, and what takes its place."""


def wrong_kernel(pattern: str, replacement: str) -> float:
    """The error of a function whose kernel has a mistake."""
    import torch
    from torch._inductor.async_compile import AsyncCompile

    right = AsyncCompile.triton

    def wrong(self: Any, name: str, source: str, **options: Any) -> Any:
        return right(self, name, re.sub(pattern, replacement, source), **options)

    torch._dynamo.reset()
    x = torch.randn(50)
    with mock.patch.object(AsyncCompile, "triton", wrong):
        result = torch.compile(lambda x: x * 2 + 1)(x.to("cuda"))
    (error,) = errors([result], [x.double() * 2 + 1])
    return error


def freed_overruns() -> int:
    """How many allocations were written beside, after all that is not needed is freed."""
    gc.collect()
    return overruns()


if __name__ == "__main__":
    with interpreter_cuda():
        print(json.dumps(main()))
