"""Generated GEMMs: what is computed, of which operands, and how."""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from tests.fake_cuda import Input
from tests.fuzzing.bounded import Precision
from tests.fuzzing.operands import Operand, Sizes, draw_operand

_SHORT = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65, 80, 96, 100, 127, 128, 129)
SIZES = (*_SHORT, 200, 216, 256, 257, 384, 512)
LONG = (1000, 1024, 2048, 4096, 4100, 16384)
BATCHES = (1, 2, 3, 4, 7, 16, 33)
MANY = (65535, 65536, 70001)  # a batch around the limit of a launch grid's second dimension
HUGE = 2**31 + 2**20  # elements, so that 32 bits do not number them: only for devices that are not there

OPS: dict[str, tuple[str, ...]] = {
    "mm": ("mk", "kn"),
    "addmm": ("bias", "mk", "kn"),
    "bmm": ("bmk", "bkn"),
    "baddbmm": ("bias", "bmk", "bkn"),
    "linear": ("mk", "nk"),
    "linear with bias": ("mk", "nk", "n"),
    "linear of a batch": ("bmk", "nk", "n"),
    "matmul": ("bmk", "kn"),
    "chain": ("mk", "kn", "nk"),
    "sum of two": ("mk", "kn", "mk", "kn"),
    "int_mm": ("mk", "kn"),
}
"""The operations, with the dimensions of their operands."""

BIASES = {"addmm": ("n", "mn", "1n", "m1", "1", "11"), "baddbmm": ("bmn", "1mn", "mn", "b1n", "n", "1")}
BATCHED = ("bmm", "baddbmm", "linear of a batch", "matmul")
EPILOGUES = ("relu", "gelu", "double", "to float32", "to float16", "transposed", "sum", "add row", "add all")


class Gemm(NamedTuple):
    """A function of some operands. ``dynamic`` names the dimensions that change to those of ``again``."""

    op: str
    dtype: torch.dtype
    sizes: Sizes
    operands: tuple[Operand, ...]
    epilogue: tuple[str, ...] = ()
    alpha: float = 1
    beta: float = 1
    out_dtype: torch.dtype | None = None
    precision: Precision = Precision()
    dynamic: str = ""
    again: Sizes | None = None

    def inputs(self, sizes: Sizes) -> list[Input]:
        """What the function is given."""
        return [operand.input(sizes, self.dtype, self.dynamic) for operand in self.operands]

    def compute(self, *tensors: Any) -> Any:
        """The function, without autocast; of tensors or of anything that behaves so."""
        prepared = [each.prepared(tensor, self.dtype) for each, tensor in zip(self.operands, tensors, strict=True)]
        count = len(OPS[self.op])
        result = self._gemm(*prepared[:count])
        extra = iter(prepared[count:])
        for step in self.epilogue:
            result = result + next(extra) if step.startswith("add") else _applied(step, result)
        return result

    def function(self, device: str) -> Callable[..., Any]:
        """The function as it is compiled for a type of device."""
        if self.precision.autocast is None:
            return self.compute

        def with_autocast(*tensors: Any) -> Any:
            with torch.autocast(device, self.precision.autocast):
                return self.compute(*tensors)

        return with_autocast

    def _gemm(self, *operands: Any) -> Any:
        if self.op in ("addmm", "baddbmm"):
            return getattr(torch, self.op)(*operands, alpha=self.alpha, beta=self.beta)
        if self.op.startswith("linear"):
            return functional.linear(*operands)
        if self.op == "chain":
            x, first, second = operands
            return torch.mm(torch.mm(x, first).relu(), second)
        if self.op == "int_mm":
            return torch._int_mm(*operands)
        if self.op == "sum of two":
            a, b, c, d = operands
            return torch.mm(a, b) + torch.mm(c, d)
        if self.out_dtype is not None:
            return getattr(torch, self.op)(*operands, out_dtype=self.out_dtype)
        return getattr(torch, self.op)(*operands)


def _applied(step: str, result: Any) -> Any:
    if step == "relu":
        return result.relu()
    if step == "gelu":
        return functional.gelu(result)
    if step == "double":
        return result * 2.0
    if step == "transposed":
        return result.transpose(-1, -2)
    if step == "sum":
        return result.sum(-1)
    return result.to(torch.float32 if step == "to float32" else torch.float16)


def draw_gemm(random: Random) -> Gemm:
    """A GEMM of any kind, mostly one that tables have rows for."""
    gemm = _draw_wide(random)
    return _in_int8(random, gemm) if gemm.op == "mm" and random.random() < 0.4 else gemm


_INTEGERS = ((), ("relu",), ("transposed",), ("to float32", "double"), ("relu", "to float32"), ("to float32", "gelu"))
"""What may follow a matmul of integers: a GEMM's other epilogues round, or do not take them."""


def _in_int8(random: Random, gemm: Gemm) -> Gemm:
    """An mm as a matmul of int8, of sizes that the library takes on a GPU; of these only M changes."""

    def usual(sizes: Sizes) -> Sizes:
        return {**sizes, **{dim: -(-sizes[dim] // 8) * 8 for dim in "nk"}, "m": sizes["m"] and max(sizes["m"], 17)}

    sizes, dynamic = usual(gemm.sizes), "m" if "m" in gemm.dynamic else ""
    again = usual({**gemm.sizes, "m": gemm.again["m"]}) if dynamic and gemm.again is not None else None
    cast = (each._replace(before="nothing") if each.before == "cast" else each for each in gemm.operands[:2])
    return Gemm("int_mm", torch.int8, sizes, tuple(cast), random.choice(_INTEGERS), dynamic=dynamic, again=again)


def _draw_wide(random: Random) -> Gemm:
    op = random.choice([op for op in OPS if op != "int_mm"])
    dims = [random.choice(BIASES[op]) if dims == "bias" else dims for dims in OPS[op]]
    sizes = _draw_sizes(random, op)
    steps = random.sample(EPILOGUES[:7], random.choice([0, 0, 1, 2]))
    epilogue = tuple(sorted(steps, key=lambda step: step == "sum"))  # last, because it takes a dimension away
    if random.random() < 0.3:
        epilogue = (random.choice(EPILOGUES[7:]), *epilogue)
        out = "mk" if op == "chain" else "bmn" if op in BATCHED else "mn"
        dims.append(out[-1] if epilogue[0] == "add row" else out)
    scaled = op in BIASES and random.random() < 0.4
    dynamic = (
        "".join(dim for dim in "bmnk" if sizes[dim] > 1 and random.random() < 0.5) if random.random() < 0.3 else ""
    )
    dtype = random.choice([torch.float16, torch.bfloat16, torch.bfloat16, torch.float32])
    return Gemm(
        op=op,
        dtype=dtype,
        sizes=sizes,
        operands=tuple(draw_operand(random, each) for each in dims),
        epilogue=epilogue,
        alpha=random.choice([1, 0, 0.5, -2]) if scaled else 1,
        beta=random.choice([1, 0, 0.25, -1]) if scaled else 1,
        out_dtype=torch.float32 if op in ("mm", "bmm") and random.random() < 0.08 else None,
        precision=_draw_precision(random, dtype),
        dynamic=dynamic,
        again={**sizes, **{dim: random.choice(SIZES[1:19]) for dim in dynamic}} if dynamic else None,
    )


def _draw_sizes(random: Random, op: str) -> Sizes:
    """Small ones; now and then one that is long, or 0, or more than 32 bits can number."""
    sizes = {"1": 1, "b": random.choice(BATCHES), **{dim: random.choice(SIZES) for dim in "mnk"}}
    kind = random.random()
    if kind < 0.12:
        sizes[random.choice("mnk")] = random.choice(LONG)
    elif kind < 0.15:
        sizes[random.choice("bmnk")] = 0
    elif kind < 0.18 and op in BATCHED:
        sizes = {"1": 1, "b": random.choice(MANY), **{dim: random.choice(SIZES[:7]) for dim in "mnk"}}
    elif kind < 0.19:
        sizes["m"] = HUGE // max(sizes["k"], 1)
    return sizes


def _draw_dynamic(random: Random, sizes: Sizes) -> str:
    return "".join(dim for dim in "bmnk" if sizes[dim] > 1 and random.random() < 0.5)


def _draw_precision(random: Random, dtype: torch.dtype) -> Precision:
    if dtype != torch.float32:
        return Precision()
    kind = random.random()
    if kind < 0.2:
        return Precision(autocast=random.choice([torch.float16, torch.bfloat16]))
    return Precision(tf32=kind < 0.5)
