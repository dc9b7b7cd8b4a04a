"""Generated rows of tables: such as a build writes, such as nothing can run, and such as no hand should have typed."""

import copy
from collections.abc import Callable, Mapping
from itertools import pairwise
from random import Random
from typing import Any

from diode_lut.hardware import architecture
from diode_lut.problem import ALIGNS, DTYPES, EPILOGUES, LAYOUTS, OPS
from diode_lut.templates.config import TEMPLATES, Config
from diode_lut.templates.template import PAD, accumulator_registers
from diode_lut.templates.triton_gemm import TritonGemm
from tests.fuzzing.gemms import BATCHED, Gemm
from tests.fuzzing.graphs import Graph, all_sizes

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
_WRONG_PARAMETERS = (None, -1, 0, 48, 512, "64", [64], 2**31)  # values that no parameter of a config has


def draw_op_row(random: Random, key: Row, sizes: Mapping[str, int], draw_config: Callable[[], Row]) -> Row:
    """A row with such a key, ranges of some of an op's sizes, and configs, of which one may have a wrong value."""
    row = dict(key)
    for name, size in sizes.items():
        if random.random() < 0.15:
            row[name] = [max(1, size // random.choice([1, 2])), size * random.choice([1, 2])]
    row["configs"] = [draw_config() for _ in range(random.choice([1, 2, 4]))]
    if random.random() < 0.1:
        config = random.choice(row["configs"])
        config[random.choice(list(config))] = random.choice(_WRONG_PARAMETERS)
    return row


def draw_rows(random: Random, gemm: Gemm) -> list[Row]:
    """Rows of one table for a GEMM: one of them is likely to cover it with something that can run."""
    rows = [_row(random, gemm) for _ in range(random.choice([1, 1, 2, 3]))]
    if random.random() < 0.4:
        rows.append({"configs": _configs(random, gemm)})
    if random.random() < 0.25:
        rows[0] = _mangled(random, rows[0])
    return rows


def draw_graph_rows(random: Random, graph: Graph) -> list[Row]:
    """Rows of one table for the GEMMs of a graph: nearly all find one, with a config that can run."""
    sizes = all_sizes(graph.sizes, graph.made)
    ops = [op for op in ("mm", "addmm", "bmm", "baddbmm") if random.random() < 0.95]
    rows: list[Row] = [{"op": op, "configs": _graph_configs(random, op, sizes)} for op in ops]
    if random.random() < 0.6:  # other kernels where something is fused
        classes = [name for name in EPILOGUES if random.random() < 0.5]
        rows += [
            {"op": op, "epilogue": name, "configs": _graph_configs(random, op, sizes)} for op in ops for name in classes
        ]
    if random.random() < 0.5:  # a narrower row, which comes before
        dim = random.choice("mnk")
        low = random.choice([1, 16, 64])
        configs = _graph_configs(random, "mm", sizes)
        rows.append({"op": random.choice(["mm", "addmm"]), dim: [low, 4 * low], "configs": configs})
    if random.random() < 0.7:  # matmuls with the same A
        joined = _joined_configs(random, sizes)
        rows += [{"op": "joined_mm", "configs": joined}] if joined else []
    if random.random() < 0.4:
        ops = [op for op in ("joined_mm", "mm", "addmm") if random.random() < 0.7]
        rows += [{"op": op, "m": [1, 4], "configs": [_of_few_rows(random)]} for op in ops]
    return rows


def _joined_configs(random: Random, sizes: dict[str, int]) -> list[Row]:
    pointers = [config for config in _graph_configs(random, "mm", sizes) if config["template"] == "triton_mm"]
    required = TEMPLATES["triton_joined_mm"].names
    return [{name: config[name] for name in required} | {"template": "triton_joined_mm"} for config in pointers]


def _of_few_rows(random: Random) -> Row:
    """A config of the kernel for few rows, whose blocks divide nothing in particular."""
    blocks = {"block_n": random.choice([1, 2, 4, 8]), "block_k": random.choice([128, 256, 512])}
    return {"template": "triton_few_rows", **blocks, "num_stages": random.choice([1, 2, 3]), "num_warps": 4}


def draw_parts(random: Random, graph: Graph) -> list[Row]:
    """Rows for parts of the range of a size that changes within bounds, each with gains of its own; none without."""
    rows: list[Row] = []
    for op in ("mm", "addmm", "bmm", "baddbmm") if graph.bounds else ():
        size = random.choice("mmmnk")
        borders = sorted({1, 2**14, *random.sample([3, 9, 17, 33, 65, 100, 129, 257, 1025], random.choice([1, 2, 3]))})
        for low, above in pairwise(borders):
            configs = _graph_configs(random, op, all_sizes(graph.sizes, graph.made))
            gains = sorted((random.randint(800, 2000) for _ in configs), reverse=True)
            timed = list(map(_timed, configs, gains))
            rows.append({"op": op, size: [low, above - 1], "configs": timed})
    for low, most in ((1, 16), (17, 2**14)) if graph.bounds else ():
        joined = _joined_configs(random, all_sizes(graph.sizes, graph.made))
        timed = [_timed(config, 2000 - 100 * place) for place, config in enumerate(joined)]
        rows += [{"op": "joined_mm", "m": [low, most], "configs": timed}] if joined else []
    return rows


def _timed(config: Row, gain: int) -> Row:
    return config if config["template"] == "aten" else {**config, "gain_permille": gain}


def _graph_configs(random: Random, op: str, sizes: dict[str, int]) -> list[Row]:
    """A few configs of one op; the last ones can always run."""
    templates = ("triton_bmm",) if op in ("bmm", "baddbmm") else _TEMPLATES
    weights = (1,) if len(templates) == 1 else (6, 2, 3)
    configs = []
    for template in random.choices(templates, weights, k=random.choice([1, 2, 3])):
        if template == "decompose_k":
            configs.append(Config(template, (_split(random, sizes),)))
            continue
        config = _tiled(random, template)
        while not _likely(config) or config.tiles.block_m * config.tiles.block_n * config.tiles.block_k < 2**13:
            config = _tiled(random, template)
        configs.append(config)
    configs.append(Config("aten"))
    if random.random() < 0.1:
        random.shuffle(configs)
    return [config.to_json() for config in dict.fromkeys(configs)]


def _split(random: Random, sizes: dict[str, int]) -> int:
    """Into how many parts a row would divide K, which is likely to be one of the sizes."""
    parts = [part for size in sizes.values() for part in range(2, min(size, 64) + 1) if size % part == 0]
    return random.choice(parts or [2])


def _row(random: Random, gemm: Gemm) -> Row:
    row: Row = {}
    if random.random() < 0.5:
        row["op"] = random.choice(_OPS.get(gemm.op, (gemm.op,)) if random.random() < 0.9 else OPS)
    if random.random() < 0.4:
        row["dtype"] = _dtype(gemm) if random.random() < 0.9 else random.choice(DTYPES)
    if random.random() < 0.2:
        row["layout"] = random.choice(LAYOUTS)
    if random.random() < 0.1:
        row["align"] = random.choice(ALIGNS)
    if random.random() < 0.03:
        row["epilogue"] = random.choice(tuple(EPILOGUES))
    for dim in "bmnk":
        if random.random() < 0.25 and (dim != "b" or gemm.op in ("bmm", "baddbmm")):
            row[dim] = _range(random, max(gemm.sizes[dim], 1))
    row["configs"] = _configs(random, gemm)
    return row


def _dtype(gemm: Gemm) -> str:
    if gemm.precision.tf32:
        return "tf32"
    return str(gemm.precision.autocast or gemm.dtype).removeprefix("torch.")


def _range(random: Random, size: int) -> list[int]:
    low, high = random.choice([(size, size), (max(size // 2, 1), 2 * size), (1, size), (1, 64)])
    return [low, high]


def _configs(random: Random, gemm: Gemm) -> list[Row]:
    configs = [_config(random, gemm) for _ in range(random.choice([1, 1, 2, 3]))]
    if random.random() < 0.3:
        configs.append(Config("cpp_gemm"))
    if random.random() < 0.5:
        configs.append(Config("aten"))
    return [config.to_json() for config in dict.fromkeys(configs)]


def _config(random: Random, gemm: Gemm) -> Config:
    if random.random() < 0.08:
        library = Config(random.choice(["aten", "cpp_gemm"]))
        return _padded(random, library) if library.template == "aten" and random.random() < 0.5 else library
    batched = gemm.op in ("bmm", "baddbmm") or (gemm.op in BATCHED and random.random() < 0.2)
    template = "triton_bmm" if batched else random.choices(_TEMPLATES, [6, 2, 1])[0]
    if random.random() < 0.05:
        template = random.choice([name for name, each in TEMPLATES.items() if each.tiled or name == "decompose_k"])
    if template == "decompose_k":
        k = gemm.sizes["k"]
        parts = [part for part in range(2, min(k, 4096) + 1) if k % part == 0]
        return Config(template, (random.choice(parts) if parts and random.random() < 0.8 else random.randint(2, 64),))
    config = _tiled(random, template) if random.random() < 0.1 else likely_config(random, template)
    return _padded(random, config) if random.random() < 0.2 else config


def likely_config(random: Random, template: str) -> Config:
    """A config of a template for GEMMs that an H200 can run, and that Triton is quick to compile."""
    while not _likely(config := _tiled(random, template)):
        pass
    return config


def _tiled(random: Random, template: str) -> Config:
    """A config with any values of the tunables that each has; what is optional keeps its default."""
    return Config(template, tuple(random.choice(parameter.values) for parameter in TEMPLATES[template].required))


def _padded(random: Random, config: Config) -> Config:
    """The config with padded operands, mostly to multiples that Inductor pads to."""
    return config.padded(random.choice([4, 4, 8, 8, 8, *PAD.values[1:]]))


def _likely(config: Config) -> bool:
    """Whether a config is as ``likely_config`` has it."""
    tiles = config.tiles
    assert isinstance(config.kernel, TritonGemm)
    return (
        accumulator_registers(tiles) <= 128
        and config.kernel.shared_memory(tiles, "addmm", 4, SM_90) <= SM_90.shared_memory
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
