"""Generated pointwise work and reductions with rows for their kernels, and what becomes of them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from random import Random
from typing import Any

import torch

from diode_lut.problem import GENERATED, VARIANTS, Problem
from diode_lut.templates.config import TEMPLATES, Config
from diode_lut.templates.generated import least_step
from tests.fake_cuda import Input, lower
from tests.fuzzing.cases import TableCase
from tests.fuzzing.op_check import executed_op, lowered_op
from tests.fuzzing.operands import filled
from tests.fuzzing.outcome import Outcome, configs_of
from tests.fuzzing.rows import SM_90, Row, draw_op_row
from tests.fuzzing.runs import EAGER_ERRORS, Run

_SIZES = (1, 1, 2, 3, 7, 16, 17, 32, 33, 64, 100, 129)
_TYPES = (torch.float32, torch.float32, torch.float16, torch.bfloat16)
_MOST_ELEMENTS = 2**14

BEFORE: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda x: x,
    "scale": lambda x: x * 1.5 + 0.25,
    "gelu": torch.nn.functional.gelu,
    "transpose": lambda x: x.transpose(-1, -2) + 1,
    "slice": lambda x: x[..., ::2] * 2,
    "broadcast": lambda x: x + x.narrow(-1, 0, 1),
    "row": lambda x: x * x.narrow(0, 0, 1).sigmoid(),
    "flip": lambda x: x.flip(-1).tanh(),
    "tril": lambda x: x.tril(),
}
"""Pointwise work and views, which keep the number of dimensions."""

REDUCTIONS: dict[str, Callable[[Any, int], Any]] = {
    "none": lambda x, _: x.sigmoid(),
    "sum": lambda x, dim: x.sum(dim),
    "mean": lambda x, dim: x.mean(dim, keepdim=True),
    "all": lambda x, _: x.sum().reshape(1),
    "softmax": lambda x, dim: x.softmax(dim),
    "log_softmax": lambda x, dim: x.log_softmax(dim),
    "rms": lambda x, dim: x * (x.pow(2).mean(dim, keepdim=True) + 1e-3).rsqrt(),
    "norm": lambda x, _: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "var": lambda x, dim: x.var(dim, correction=0),
    "amax": lambda x, dim: x.amax(dim),
    "argmax": lambda x, dim: x.argmax(dim),
    "any": lambda x, dim: (x > 1).any(dim),
    "count": lambda x, dim: (x > 0).to(torch.int64).sum(dim),
    "cumsum": lambda x, dim: x.cumsum(dim),
    "logsumexp": lambda x, dim: x.logsumexp(dim),
    "two": lambda x, _: x.sum(0).sum() + x.amax(-1),
    "gather": lambda x, dim: x.index_select(dim, torch.arange(x.shape[dim] - 1, -1, -1, device=x.device)) + 1,
}
"""Reductions and other work along a dimension."""


@dataclass(frozen=True, kw_only=True)
class GeneratedCase(TableCase):
    """A tensor, the work before a reduction, and the reduction along a dimension."""

    input: Input
    before: tuple[str, ...]
    reduction: str
    dim: int

    @property
    def tf32(self) -> bool:
        return False

    @property
    def steps(self) -> float:
        """How many numbers a kernel of the rows may add up one after the other. The error grows with its root."""
        r = torch.Size(self.input.shape).numel()
        steps = [config.get("block_r") for row in self.rows for config in configs_of(row)]
        return r / max(min((step for step in steps if type(step) is int), default=r), least_step("", r))

    def has_kernel(self, code: str) -> bool:
        return "@triton_heuristics.fixed_config(" in code

    def compute(self, x: Any) -> list[Any]:
        """What is compiled."""
        for name in self.before:
            x = BEFORE[name](x)
        return [REDUCTIONS[self.reduction](x, self.dim)]

    def __str__(self) -> str:
        what = f"{self.input} {self.before} {self.reduction} along {self.dim}"
        return f"seed {self.seed} generated {self.number}: {what} {self.settings} {json.dumps(self.rows)}"


def draw_generated_case(seed: int, number: int, *, small: bool = False) -> GeneratedCase:
    """Graph ``number`` of a seed; a small one is soon interpreted."""
    random = Random(f"generated {seed}/{number}")
    most = _MOST_ELEMENTS if small else _MOST_ELEMENTS * 64
    shape = [1]
    while len(shape) < 2 or torch.Size(shape).numel() > most:
        sizes = _SIZES if small else (*_SIZES, 512, 1000, 4097)
        shape = [random.choice(sizes) for _ in range(random.choice([2, 2, 3]))]
    gap, offset = random.choice([0, 0, 0, 1, 16]), random.choice([0, 0, 4])
    stride = [1]
    for size in reversed(shape[1:]):
        stride.insert(0, stride[0] * size + (gap if len(stride) == 1 else 0))
    changing = tuple(place for place, size in enumerate(shape) if size > 1 and random.random() < 0.05)
    return GeneratedCase(
        seed=seed,
        number=number,
        input=Input(tuple(shape), random.choice(_TYPES), tuple(stride), offset, changing),
        before=tuple(random.sample(list(BEFORE), random.choice([0, 1, 2]))),
        reduction=random.choice(list(REDUCTIONS)),
        dim=random.choice([0, -1, -1]),
        rows=[_draw_row(random, op) for op in GENERATED for _ in range(random.choice([2, 3]))],
        mode="default",
        settings={"tiers": ("user",)},
    )


def _draw_row(random: Random, op: str) -> Row:
    row: Row = {"op": op}
    if random.random() < 0.2:
        row["variant"] = random.choice(VARIANTS[op])
    sizes = {name: random.choice(_SIZES) for name in ("x", "y" if op == "pointwise" else "r")}
    return draw_op_row(random, row, sizes, lambda: _draw_config(random, op))


def _draw_config(random: Random, op: str) -> Row:
    """A config with any values that the table's format allows. Nearly all can run a kernel with a short r."""
    template = random.choice([name for name, each in TEMPLATES.items() if op in each.ops and name != "default"])
    kernel, short = TEMPLATES[template], Problem(op, "", "", 16, 1, 1, 1, 1, r=128)
    while True:
        drawn = {each.name: random.choice(each.values) for each in kernel.parameters}
        if template == "pointwise" and random.random() < 0.5:
            drawn["block_y"] = 0
        config = Config.from_json({"template": template, **{name: value for name, value in drawn.items() if value}})
        if kernel.suits(config.params, short, SM_90) or random.random() < 0.02:
            return config.to_json()


def lowered_generated(case: GeneratedCase, directory: Path, *, compiling: bool) -> Outcome:
    """The outcome down to code; Triton compiles no template of it."""
    return lowered_op(case, directory, lambda: lower(lambda x: case.compute(x), case.input), compiling=compiling)


def executed_generated(case: GeneratedCase, device: str, directory: Path) -> Outcome:
    """The outcome of compiling it and running it, compared with float64."""

    def run() -> Run:
        tensor = filled(case.input, device, 1.0)
        for dimension in case.input.dynamic:
            torch._dynamo.maybe_mark_dynamic(tensor, dimension)
        errors = EAGER_ERRORS * sqrt(case.steps)
        return Run.of([tensor], case.compute, case.compute, backward=False, errors=errors)

    return executed_op(case, device, directory, case.compute, run, backward=False)
