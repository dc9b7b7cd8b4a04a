"""The configs that a sweep tries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import orjson

from diode_lut.domain.hardware import Hardware
from diode_lut.domain.problem import ITEMSIZES, Problem
from diode_lut.io.files import write_atomically
from diode_lut.kernels.architecture import architecture
from diode_lut.kernels.config import ATEN, Config
from diode_lut.kernels.registry import TEMPLATES
from diode_lut.kernels.triton_gemm import OTHER_GROUPS

PATH = Path(__file__).with_name("useful.json")
"""A map from architectures to lists of configs, as tables write them, one a line."""

Useful = Mapping[str, frozenset[Config]]


def read_useful() -> Useful:
    """The Triton configs that are worth trying, by architecture."""
    document = orjson.loads(PATH.read_bytes())
    return {arch: frozenset(map(Config.from_json, configs)) for arch, configs in document.items()}


def write_useful(useful: Useful) -> None:
    """Replace the file."""
    parts = [f"{orjson.dumps(arch).decode()}: [\n{_lines(configs)}\n]" for arch, configs in sorted(useful.items())]
    write_atomically(PATH, ("{\n" + ",\n".join(parts) + "\n}\n").encode())


def _lines(configs: frozenset[Config]) -> str:
    return ",\n".join(orjson.dumps(config.to_json()).decode() for config in sorted(configs))


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
