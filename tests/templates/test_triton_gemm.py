"""What Inductor's Triton GEMMs need."""

from itertools import product

import pytest

from diode_lut.hardware import architecture
from diode_lut.templates.template import Tiles, accumulator_registers, registers
from diode_lut.templates.triton_gemm import TRITON_BMM, TRITON_MM, TRITON_MM_PERSISTENT_TMA, TritonGemm

TILES = [Tiles(*params) for params in product((16, 64, 256), (32, 256), (16, 128), (8,), (1, 4), (4, 16))]
SM_90 = architecture("sm_90")
_AMD = ("gfx90a", "gfx942", "gfx950", "gfx1100")


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
        assert template.shared_memory(tiles, op, itemsize, SM_90) == estimate


@pytest.mark.parametrize(
    ("arch", "stages"),
    [("sm_75", 1), ("sm_80", 3), ("sm_89", 3), ("sm_90", 4), ("sm_100", 4), ("sm_120", 3), ("gfx942", 3)],
)
def test_stages_that_take_shared_memory(arch: str, stages: int) -> None:
    """Of four stages, one is in registers where tensor cores read operands from there; Turing has no pipeline."""
    tiles = Tiles(64, 64, 64, 8, 4, 4)
    barriers = 0 if arch.startswith("gfx") else 128
    assert TRITON_MM.shared_memory(tiles, "mm", 2, architecture(arch)) == stages * 2 * 64 * 128 + barriers
    assert architecture(arch).stages_in_memory(1) == 1


def test_what_fits_on_an_l4() -> None:
    """128 x 256 x 64 in three stages takes 96 of its 99 KB, and four are too many."""
    row, sm_89 = _Row("mm", "bfloat16", 16, None), architecture("sm_89")
    assert list(TRITON_MM.complaints(Tiles(128, 256, 64, 8, 3, 8), row, sm_89)) == []
    assert len(list(TRITON_MM.complaints(Tiles(128, 256, 64, 8, 4, 8), row, sm_89))) == 1


def test_limits_of_amd() -> None:
    """64 KB of shared memory are just enough for three stages of 128 x 128 x 64, and 160 KB for four with padding."""
    row = _Row("mm", "bfloat16", 16, None)
    for arch, most in (("gfx90a", 3), ("gfx942", 3), ("gfx1100", 3), ("gfx950", 4)):
        tiles = [Tiles(128, 128, 64, 8, stages, 8) for stages in range(1, 9)]
        fits = [each.num_stages for each in tiles if not list(TRITON_MM.complaints(each, row, architecture(arch)))]
        assert fits == list(range(1, most + 1))


def test_accumulators_are_spread_over_all_threads() -> None:
    """A block of 256 x 128 float32 in 8 warps is 128 registers a thread; what is left over counts as one."""
    assert accumulator_registers(Tiles(256, 128, 64, 8, 3, 8)) == 128
    assert accumulator_registers(Tiles(16, 16, 64, 8, 3, 16)) == 1


def test_warps_of_64_threads_have_half_the_accumulators() -> None:
    """As AMD's instinct GPUs have them."""
    assert accumulator_registers(Tiles(256, 128, 64, 8, 3, 8), architecture("gfx942").warp_size) == 64


def test_threads_share_registers() -> None:
    """A thread has 255 registers, and fewer where its block's threads share 65,536."""
    assert [registers(warps, SM_90) for warps in (4, 8, 16)] == [255, 255, 128]


def test_registers_of_amd() -> None:
    """CDNA's threads have 512 registers, RDNA's 256, and fewer where its block's threads share them."""
    found = [[registers(warps, architecture(arch)) for warps in (4, 8, 16)] for arch in _AMD]
    assert found == [[512, 256, 128], [512, 256, 128], [512, 256, 128], [256, 256, 192]]


def test_cudas_registers_are_not_those_of_others() -> None:
    """No limit is applied to an architecture whose limit is not known."""
    tiles = Tiles(256, 256, 16, 8, 1, 4)
    row = None, "float16", 16, None
    assert [each.field for each in TRITON_MM.complaints(tiles, _Row(*row), SM_90)] == ["num_warps"]
    assert list(TRITON_MM.complaints(tiles, _Row(*row), architecture("gfx942"))) == []
    assert registers(tiles.num_warps, architecture("gfx700")) is None


class _Row:
    def __init__(self, op: str | None, dtype: str | None, align: int | None, k: tuple[int, int] | None) -> None:
        self.op, self.dtype, self.align, self.k = op, dtype, align, k
