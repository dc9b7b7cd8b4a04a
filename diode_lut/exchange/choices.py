"""Inductor's choices and their inputs, by the names that its cache and its log share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from diode_lut.dataset import Timing
from diode_lut.domain.errors import ProblemError
from diode_lut.domain.operands import Operand, problem_of
from diode_lut.domain.ops import MATMULS
from diode_lut.domain.problem import Problem
from diode_lut.inductor.names import KWARGS, TEMPLATE_OF_UID, TEMPLATES_OF_CHOICES, UIDS
from diode_lut.kernels.config import ATEN, Config

PACKED = "packed_linear"
"""On a CPU, an mm with a frozen weight: the inputs are A, the weight as MKL packs it, and the weight with N rows."""

_MKL_LINEAR = "_mkl_linear"
"""The library's kernel for it."""

_ARGUMENT = re.compile(r"'?\b(\w+)'?[:=] ?(\d+)")
"""An argument of a template or of Triton's compiler: ``'BLOCK_M': 64`` or ``num_warps=4``."""


def problem_of_inputs(op: str, dtypes: Sequence[str], inputs: Sequence[Operand]) -> Problem:
    """The problem of all inputs of a choice, of which A and B are the last two; ProblemError if it is none."""
    if op not in (*MATMULS, PACKED):
        raise ProblemError(f"op {op}")
    if not 2 <= len(inputs) == len(dtypes):
        raise ProblemError(f"{op} of {len(inputs)} inputs")
    first = 0 if op == PACKED else -2
    a, b, mixed = inputs[first], inputs[-1], {dtypes[first], dtypes[-1]}
    if len(mixed) > 1:
        raise ProblemError(f"a mix of {' and '.join(sorted(mixed))}")
    if op == PACKED:
        op, b = "mm", Operand(b.sizes[::-1], b.strides[::-1], b.offset)
    return problem_of(op, dtypes[-1], a, b)


def triton_config(op: str, name: str, arguments: str) -> Config:
    """The config of a Triton template, from all its arguments; ProblemError if tables have none."""
    template = TEMPLATE_OF_UID.get(f"triton::{name}")
    if template is None or op not in UIDS[template]:
        raise ProblemError(f"template {name}")
    values = {name: int(value) for name, value in _ARGUMENT.findall(arguments)}
    return Config.from_json({"template": template, **{name: values.get(kw) for name, kw in KWARGS[template].items()}})


def other_config(op: str, name: str) -> Config:
    """The config of any other choice; ProblemError if tables have none."""
    for template, beginning in TEMPLATES_OF_CHOICES.items():
        if found := beginning.match(name):
            tunables = {tunable: int(value) for tunable, value in found.groupdict().items()}
            return Config.from_json({"template": template, **tunables})
    name = name.partition("-")[0]
    if (op == PACKED and name == _MKL_LINEAR) or f"aten::{name}" in UIDS[ATEN.template].get(op, ()):
        return ATEN
    raise ProblemError(f"kernel {name}")


def best_times(timings: Iterable[Timing]) -> tuple[Timing, ...]:
    """The best time of each config: the library may have two ways of adding a bias."""
    best: dict[Config, Timing] = {}
    for timing in timings:
        best[timing.config] = min(best.get(timing.config, timing), timing, key=lambda each: each.ns or math.inf)
    return tuple(best.values())
