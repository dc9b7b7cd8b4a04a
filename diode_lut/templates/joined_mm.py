"""The project's own template: matmuls with the same A, computed by one kernel, whose B stay where they are.

Each program computes a tile of one product, or of both for ``swiglu``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diode_lut.hardware import Architecture
from diode_lut.problem import ITEMSIZES, JOINED, PRODUCTS, Problem, least_itemsize
from diode_lut.templates.template import TILES, Complaint, Covered, Params, Template, Tiles, register_complaints

_BARRIERS = 1024
"""Maximum bytes of shared memory besides the tiles."""


@dataclass(frozen=True)
class JoinedMm(Template):
    """A Triton kernel for matmuls with the same A."""

    def runs_on(self, architecture: Architecture) -> bool:
        return architecture.triton == "cuda"

    def complaints(self, params: Params, covered: Covered, architecture: Architecture) -> Iterator[Complaint]:
        """Complain about registers and shared memory that a single product would not have."""
        yield from super().complaints(params, covered, architecture)
        yield from self._faults(params, 1, least_itemsize(self.ops[0], covered.dtype), architecture)

    def faults_on(
        self, problem: Problem, params: Params, architecture: Architecture, shared_memory: int | None = None
    ) -> Iterator[Complaint]:
        """Complain about the same. A program of ``swiglu`` has a tile of each B, and an accumulator for it."""
        at_once = PRODUCTS[problem.variant] if problem.variant == "swiglu" else 1
        yield from self._faults(params, at_once, ITEMSIZES[problem.dtype], architecture, shared_memory)

    def _faults(
        self,
        params: Params,
        at_once: int,
        itemsize: int,
        architecture: Architecture,
        shared_memory: int | None = None,
    ) -> Iterator[Complaint]:
        tiles = Tiles.of(params)
        yield from register_complaints(tiles._replace(block_n=tiles.block_n * at_once), architecture)
        stages = architecture.stages_in_memory(tiles.num_stages)
        memory = itemsize * tiles.block_k * (tiles.block_m + at_once * tiles.block_n) * stages + _BARRIERS
        allowed = shared_memory or architecture.shared_memory
        if allowed is not None and memory > allowed:
            yield Complaint(f"its blocks need {memory} bytes of shared memory ({architecture.name} has {allowed})")


TRITON_JOINED_MM = JoinedMm(
    "triton_joined_mm",
    JOINED,
    TILES,
    "A Triton kernel for matmuls with the same A. The column of a program's tile says which B it reads, and B is not "
    "copied.",
)
