"""What Inductor's Triton GEMMs need."""

from __future__ import annotations

from itertools import product

import pytest

from diode_lut.kernels.architecture import architecture
from diode_lut.kernels.triton_gemm import (
    TRITON_BMM,
    TRITON_MM,
    TRITON_MM_PERSISTENT_TMA,
    Tiles,
    TritonGemm,
    accumulator_registers,
    registers,
)

TILES = [Tiles(*params) for params in product((16, 64, 256), (32, 256), (16, 128), (8,), (1, 4), (4, 16))]
SM_90 = architecture("sm_90")


@pytest.mark.parametrize("op", ["mm", "addmm"])
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("template", [TRITON_MM, TRITON_BMM, TRITON_MM_PERSISTENT_TMA], ids=lambda each: each.name)
def test_shared_memory_is_what_inductor_reckons_with(template: TritonGemm, itemsize: int, op: str) -> None:
    """The figure agrees with Inductor's own estimate, for plain kernels and for those with TMA."""
    from torch._inductor.template_heuristics.triton import (
        CUDAMMTemplateConfigHeuristic,
        GemmConfig,
        get_shared_memory_checker_opts,
    )

    plain = dict.fromkeys(("has_sm_layout_conversion",), False)
    options = get_shared_memory_checker_opts(op, itemsize) if template.tma else plain
    options.setdefault("layout_conversion_byte_size", 0)
    for tiles in TILES:
        gemm = GemmConfig(
            tiles.block_m, tiles.block_n, tiles.block_k, tiles.num_stages, tiles.num_warps, group_m=tiles.group_m
        )
        estimate = CUDAMMTemplateConfigHeuristic().get_shared_memory_estimation(gemm, itemsize, **options)
        assert template.shared_memory(tiles, op, itemsize) == estimate


def test_accumulators_are_spread_over_all_threads() -> None:
    """A block of 256 x 128 float32 in 8 warps is 128 registers a thread; what is left over counts as one."""
    assert accumulator_registers(Tiles(256, 128, 64, 8, 3, 8)) == 128
    assert accumulator_registers(Tiles(16, 16, 64, 8, 3, 16)) == 1


def test_warps_of_64_threads_have_half_the_accumulators() -> None:
    """As AMD's instinct GPUs have them."""
    assert accumulator_registers(Tiles(256, 128, 64, 8, 3, 8), architecture("gfx942").warp_size) == 64


def test_threads_share_registers() -> None:
    """A thread has 255 registers, and fewer where its block's threads share 65,536."""
    assert [registers(Tiles(64, 64, 64, 8, 3, warps), SM_90) for warps in (4, 8, 16)] == [255, 255, 128]


def test_cudas_registers_are_not_those_of_others() -> None:
    """No limit is applied to an architecture whose limit is not known."""
    tiles = Tiles(256, 256, 16, 8, 1, 4)
    row = None, "float16", 16, None
    assert [each.field for each in TRITON_MM.complaints(tiles, _Row(*row), SM_90)] == ["num_warps"]
    assert list(TRITON_MM.complaints(tiles, _Row(*row), architecture("gfx942"))) == []


class _Row:
    def __init__(self, op: str | None, dtype: str | None, align: int | None, k: tuple[int, int] | None) -> None:
        self.op, self.dtype, self.align, self.k = op, dtype, align, k
