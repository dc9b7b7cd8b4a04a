"""Generated attention with rows for its kernels, and what becomes of it on the device of ``fake_cuda``."""

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from diode_lut.problem import ATTENTION, VARIANTS
from diode_lut.templates.config import TEMPLATES, Config
from diode_lut.templates.template import Heads
from tests.attention import Attention, causal, soft_cap, window
from tests.attention import plain as plain_score
from tests.fuzzing.cases import TableCase
from tests.fuzzing.op_check import lowered_op
from tests.fuzzing.outcome import Outcome
from tests.fuzzing.rows import Row, draw_op_row

_TEMPLATES = {op: template.name for op in ATTENTION for template in TEMPLATES.values() if template.ops == (op,)}
_BACKWARD = "flex_attention_backward"
_SMALL_LENGTHS = (1, 16, 100, 127, 128, 129)
_UNROLLED = 6144
"""Multiplications in a step of a thread that are allowed in float32, which has no tensor cores.

Triton writes out each of them: 4,096 compile in 7 s, 16,384 in a minute, 32,768 in four.
"""
_OPTIONS: tuple[dict[str, Any], ...] = (
    {"BLOCK_M": 32, "BLOCK_N": 32},
    {"num_warps": 8},
    {"bwd_num_stages": 1},
    {"fwd_BLOCK_N": 16},
    {"PRESCALE_QK": True},
    {"FORCE_USE_FLEX_ATTENTION": True},
)


@dataclass(frozen=True, kw_only=True)
class AttentionCase(TableCase):
    """Attention, or its gradients, with kernel options of the user."""

    attention: Attention
    backward: bool
    options: dict[str, Any]

    @property
    def tf32(self) -> bool:
        return False

    @property
    def op(self) -> str:
        """The op that it is likely to be."""
        return _BACKWARD if self.backward else self._forward_op

    @property
    def tunables(self) -> tuple[str, ...]:
        return _tunables(self.op)

    @property
    def other_tunables(self) -> tuple[tuple[str, ...], ...]:
        """Gradients that are run come with the result."""
        return (_tunables(self._forward_op),) if self.backward else ()

    @property
    def _forward_op(self) -> str:
        short = self.attention.m < 128 and not self.options.get("FORCE_USE_FLEX_ATTENTION")
        return "flex_decoding" if short else "flex_attention"

    @property
    def names_kernels(self) -> bool:
        """Inductor's own kernels are templates as well."""
        return False

    def __str__(self) -> str:
        how = f"{'gradients ' if self.backward else ''}{self.mode} {self.settings} {self.options}"
        return f"seed {self.seed} attention {self.number}: {self.attention} {how} {json.dumps(self.rows)}"


def _tunables(op: str) -> tuple[str, ...]:
    return tuple(name for name in TEMPLATES[_TEMPLATES[op]].names if name != "num_warps")


def draw_attention_case(seed: int, number: int, *, small: bool = False) -> AttentionCase:
    """Attention ``number`` of a seed; a small one is soon interpreted."""
    random = Random(f"attention {seed}/{number}")
    backward = random.random() < 0.25
    attention = _draw_attention(random, backward=backward, small=small)
    return AttentionCase(
        seed=seed,
        number=number,
        attention=attention,
        backward=backward,
        options=random.choice(_OPTIONS) if random.random() < 0.2 else {},
        rows=[_draw_row(random, attention) for _ in range(random.choice([2, 3, 5]))],
        mode="default",
        settings={},
    )


def _draw_attention(random: Random, *, backward: bool, small: bool) -> Attention:
    k = random.choice([16, 24, 64, 64, 80, 128, 192, 256])
    m, n = (random.choice(_SMALL_LENGTHS if small else (*_SMALL_LENGTHS, 256, 512, 1000)) for _ in "mn")
    g = random.choice([1, 1, 2, 3, 4])
    plain = backward or random.random() < 0.7
    attention = Attention(
        b=random.choice([1, 1] if small else [1, 2]),
        h=g * random.choice([1, 2]),
        g=g,
        m=m,
        n=n,
        k=k,
        v=k if backward or random.random() < 0.7 else random.choice([16, 64, 128]),
        dtype=random.choice([torch.bfloat16, torch.float16, torch.float32]),
        mask=random.choice([None, causal, window]),
        score=plain_score if plain else soft_cap,
        documents=random.random() < 0.2,
        bias=not plain and random.random() < 0.5,
        block=random.choice([32, 64, 128, 128, 192, 256]),
        dynamic=not backward and random.random() < 0.1,
    )
    if small or attention.dtype != torch.float32 or m >= 128:
        return attention
    # Triton needs two minutes for Inductor's own kernel with 128 queries in a block.
    return attention._replace(m=min(m, 16), g=1, k=min(k, 64), v=min(attention.v, 64))


def _draw_row(random: Random, attention: Attention) -> Row:
    op = random.choice(ATTENTION)
    row: Row = {"op": op}
    if random.random() < 0.3:
        row["variant"] = random.choice(VARIANTS[op])
    return draw_op_row(
        random, row, {name: getattr(attention, name) for name in "bmnkhgv"}, lambda: _draw_config(random, op, attention)
    )


def _draw_config(random: Random, op: str, attention: Attention) -> dict[str, Any]:
    if random.random() < 0.05:
        return {"template": "default"}
    template = TEMPLATES[_TEMPLATES[op] if random.random() < 0.97 else random.choice(list(_TEMPLATES.values()))]
    values = {each.name: random.choice(list(each.values)) for each in template.parameters}
    values["num_stages"] = random.choice([1, 2, 3, 4])
    if attention.dtype == torch.float32 and _unrolled(values, attention) > _UNROLLED:
        return _draw_config(random, op, attention)
    return Config.make(template.name, values).to_json()


def _unrolled(values: dict[str, int], attention: Attention) -> int:
    """Multiplications of a thread in a step of a kernel's loop; gradients have two loops of five products."""
    heads = Heads.of(attention.k, attention.v, min(attention.m * attention.g, 256))  # as decoding has them
    area = values.get("block_m", heads.rows) * values.get("block_n", 0)
    for m, n in (("block_m1", "block_n1"), ("block_m2", "block_n2")):
        area += values.get(m, 0) * values.get(n, 0) * 5 // 2
    return area * (heads.k + heads.v) // (32 * values["num_warps"])


def lowered_attention(case: AttentionCase, directory: Path, *, compiling: bool) -> Outcome:
    """The outcome down to code or, if ``compiling``, to what Triton makes of it."""
    return lowered_op(
        case, directory, lambda: case.attention.lowered(backward=case.backward, **case.options), compiling=compiling
    )
