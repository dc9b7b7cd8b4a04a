"""Which configs are worth trying on a problem: the one place that lists them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

from diode_lut.architecture import WITHOUT_TENSOR_CORES
from diode_lut.collect.useful import read_useful
from diode_lut.problem import ATEN, BATCHED, ITEMSIZES, Config, Problem

GROUP_M = 8
"""The group that a sweep tries; the final stage tries OTHER_GROUPS for the best."""

OTHER_GROUPS = (1, 4, 16)

_TILES = (16, 32, 64, 128, 256)
_STAGES_OF_BLOCK_K = {16: (3,), 32: (3, 5), 64: (3, 4, 5), 128: (2, 3, 4), 256: (2,)}
_WIDE_ROWS = 128
"""Beyond so many bytes along K, a tile of a large problem only takes shared memory away from stages."""

_LARGE_AREA = 128 * 256
"""The largest tile whose accumulator fits in the registers of eight warps."""

_MULTIPROCESSORS = 132
"""As a large GPU has them: so many tiles run at once."""

_FULL_GPU = 8 * _MULTIPROCESSORS * 64 * 64
"""Elements of a result that is eight waves of 64 x 64 tiles: smaller tiles only lose there."""

_LONG_K = 8
"""Where K is so many times M and N, tiles of the result are too few to fill the device, and K is cut."""

_WIDE = 4
"""Bytes of an element that takes twice the room of the types most sweeps are of."""

_K_SPLITS = (2, 4, 8, 16, 32, 64, 128)


def candidates(problem: Problem, arch: str, search_space: str = "default") -> list[Config]:
    """``aten`` and all kernels that may be the fastest on the problem, as far as can be told without running them.

    Left out are tiles far larger than the problem, tiles far too small for a large one, more stages than there are
    steps along K, a single step without tensor cores, and warps with too little or too much to do. The ``default``
    search space holds of these only what earlier sweeps on ``arch`` found useful, unless nothing would be left;
    ``exhaustive`` holds them all. What the device cannot launch is not left out here.
    """
    kernels = list(_kernels(problem))
    if search_space == "default" and arch in _useful():
        useful = _useful()[arch]
        kernels = [config for config in kernels if not useful.isdisjoint(_alike(problem, config))] or kernels
    if problem.op == "mm":
        kernels += [Config("decompose_k", (split,)) for split in _K_SPLITS if _suits_split(problem, split)]
    return [ATEN, *kernels]


_useful = cache(read_useful)


def _kernels(problem: Problem) -> Iterator[Config]:
    batched = problem.op in BATCHED
    for params in _tiled(problem):
        yield Config("triton_bmm" if batched else "triton_mm", params)
        if not batched and _suits_tma(problem, params):
            yield Config("triton_mm_persistent_tma", params)


def _alike(problem: Problem, config: Config) -> Iterator[Config]:
    """The config, and for elements of four bytes the one whose tiles of two bytes are as wide."""
    yield config
    if ITEMSIZES[problem.dtype] == _WIDE:
        block_m, block_n, block_k, *rest = config.params
        yield Config(config.template, (block_m, block_n, 2 * block_k, *rest))


def other_groups(problem: Problem, config: Config) -> list[Config]:
    """The same config with the values of ``group_m`` that make another order of tiles, where order can matter."""
    if len(config.params) < len(_TILED_PARAMS):
        return []
    block_m, block_n, block_k, _, *rest = config.params
    rows, columns = -(-problem.m // block_m), -(-problem.n // block_n)
    if rows * columns * problem.b <= _MULTIPROCESSORS:
        return []
    groups = [group for group in OTHER_GROUPS if group < rows]
    return [Config(config.template, (block_m, block_n, block_k, group, *rest)) for group in groups]


_TILED_PARAMS = ("block_m", "block_n", "block_k", "group_m", "num_stages", "num_warps")


def _tiled(problem: Problem) -> Iterator[tuple[int, ...]]:
    large = problem.b * problem.m * problem.n >= _FULL_GPU
    itemsize = ITEMSIZES[problem.dtype]
    for block_m, block_n in product(_sizes(problem.m), _sizes(problem.n)):
        area = block_m * block_n
        if area > _LARGE_AREA or (large and area < 64 * 64 and min(problem.m, problem.n) >= 64):
            continue
        for block_k, stages in _depths(problem.k):
            if area >= 64 * 64 and block_k * itemsize > 2 * _WIDE_ROWS:
                continue
            if problem.dtype == WITHOUT_TENSOR_CORES and problem.k <= block_k:
                continue
            for warps in _warps(area):
                yield (block_m, block_n, block_k, GROUP_M, stages, warps)


def _sizes(size: int) -> list[int]:
    """Tile sizes up to the first that covers the whole size."""
    return [tile for tile in _TILES if tile < 2 * max(size, 16)]


def _depths(k: int) -> Iterator[tuple[int, int]]:
    """Block sizes along K, with as many stages as there are steps, at least the fewest."""
    for block_k, stages in _STAGES_OF_BLOCK_K.items():
        if (block_k == 16 and k > 16) or block_k >= 2 * max(k, 16):
            continue
        steps = -(-k // block_k)
        yield from ((block_k, each) for each in stages if each == stages[0] or each <= steps + 1)


def _warps(area: int) -> tuple[int, ...]:
    if area <= 32 * 32:
        return (2, 4)
    if area < 64 * 128:
        return (4,)
    return (4, 8) if area <= 128 * 128 else (8,)


def _suits_tma(problem: Problem, params: tuple[int, ...]) -> bool:
    block_m, block_n, block_k, _, stages, _ = params
    return problem.align == 16 and block_m * block_n >= 64 * 64 and block_k >= 64 and stages != 5 and problem.m >= 64


def _suits_split(problem: Problem, split: int) -> bool:
    part, rest = divmod(problem.k, split)
    return rest == 0 and part >= 128 and problem.k >= _LONG_K * max(problem.m, problem.n)
