"""Generated matmuls of float8 with rows for them, and what becomes of them on the device of ``fake_cuda``."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from diode_lut.hook.joined import join
from diode_lut.problem import VARIANTS, Scaling
from diode_lut.templates.config import TEMPLATES
from tests.fake_cuda import Input, lower
from tests.fuzzing.cases import TableCase
from tests.fuzzing.op_check import lowered_op
from tests.fuzzing.outcome import Outcome
from tests.fuzzing.rows import Row, draw_op_row, likely_config

_TEMPLATES = ("triton_mm", "triton_mm_persistent_tma")
_JOINED = "triton_joined_mm"
_SMALL_ROWS = (1, 7, 32, 64, 100)
_SMALL_SIXTEENTHS = (1, 2, 3, 5, 9)

FOLLOWING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nothing": lambda result: result,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "to float32": lambda result: result.float(),
}
"""What does not make an error of the result larger, or by a third at most."""


@dataclass(frozen=True, kw_only=True)
class ScaledCase(TableCase):
    """A matmul of float8 with its scales, also with rows of a slice, gaps between them or a bias, and what follows.

    With a ``sibling``, the first half of the columns is multiplied again, which a row may join.
    """

    inputs: tuple[Input, ...]
    scaling: Scaling
    following: str
    sibling: bool

    @property
    def tf32(self) -> bool:
        return False

    def compute(self, a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None) -> list[Any]:
        """What is compiled."""
        settings = {"out_dtype": getattr(torch, self.scaling.result), "use_fast_accum": self.scaling.fast}
        products = [torch._scaled_mm(a, b, scale_a, scale_b, bias=bias, **settings)]
        if self.sibling:
            half = b.shape[1] // 2
            scale = scale_b[:, :half] if self.scaling.per == "row" else scale_b
            products.append(torch._scaled_mm(a, b[:, :half], scale_a, scale, **settings))
        return [FOLLOWING[self.following](each) for each in products]

    def __str__(self) -> str:
        how = f"{self.mode} {self.settings} {self.scaling} {self.following}{' sibling' * self.sibling}"
        return f"seed {self.seed} scaled {self.number}: {self.inputs} {how} {json.dumps(self.rows)}"


def draw_scaled_case(seed: int, number: int, *, small: bool = False) -> ScaledCase:
    """Matmul ``number`` of a seed; a small one is soon interpreted."""
    random = Random(f"scaled {seed}/{number}")
    scaling = Scaling.of(random.choice(VARIANTS["scaled_mm"]))
    m = random.choice(_SMALL_ROWS if small else (*_SMALL_ROWS, 512, 1024))
    sixteenths = _SMALL_SIXTEENTHS if small else (*_SMALL_SIXTEENTHS, 32, 65, 128)
    n, k = 16 * random.choice(sixteenths), 16 * random.choice((*sixteenths[1:] * 3, 1))
    sibling = not scaling.bias and n % 32 == 0 and random.random() < 0.7
    rows = [_draw_row(random, scaling, {"m": m, "n": n, "k": k}) for _ in range(random.choice([1, 2, 3]))]
    if sibling and random.random() < 0.8:
        tiles = {name: likely_config(random, "triton_mm").to_json()[name] for name in TEMPLATES[_JOINED].names}
        rows.append({"op": "joined_mm", "configs": [{**tiles, "template": _JOINED}]})
    return ScaledCase(
        seed=seed,
        number=number,
        inputs=_draw_inputs(random, scaling, m, n, k),
        scaling=scaling,
        following=random.choice(list(FOLLOWING)),
        sibling=sibling,
        rows=rows,
        mode=random.choices(["default", "max-autotune-no-cudagraphs"], [8, 1])[0],
        settings={"fallback_to_autotune": False},
    )


def _draw_inputs(random: Random, scaling: Scaling, m: int, n: int, k: int) -> tuple[Input, ...]:
    first, second = random.choice([("e4m3fn", "e4m3fn")] * 8 + [("e5m2", "e4m3fn"), ("e4m3fn", "e5m2")])
    gap, offset = random.choice([0, 0, 0, 16]), random.choice([0, 0, 0, 0, 16, 4])
    changing = (0,) if m > 1 and random.random() < 0.1 else ()
    scales = [Input((m, 1), torch.float32, (1, 1), dynamic=changing), Input((1, n), torch.float32, (n, 1))]
    if scaling.per == "tensor":
        scales = [Input((), torch.float32, ())] * 2
    bias = [Input((n,), getattr(torch, scaling.result), (1,))] if scaling.bias else []
    return (
        Input((m, k), getattr(torch, f"float8_{first}"), (k + gap, 1), offset, changing),
        Input((k, n), getattr(torch, f"float8_{second}"), (1, k)),
        *scales,
        *bias,
    )


def _draw_row(random: Random, scaling: Scaling, sizes: dict[str, int]) -> Row:
    row: Row = {"op": "scaled_mm"}
    if random.random() < 0.2:
        row["variant"] = random.choice([str(scaling), str(scaling), *VARIANTS["scaled_mm"]])
    return draw_op_row(random, row, sizes, lambda: _draw_config(random))


def _draw_config(random: Random) -> Row:
    if random.random() < 0.05:
        return {"template": "aten"}
    config = likely_config(random, random.choice(_TEMPLATES))
    while not 32 <= config.tiles.block_k <= 128 and random.random() < 0.9:  # with others, nearly none multiplies float8
        config = likely_config(random, config.template)
    return config.to_json()


def lowered_scaled(case: ScaledCase, directory: Path, *, compiling: bool) -> Outcome:
    """The outcome down to code or, if ``compiling``, to what Triton makes of it."""
    return lowered_op(
        case,
        directory,
        lambda: lower(lambda *tensors: case.compute(*tensors), *case.inputs, then=join),
        compiling=compiling,
    )
