"""The configs that are tried on a problem: of what each template searches, what sweeps have shown to be enough."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from diode_lut.collect.useful import read_useful
from diode_lut.kernels.architecture import architecture
from diode_lut.kernels.config import ATEN, Config
from diode_lut.kernels.registry import TEMPLATES
from diode_lut.kernels.triton_gemm import OTHER_GROUPS
from diode_lut.problem import ITEMSIZES, Hardware, Problem

_WIDE = 4
"""Bytes of an element that takes twice the room of the types most sweeps are of."""


def candidates(problem: Problem, hardware: Hardware, search_space: str = "default") -> list[Config]:
    """``aten`` and all kernels that may be the fastest on the problem, as far as can be told without running them.

    The ``default`` search space holds, of what the templates' ``search`` gives, only what earlier sweeps on such an
    architecture found useful, unless nothing would be left; ``exhaustive`` holds it all. What the device cannot launch
    is not left out here.
    """
    found = list(_all(problem, hardware))
    kernels = [config for config in found if config.kernel.tiled]
    if search_space == "default" and hardware.arch in _useful():
        useful = _useful()[hardware.arch]
        kernels = [config for config in kernels if not useful.isdisjoint(_alike(problem, config))] or kernels
    return [ATEN, *kernels, *(config for config in found if not config.kernel.tiled and config != ATEN)]


_useful = cache(read_useful)


def _all(problem: Problem, hardware: Hardware) -> Iterator[Config]:
    known = architecture(hardware.arch)
    for template in TEMPLATES.values():
        if problem.op in template.ops and template.runs_on(known):
            yield from (Config(template.name, tuple(params)) for params in template.search(problem, hardware.sm_count))


def _alike(problem: Problem, config: Config) -> Iterator[Config]:
    """The config, and for elements of four bytes the one whose tiles of two bytes are as wide."""
    yield config
    if ITEMSIZES[problem.dtype] == _WIDE:
        tiles = config.tiles
        yield Config(config.template, tuple(tiles._replace(block_k=2 * tiles.block_k)))


def other_groups(problem: Problem, config: Config, sm_count: int) -> list[Config]:
    """The same config with the values of ``group_m`` that make another order of tiles, where order can matter.

    It does not where all tiles are computed at once, on ``sm_count`` multiprocessors.
    """
    if not config.kernel.tiled:
        return []
    tiles = config.tiles
    rows, columns = -(-problem.m // tiles.block_m), -(-problem.n // tiles.block_n)
    if rows * columns * problem.b <= sm_count:
        return []
    groups = [group for group in OTHER_GROUPS if group < rows]
    return [Config(config.template, tuple(tiles._replace(group_m=group))) for group in groups]
