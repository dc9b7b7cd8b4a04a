"""QuACK's GEMMs for Hopper, which also do the work after a GEMM. The package ``quack-kernels`` compiles them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diode_lut.hardware import Architecture, Hardware
from diode_lut.problem import FUSED, Problem
from diode_lut.templates.template import Complaint, Covered, Parameter, Params, Template

_UNIT = 8  # N and K are multiples of this, so that rows start at multiples of 16 bytes

_PINGPONG = ((128, 128), (128, 160), (128, 192), (128, 208), (192, 128))
_COOPERATIVE = ((256, 128), (256, 160), (256, 192), (256, 208), (128, 224), (128, 256))
"""The tiles that QuACK tunes, for groups of warps that take turns with tiles, and for groups that share a tile."""

_CLUSTERS = ((1, 2), (2, 1))

_SEARCH: tuple[Params, ...] = (
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
        yield from _SEARCH

    def faults_on(
        self, problem: Problem, params: Params, architecture: Architecture, shared_memory: int | None = None
    ) -> Iterator[Complaint]:
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
