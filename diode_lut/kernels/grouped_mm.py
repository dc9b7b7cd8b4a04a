"""Inductor's Triton kernel for grouped matmuls: consecutive rows of A are a group, each with a matrix B of its own.

One program runs on each multiprocessor, goes through the tiles of all groups, and loads them with tensor descriptors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diode_lut.domain.hardware import Hardware
from diode_lut.domain.ops import GROUPED, ITEMSIZES, least_itemsize
from diode_lut.domain.problem import Problem
from diode_lut.kernels.architecture import Architecture, architecture
from diode_lut.kernels.template import Complaint, Covered, Heads, Params, Template
from diode_lut.kernels.tiles import TILES, Tiles, accumulator_registers, registers

_BARRIERS = 128
"""Bytes of shared memory besides the tiles, at most."""

_FROM_MEMORY = 64
"""Rows of a block from which the tensor cores of sm_90 read operands from shared memory."""

_FEW, _MANY = 32, 128
"""Rows of a group: up to _FEW, reading B is all that takes time; from _MANY, small tiles only lose."""

_LARGE_AREA = 128 * 256


@dataclass(frozen=True)
class GroupedMm(Template):
    """A Triton kernel for grouped matmuls."""

    tma = True
    many_sms = True
    stand_in = "persistent_tma_gemm"

    def runs_on(self, architecture: Architecture) -> bool:
        """On NVIDIA's with tensor descriptors."""
        return architecture.triton == "cuda" and architecture.tma

    def tiles(self, params: Params) -> Tiles:
        """The tunables as those of a GEMM; tiles are not in groups for the cache."""
        block_m, block_n, block_k, stages, warps = params
        return Tiles(block_m, block_n, block_k, 1, stages, warps)

    def shared_memory(self, params: Params, itemsize: int) -> int:
        """Bytes of shared memory that the kernel takes at most; ``itemsize`` is in bytes.

        Where tensor cores take operands from registers, one stage is there.
        """
        tiles = self.tiles(params)
        stages = max(1, tiles.num_stages - (tiles.block_m < _FROM_MEMORY))
        return itemsize * tiles.block_k * (tiles.block_m + tiles.block_n) * stages + _BARRIERS

    def complaints(self, params: Params, covered: Covered, architecture: Architecture) -> Iterator[Complaint]:
        """Too many registers, too much shared memory, or rows that tensor descriptors cannot describe."""
        yield from super().complaints(params, covered, architecture)
        if covered.align == 2:
            yield Complaint(f"{self.name} needs an align of 16", "template")
        yield from self.faults(params, least_itemsize(self.ops[0], covered.dtype), architecture)

    def faults(
        self, params: Params, itemsize: int, architecture: Architecture, shared_memory: int | None = None
    ) -> Iterator[Complaint]:
        """What keeps a config from being launched; ``shared_memory`` is the device's in bytes, if it is known."""
        tiles = self.tiles(params)
        needed, limit = accumulator_registers(tiles, architecture.warp_size), registers(tiles, architecture)
        if limit is not None and needed >= limit:
            reason = f"{tiles.num_warps} do not go with a block of {tiles.block_m}x{tiles.block_n}"
            yield Complaint(f"{reason}: {needed} registers a thread (allowed: {limit - 1})", "num_warps")
        memory, allowed = self.shared_memory(params, itemsize), shared_memory or architecture.shared_memory
        if allowed is not None and memory > allowed:
            yield Complaint(f"its blocks need {memory} bytes of shared memory ({architecture.name} has {allowed})")

    def faults_on(
        self, problem: Problem, params: Params, architecture: Architecture, shared_memory: int | None = None
    ) -> Iterator[Complaint]:
        """Those for the problem's dtype."""
        return self.faults(params, ITEMSIZES[problem.dtype], architecture, shared_memory)

    def blocks(self, params: Params, heads: Heads | None) -> dict[str, int]:
        """Tiles are not in groups."""
        return {**super().blocks(params, heads), "GROUP_M": 1}

    def search(self, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        """Blocks in proportion to the rows of a group, with few stages and with as many as fit."""
        memory = architecture(hardware.arch).shared_memory
        rows = -(-problem.m // problem.b)
        for block_m in _blocks_of(rows):
            for block_n, block_k in _tiles(block_m, rows):
                for stages in self._depths((block_m, block_n, block_k), problem, memory):
                    yield from ((block_m, block_n, block_k, stages, warps) for warps in _warps(block_m * block_n))

    def _depths(self, blocks: tuple[int, int, int], problem: Problem, memory: int | None) -> list[int]:
        """Two numbers of stages that fit in ``memory`` bytes; deep pipelines where reading B is all that takes time."""
        wanted = (3, 4, 6) if problem.m <= _FEW * problem.b else (3, 4)
        itemsize = ITEMSIZES[problem.dtype]
        needed = {each: self.shared_memory((*blocks, each, 4), itemsize) for each in wanted}
        return [each for each in wanted if memory is None or needed[each] <= memory][-2:]


def _blocks_of(rows: int) -> tuple[int, ...]:
    """Blocks of rows for groups of this many rows on average; some groups have more."""
    if rows <= 16:
        return (16, 32)
    if rows <= 32:
        return (32, 64)
    return (32, 64, 128) if rows < _MANY else (64, 128)


def _tiles(block_m: int, rows: int) -> Iterator[tuple[int, int]]:
    """Blocks along N and K."""
    steps = (64, 128, 256) if block_m <= _FEW else (64, 128)
    for block_n in (64, 128, 256):
        if rows >= _MANY and block_m * block_n < 64 * 128:
            continue
        yield from ((block_n, block_k) for block_k in steps if block_n * block_k < 256 * 256)


def _warps(area: int) -> tuple[int, ...]:
    if area >= _LARGE_AREA:
        return (8,)
    return (4, 8) if area >= 128 * 128 else (4,)


TRITON_GROUPED_MM = GroupedMm(
    "triton_grouped_mm",
    GROUPED,
    tuple(parameter for parameter in TILES if parameter.name != "group_m"),
    "A Triton kernel for grouped matmuls, with one program on each multiprocessor, which loads its operands through "
    "tensor descriptors.",
)
