"""Generated grouped matmuls with rows for them, and what becomes of them on the device of ``fake_cuda``."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from diode_lut.templates.config import TEMPLATES, Config
from tests.fake_cuda import Input, lower
from tests.fuzzing.cases import TableCase
from tests.fuzzing.op_check import lowered_op
from tests.fuzzing.outcome import Outcome
from tests.fuzzing.rows import Row, draw_op_row

_TEMPLATE = "triton_grouped_mm"
_SMALL_GROUPS = (1, 2, 4, 8)
_SMALL_ROWS = (1, 7, 64, 100)
_SMALL_EIGHTHS = (1, 2, 3, 9)


def _relu(result: torch.Tensor) -> torch.Tensor:
    return result.relu()


def _gate(result: torch.Tensor) -> torch.Tensor:
    gate, up = result.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def _sum(result: torch.Tensor) -> torch.Tensor:
    return result.float().sum(-1)


FOLLOWING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nothing": lambda result: result,
    "relu": _relu,
    "gate": _gate,
    "sum": _sum,
}


@dataclass(frozen=True, kw_only=True)
class GroupedCase(TableCase):
    """A grouped matmul, with the rows of a slice or gaps between them, and what comes before and follows."""

    inputs: tuple[Input, Input, Input]
    before: bool
    following: str

    @property
    def tf32(self) -> bool:
        return False

    @property
    def tunables(self) -> tuple[str, ...]:
        return tuple(name for name in TEMPLATES[_TEMPLATE].names if name != "num_warps")

    def compute(self, a: Any, b: Any, ends: Any) -> Any:
        """What is compiled."""
        return FOLLOWING[self.following](torch._grouped_mm(a * 2 if self.before else a, b, ends))

    def __str__(self) -> str:
        how = f"{self.mode} {self.settings} {'product, ' if self.before else ''}{self.following}"
        return f"seed {self.seed} grouped {self.number}: {self.inputs} {how} {json.dumps(self.rows)}"


def draw_grouped_case(seed: int, number: int, *, small: bool = False) -> GroupedCase:
    """Grouped matmul ``number`` of a seed; a small one is soon interpreted."""
    random = Random(f"grouped {seed}/{number}")
    g = random.choice(_SMALL_GROUPS if small else (*_SMALL_GROUPS, 64))
    m = random.choice(_SMALL_ROWS if small else (*_SMALL_ROWS, 1024))
    n, k = (8 * random.choice(_SMALL_EIGHTHS if small else (*_SMALL_EIGHTHS, 32, 128, 176)) for _ in "nk")
    return GroupedCase(
        seed=seed,
        number=number,
        inputs=_draw_inputs(random, g, m, n, k),
        before=random.random() < 0.2,
        following=random.choice(list(FOLLOWING)),
        rows=[_draw_row(random, {"b": g, "m": m, "n": n, "k": k}) for _ in range(random.choice([1, 2, 3]))],
        mode=random.choices(["default", "max-autotune-no-cudagraphs"], [8, 1])[0],
        settings={"fallback_to_autotune": False},
    )


def _draw_inputs(random: Random, g: int, m: int, n: int, k: int) -> tuple[Input, Input, Input]:
    gap = random.choice([0, 0, 0, 8])
    offset = random.choice([0, 0, 0, 0, 8, 4])
    transposed = random.random() < 0.7
    lines, length = (n, k + gap) if transposed else (k, n + gap)
    strides = (1, length) if transposed else (length, 1)
    return (
        Input((m, k), stride=(k + gap, 1), offset=offset, dynamic=(0,) if m > 1 and random.random() < 0.1 else ()),
        Input((g, k, n), stride=(0 if random.random() < 0.05 else lines * length, *strides)),
        Input((g,), torch.int32),
    )


def _draw_row(random: Random, sizes: dict[str, int]) -> Row:
    row: Row = {"op": "grouped_mm"}
    if random.random() < 0.3:
        row["layout"] = random.choice(["nt", "nn"])
    return draw_op_row(random, row, sizes, lambda: _draw_config(random))


def _draw_config(random: Random) -> dict[str, Any]:
    if random.random() < 0.05:
        return {"template": "aten"}
    values = {each.name: random.choice(list(each.values)) for each in TEMPLATES[_TEMPLATE].parameters}
    values["num_stages"] = random.choice([1, 2, 3, 4, 6])
    return Config.make(_TEMPLATE, values).to_json()


def lowered_grouped(case: GroupedCase, directory: Path, *, compiling: bool) -> Outcome:
    """The outcome down to code or, if ``compiling``, to what Triton makes of it."""
    return lowered_op(
        case, directory, lambda: lower(lambda a, b, ends: case.compute(a, b, ends), *case.inputs), compiling=compiling
    )
