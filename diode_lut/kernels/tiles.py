"""Tiles: the tunables of Triton kernels that compute C in blocks, whichever template they are of."""

from __future__ import annotations

from typing import NamedTuple

from diode_lut.domain.variants import Scaling
from diode_lut.kernels.architecture import Architecture
from diode_lut.kernels.template import Parameter, Params

BLOCKS = (16, 32, 64, 128, 256)
SMALLEST_BLOCK = BLOCKS[0]
"""A GEMM of any size may use it."""

TILES = (
    Parameter("block_m", "", BLOCKS, "Block M", "Rows of C that one program computes."),
    Parameter("block_n", "x", BLOCKS, "Block N", "Columns of C that one program computes."),
    Parameter("block_k", "x", BLOCKS, "Block K", "Elements of K that one step of the program's loop takes."),
    Parameter("group_m", " g", range(1, 65), "Group M", "Rows of tiles that run next to each other, for the cache."),
    Parameter("num_stages", " s", range(1, 9), "Stages", "Depth of the software pipeline.", option=True),
    Parameter(
        "num_warps",
        " w",
        (1, 2, 4, 8, 16),
        "Warps",
        "Groups of threads in one program (32 threads each on NVIDIA GPUs).",
        option=True,
    ),
)
"""The tunables that every Triton GEMM has, in the order of the fields of Tiles."""

GROUP_M = 8
"""The group that a sweep and other tools' configs have; the final stage of ``collect`` tries others for the best."""

BLOCKS_K_OF_BYTES = (32, 64, 128, 256)
"""Matrix instructions take 32 elements of a byte, float8 and int8, along K."""

PRECISE_BLOCK_K = 128
"""Elements of float8 along K that tensor cores may add before the sum is added to one in float32, as libraries do."""


class Tiles(NamedTuple):
    """The tunables: blocks in elements, rows of blocks in a group, depth of the pipeline, warps of 32 threads."""

    block_m: int
    block_n: int
    block_k: int
    group_m: int
    num_stages: int
    num_warps: int

    @classmethod
    def of(cls, params: Params) -> Tiles:
        """The tiles of a config, without its optional tunables."""
        return cls._make(params[: len(cls._fields)])


def accumulator_registers(tiles: Tiles, warp_size: int = 32) -> int:
    """Registers of 4 bytes that one thread needs for the accumulator."""
    return -(-tiles.block_m * tiles.block_n // (warp_size * tiles.num_warps))


def registers(tiles: Tiles, architecture: Architecture) -> int | None:
    """Registers that one thread may have, of which the accumulator must leave some; None where that is not known."""
    if architecture.registers_per_thread is None or architecture.registers_per_block is None:
        return None
    threads = architecture.warp_size * tiles.num_warps
    return min(architecture.registers_per_thread, architecture.registers_per_block // threads)


def is_precise(block_k: int, variant: str) -> bool:
    """Whether blocks of float8 can have ``block_k`` elements along K, and accumulate as the variant demands."""
    return block_k in BLOCKS_K_OF_BYTES and (Scaling.of(variant).fast or block_k <= PRECISE_BLOCK_K)


def text(tiles: Tiles) -> str:
    """As configs write them: ``128x128x64 g8 s4 w8``."""
    return "".join(f"{parameter.letter}{value}" for parameter, value in zip(TILES, tiles, strict=True))
