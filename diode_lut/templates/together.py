"""Templates that compute a matmul together with others, or with the work after it, in one kernel.

The project's own are for matmuls with the same A, whose B stay where they are, and for few rows. Each program computes
a tile of one product, or of both for ``swiglu``. For few rows, it multiplies and adds without tensor cores, because
these would compute 16 rows. QuACK's GEMMs for Hopper also do the work after a GEMM. The package ``quack-kernels``
compiles them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from diode_lut.hardware import Architecture, Hardware
from diode_lut.problem import (
    FLOAT8,
    FUSED,
    GATED,
    ITEMSIZES,
    JOINED,
    NO_EPILOGUE,
    PRODUCTS,
    Problem,
    least_itemsize,
    letters,
    rounded_up,
)
from diode_lut.templates.template import (
    BLOCKS_K_OF_BYTES,
    TILES,
    Complaint,
    Covered,
    Parameter,
    Params,
    Template,
    Tiles,
    register_complaints,
)

_BARRIERS = 1024  # maximum bytes of shared memory besides the tiles

_SEARCH: dict[float, tuple[Params, ...]] = {
    16: (
        *((16, 64, 128, 8, 4, 4), (16, 32, 128, 8, 4, 2), (16, 16, 128, 8, 4, 2), (16, 128, 128, 8, 3, 4)),
        *((16, 32, 128, 8, 8, 4), (16, 64, 128, 8, 3, 2)),
    ),
    64: (
        *((64, 32, 128, 8, 4, 4), (64, 64, 128, 8, 4, 4), (64, 64, 128, 8, 3, 4), (64, 64, 64, 8, 4, 4)),
        (64, 32, 64, 8, 4, 4),
    ),
    256: (
        *((128, 128, 64, 8, 5, 4), (128, 64, 64, 8, 3, 4), (64, 64, 64, 8, 5, 4), (128, 64, 64, 8, 5, 8)),
        *((64, 128, 128, 8, 4, 4), (128, 256, 64, 8, 4, 8)),
    ),
    math.inf: (
        *((128, 128, 64, 8, 3, 8), (128, 128, 64, 8, 5, 8), (128, 256, 64, 8, 4, 8), (64, 128, 64, 8, 3, 4)),
        (128, 128, 32, 8, 5, 8),
    ),
}
"""Params by the maximum rows of A. On an H100 in bfloat16, they are within 1 % of the best, on average over layers."""


@dataclass(frozen=True)
class JoinedMm(Template):
    """A Triton kernel for matmuls with the same A."""

    def runs_on(self, architecture: Architecture) -> bool:
        return architecture.triton == "cuda"

    def search(self, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        wider = 2 if problem.dtype in FLOAT8 else 1  # as many bytes along K
        for params in next(found for rows, found in _SEARCH.items() if problem.m <= rows):
            block_m, block_n, block_k, *others = params
            yield block_m, block_n, block_k * wider, *others

    def tiles(self, params: Params, rows: int) -> Tiles:
        """Return the tiles for an A of this number of rows."""
        return Tiles.of(params)

    def sums(self, tiles: Tiles) -> int:
        """Return the sums that a program keeps for each element of its tile."""
        return 1

    def complaints(self, params: Params, covered: Covered, architecture: Architecture) -> Iterator[Complaint]:
        """Complain about registers and shared memory that are too few for a single product."""
        yield from super().complaints(params, covered, architecture)
        rows = 1 if covered.m is None else min(covered.m)
        yield from self._faults(params, rows, 1, least_itemsize(self.ops[0], covered.dtype), architecture)

    def faults_on(self, problem: Problem, params: Params, architecture: Architecture) -> Iterator[Complaint]:
        """Complain about the same. A gated program has a tile and an accumulator for each B."""
        at_once, itemsize = PRODUCTS[problem.variant] if problem.variant in GATED else 1, ITEMSIZES[problem.dtype]
        yield from self._faults(params, problem.m, at_once, itemsize, architecture)
        block_k = self.tiles(params, problem.m).block_k
        if itemsize == 1 and not self.few_rows and block_k not in BLOCKS_K_OF_BYTES:
            yield Complaint("matrix instructions take 32 elements of float8 or more along K", "block_k")

    def _faults(
        self, params: Params, rows: int, at_once: int, itemsize: int, architecture: Architecture
    ) -> Iterator[Complaint]:
        tiles = self.tiles(params, rows)
        accumulators = tiles.block_n * at_once * self.sums(tiles)
        yield from register_complaints(tiles._replace(block_n=accumulators), architecture)
        stages = architecture.stages_in_memory(tiles.num_stages)
        memory = itemsize * tiles.block_k * (tiles.block_m + at_once * tiles.block_n) * stages + _BARRIERS
        yield from self.memory_faults("its blocks need", memory, architecture)


TRITON_JOINED_MM = JoinedMm(
    "triton_joined_mm",
    JOINED,
    TILES,
    "A Triton kernel for matmuls with the same A. The column of a program's tile says which B it reads, and B is not "
    "copied.",
    masks_rows=True,
)

MAX_FEW_ROWS = 4  # maximum rows of A: all of them are in the registers of each program

_SEARCH_OF_FEW: tuple[Params, ...] = (
    *((4, 512, 3, 4), (2, 1024, 3, 4), (8, 256, 4, 4), (2, 256, 4, 2), (2, 512, 4, 4), (4, 1024, 2, 4)),
    (1, 2048, 3, 4),
)
"""Params like those of _SEARCH: columns of a block, elements of K, stages and warps."""


@dataclass(frozen=True)
class FewRows(JoinedMm):
    """The same kernel without tensor cores."""

    few_rows = True

    def constants(self, layout: str) -> str:
        return "mnk"

    def search(self, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        """Yield params for few rows, if B is column-major: the kernel reads columns of B."""
        yield from _SEARCH_OF_FEW if self.can_pay(problem) else ()

    def can_pay(self, problem: Problem) -> bool:
        _, letter_b = letters(problem.layout)
        return problem.m <= MAX_FEW_ROWS and letter_b == "t" and problem.epilogue == NO_EPILOGUE

    def _faults(self, params: Params, rows: int, *others: Any) -> Iterator[Complaint]:
        if rows > MAX_FEW_ROWS:
            yield Complaint(f"it is for up to {MAX_FEW_ROWS} rows, not {rows}")
        else:
            yield from super()._faults(params, rows, *others)

    def tiles(self, params: Params, rows: int) -> Tiles:
        block_n, block_k, num_stages, num_warps = params
        return Tiles(rounded_up(rows), block_n, block_k, 1, num_stages, num_warps)

    def sums(self, tiles: Tiles) -> int:
        return tiles.block_k


_, _, _, _, _STAGES, _WARPS = TILES

TRITON_FEW_ROWS = FewRows(
    "triton_few_rows",
    ("mm", "addmm", *JOINED),
    (
        Parameter("block_n", "", (1, 2, 4, 8, 16), "Block N", "Columns of C that one program computes."),
        Parameter(
            *("block_k", "x", (128, 256, 512, 1024, 2048, 4096), "Block K"),
            "Elements of K that one step of the program's loop takes.",
        ),
        _STAGES,
        _WARPS,
    ),
    "A Triton kernel for up to 4 rows of A, also with several B. It multiplies and adds up without tensor cores.",
)

_UNIT = 8  # N and K are multiples of this, so that rows start at multiples of 16 bytes

_PINGPONG = ((128, 128), (128, 160), (128, 192), (128, 208), (192, 128))
_COOPERATIVE = ((256, 128), (256, 160), (256, 192), (256, 208), (128, 224), (128, 256))
"""The tiles that QuACK tunes, for groups of warps that take turns with tiles, and for groups that share a tile."""

_CLUSTERS = ((1, 2), (2, 1))

_SEARCH_OF_QUACK: tuple[Params, ...] = (
    *((128, 192, 1, 2, 1, 0), (128, 128, 2, 1, 1, 0), (128, 160, 2, 1, 1, 1), (128, 192, 2, 1, 1, 1)),
    *((128, 256, 1, 2, 0, 0), (128, 160, 2, 1, 1, 0), (192, 128, 1, 2, 1, 1), (128, 256, 1, 2, 0, 1)),
    *((128, 128, 1, 2, 1, 0), (128, 192, 2, 1, 1, 0), (256, 128, 1, 2, 0, 0), (192, 128, 1, 2, 1, 0)),
)
"""The configs that a sweep tries.

For 41 GEMMs on an H100, the fastest of them took on average 1.002 times as long as the fastest of QuACK's 44.
"""


@dataclass(frozen=True)
class QuackGemm(Template):
    """A kernel written in CUTLASS's Python, for sm_90."""

    def runs_on(self, architecture: Architecture) -> bool:
        return architecture.name == "sm_90"

    def complaints(self, params: Params, covered: Covered, architecture: Architecture) -> Iterator[Complaint]:
        """Complain about a config that QuACK does not tune."""
        yield from super().complaints(params, covered, architecture)
        *tile, cluster_m, cluster_n, pingpong, _ = params
        tiles = _PINGPONG if pingpong else _COOPERATIVE
        if tuple(tile) not in tiles:
            kind = "pingpong" if pingpong else "no pingpong"
            yield Complaint(f"tiles of {tile[0]}x{tile[1]} are not for {kind} (only {_texts(tiles)} are)", "tile_m")
        if (cluster_m, cluster_n) not in _CLUSTERS:
            reason = f"a cluster of {cluster_m}x{cluster_n} is not known (only {_texts(_CLUSTERS)})"
            yield Complaint(reason, "cluster_m")

    def search(self, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        """Yield the configs that were the fastest for many GEMMs."""
        yield from _SEARCH_OF_QUACK

    def faults_on(self, problem: Problem, params: Params, architecture: Architecture) -> Iterator[Complaint]:
        """Complain about rows that do not start at multiples of 16 bytes."""
        if problem.align != 2 * _UNIT or problem.n % _UNIT or problem.k % _UNIT:
            yield Complaint(f"rows of {problem.n} or {problem.k} elements do not start at multiples of 16 bytes")


def _texts(pairs: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(f"{first}x{second}" for first, second in pairs)


QUACK_GEMM = QuackGemm(
    "quack_gemm",
    FUSED,
    (
        Parameter("tile_m", "", (128, 192, 256), "Tile M", "Rows of a tile."),
        Parameter("tile_n", "x", (128, 160, 192, 208, 224, 256), "Tile N", "Columns of a tile."),
        Parameter("cluster_m", " c", (1, 2), "Cluster M", "Tiles along M that share what they load."),
        Parameter("cluster_n", "x", (1, 2), "Cluster N", "Tiles along N that share what they load."),
        Parameter(
            "pingpong", " p", (0, 1), "Ping-pong", "1 if groups of warps take turns with tiles, 0 if they share a tile."
        ),
        Parameter("swap_ab", " s", (0, 1), "Swap A and B", "1 if tiles are of the transposed product."),
    ),
    "QuACK's GEMM for Hopper with the pointwise work after it, from the package quack-kernels.",
)
