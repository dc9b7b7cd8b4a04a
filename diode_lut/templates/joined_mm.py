"""The project's own templates: matmuls with the same A in one kernel, whose B stay where they are, and few rows.

Each program computes a tile of one product, or of both for ``swiglu``. For few rows, it multiplies and adds without
tensor cores, because these would compute 16 rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from diode_lut.hardware import Architecture, Hardware
from diode_lut.problem import FLOAT8, GATED, ITEMSIZES, JOINED, PRODUCTS, Problem, least_itemsize, letters, rounded_up
from diode_lut.templates import template

_BARRIERS = 1024  # maximum bytes of shared memory besides the tiles

_SEARCH: dict[float, tuple[template.Params, ...]] = {
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
class JoinedMm(template.Template):
    """A Triton kernel for matmuls with the same A."""

    def runs_on(self, architecture: Architecture) -> bool:
        return architecture.triton == "cuda"

    def search(self, problem: Problem, hardware: Hardware) -> Iterator[template.Params]:
        wider = 2 if problem.dtype in FLOAT8 else 1  # as many bytes along K
        for params in next(found for rows, found in _SEARCH.items() if problem.m <= rows):
            block_m, block_n, block_k, *others = params
            yield block_m, block_n, block_k * wider, *others

    def tiles(self, params: template.Params, rows: int) -> template.Tiles:
        """Return the tiles for an A of this number of rows."""
        return template.Tiles.of(params)

    def sums(self, tiles: template.Tiles) -> int:
        """Return the sums that a program keeps for each element of its tile."""
        return 1

    def complaints(
        self, params: template.Params, covered: template.Covered, architecture: Architecture
    ) -> Iterator[template.Complaint]:
        """Complain about registers and shared memory that are too few for a single product."""
        yield from super().complaints(params, covered, architecture)
        rows = 1 if covered.m is None else min(covered.m)
        yield from self._faults(params, rows, 1, least_itemsize(self.ops[0], covered.dtype), architecture)

    def faults_on(
        self, problem: Problem, params: template.Params, architecture: Architecture, shared_memory: int | None = None
    ) -> Iterator[template.Complaint]:
        """Complain about the same. A gated program has a tile and an accumulator for each B."""
        at_once, itemsize = PRODUCTS[problem.variant] if problem.variant in GATED else 1, ITEMSIZES[problem.dtype]
        yield from self._faults(params, problem.m, at_once, itemsize, architecture, shared_memory)
        block_k = self.tiles(params, problem.m).block_k
        if itemsize == 1 and not self.few_rows and block_k not in template.BLOCKS_K_OF_BYTES:
            yield template.Complaint("matrix instructions take 32 elements of float8 or more along K", "block_k")

    def _faults(
        self,
        params: template.Params,
        rows: int,
        at_once: int,
        itemsize: int,
        architecture: Architecture,
        shared_memory: int | None = None,
    ) -> Iterator[template.Complaint]:
        tiles = self.tiles(params, rows)
        accumulators = tiles.block_n * at_once * self.sums(tiles)
        yield from template.register_complaints(tiles._replace(block_n=accumulators), architecture)
        stages = architecture.stages_in_memory(tiles.num_stages)
        memory = itemsize * tiles.block_k * (tiles.block_m + at_once * tiles.block_n) * stages + _BARRIERS
        allowed = shared_memory or architecture.shared_memory
        if allowed is not None and memory > allowed:
            yield template.Complaint(
                f"its blocks need {memory} bytes of shared memory ({architecture.name} has {allowed})"
            )


TRITON_JOINED_MM = JoinedMm(
    "triton_joined_mm",
    JOINED,
    template.TILES,
    "A Triton kernel for matmuls with the same A. The column of a program's tile says which B it reads, and B is not "
    "copied.",
)

MAX_FEW_ROWS = 4  # maximum rows of A: all of them are in the registers of each program

_SEARCH_OF_FEW: tuple[template.Params, ...] = (
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

    def search(self, problem: Problem, hardware: Hardware) -> Iterator[template.Params]:
        """Yield params for few rows, if B is column-major: the kernel reads columns of B."""
        _, letter_b = letters(problem.layout)
        yield from _SEARCH_OF_FEW if problem.m <= MAX_FEW_ROWS and letter_b == "t" else ()

    def _faults(self, params: template.Params, rows: int, *others: Any) -> Iterator[template.Complaint]:
        if rows > MAX_FEW_ROWS:
            yield template.Complaint(f"it is for up to {MAX_FEW_ROWS} rows, not {rows}")
        else:
            yield from super()._faults(params, rows, *others)

    def tiles(self, params: template.Params, rows: int) -> template.Tiles:
        block_n, block_k, num_stages, num_warps = params
        return template.Tiles(rounded_up(rows), block_n, block_k, 1, num_stages, num_warps)

    def sums(self, tiles: template.Tiles) -> int:
        return tiles.block_k


_, _, _, _, _STAGES, _WARPS = template.TILES

TRITON_FEW_ROWS = FewRows(
    "triton_few_rows",
    ("mm", "addmm", *JOINED),
    (
        template.Parameter("block_n", "", (1, 2, 4, 8, 16), "Block N", "Columns of C that one program computes."),
        template.Parameter(
            *("block_k", "x", (128, 256, 512, 1024, 2048, 4096), "Block K"),
            "Elements of K that one step of the program's loop takes.",
        ),
        _STAGES,
        _WARPS,
    ),
    "A Triton kernel for up to 4 rows of A, also with several B. It multiplies and adds up without tensor cores.",
)
