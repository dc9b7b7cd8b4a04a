"""Generated rows of tables: such as a build writes, such as nothing can run, and such as no hand should have typed."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

from diode_lut.kernels.architecture import architecture
from diode_lut.kernels.config import Config
from diode_lut.kernels.registry import TEMPLATES
from diode_lut.kernels.triton_gemm import TritonGemm, accumulator_registers
from diode_lut.problem import ALIGNS, DTYPES, LAYOUTS, OPS
from tests.fuzzing.products import BATCHED, Product

Row = dict[str, Any]

SM_90 = architecture("sm_90")
_TEMPLATES = ("triton_mm", "triton_mm_persistent_tma", "decompose_k")
_OPS = {
    "linear": ("mm", "addmm"),
    "linear with bias": ("addmm", "mm"),
    "linear of a batch": ("addmm", "mm"),
    "matmul": ("mm", "bmm"),
    "chain": ("mm",),
    "sum of two": ("mm", "addmm"),
}
"""What an operation becomes on its way to Inductor."""

_WRONG_VALUES = (None, True, -1, 0, 1.5, "", "mm", "64", [], [64], [9, 3], {}, 2**31, 2**70, 48, "triton_mn", [1, "8"])


def draw_rows(random: Random, product: Product) -> list[Row]:
    """Rows of one table for a product: one of them is likely to cover it with something that can run."""
    rows = [_row(random, product) for _ in range(random.choice([1, 1, 2, 3]))]
    if random.random() < 0.4:
        rows.append({"configs": _configs(random, product)})
    if random.random() < 0.25:
        rows[0] = _mangled(random, rows[0])
    return rows


def _row(random: Random, product: Product) -> Row:
    row: Row = {}
    if random.random() < 0.5:
        row["op"] = random.choice(_OPS.get(product.op, (product.op,)) if random.random() < 0.9 else OPS)
    if random.random() < 0.4:
        row["dtype"] = _dtype(product) if random.random() < 0.9 else random.choice(DTYPES)
    if random.random() < 0.2:
        row["layout"] = random.choice(LAYOUTS)
    if random.random() < 0.1:
        row["align"] = random.choice(ALIGNS)
    for dim in "bmnk":
        if random.random() < 0.25 and (dim != "b" or product.op in ("bmm", "baddbmm")):
            row[dim] = _range(random, max(product.sizes[dim], 1))
    row["configs"] = _configs(random, product)
    return row


def _dtype(product: Product) -> str:
    if product.precision.tf32:
        return "tf32"
    return str(product.precision.autocast or product.dtype).removeprefix("torch.")


def _range(random: Random, size: int) -> list[int]:
    low, high = random.choice([(size, size), (max(size // 2, 1), 2 * size), (1, size), (1, 64)])
    return [low, high]


def _configs(random: Random, product: Product) -> list[Row]:
    configs = [_config(random, product) for _ in range(random.choice([1, 1, 2, 3]))]
    if random.random() < 0.3:
        configs.append(Config("cpp_gemm"))
    if random.random() < 0.5:
        configs.append(Config("aten"))
    return [config.to_json() for config in dict.fromkeys(configs)]


def _config(random: Random, product: Product) -> Config:
    if random.random() < 0.08:
        return Config(random.choice(["aten", "cpp_gemm"]))
    batched = product.op in ("bmm", "baddbmm") or (product.op in BATCHED and random.random() < 0.2)
    template = "triton_bmm" if batched else random.choices(_TEMPLATES, [6, 2, 1])[0]
    if random.random() < 0.05:
        template = random.choice([name for name, each in TEMPLATES.items() if each.tiled or name == "decompose_k"])
    if template == "decompose_k":
        k = product.sizes["k"]
        parts = [part for part in range(2, min(k, 4096) + 1) if k % part == 0]
        return Config(template, (random.choice(parts) if parts and random.random() < 0.8 else random.randint(2, 64),))
    anything = random.random() < 0.1
    while True:
        parameters = TEMPLATES[template].parameters
        config = Config(template, tuple(random.choice(parameter.values) for parameter in parameters))
        if anything or _likely(config):
            return config


def _likely(config: Config) -> bool:
    """Whether an H200 can run the config, and Triton is quick to compile it."""
    tiles = config.tiles
    assert isinstance(config.kernel, TritonGemm)
    return (
        accumulator_registers(tiles) <= 128
        and config.kernel.shared_memory(tiles, "addmm", 4) <= SM_90.shared_memory
        and tiles.block_m * tiles.block_n * tiles.block_k <= 2**20
        and tiles.num_stages <= 5
    )


def _mangled(random: Random, row: Row) -> Row:
    """The row with one thing wrong, or at least odd, somewhere."""
    row = copy.deepcopy(row)
    place = random.choice([row, random.choice(row["configs"])])
    name = random.choice(list(place))
    change = random.random()
    if change < 0.2:
        del place[name]
    elif change < 0.4:
        place[random.choice(["blocK_m", "EVEN_K", "even_k", "", "k_split", "dtype"])] = random.choice(_WRONG_VALUES)
    elif change < 0.5:
        row["configs"] = row["configs"] * 2
    else:
        place[name] = random.choice(_WRONG_VALUES)
    return row
