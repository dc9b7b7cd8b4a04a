"""What an architecture can launch."""

from __future__ import annotations

from itertools import product

import pytest

from diode_lut.architecture import (
    GEMM_TEMPLATES,
    SHARED_MEMORY,
    accumulator_registers,
    registers,
    runs_on,
    shared_memory,
)
from diode_lut.problem import TEMPLATES, Config
from tests.fake_cuda import H200

TILES = [Config("triton_mm", params) for params in product((16, 64, 256), (32, 256), (16, 128), (8,), (1, 4), (4, 16))]


def test_the_h200_is_as_its_driver_says() -> None:
    """The number for sm_90 is what the driver of an H200 gives."""
    assert SHARED_MEMORY["sm_90"] == H200.shared_memory_per_block_optin


@pytest.mark.parametrize("op", ["mm", "addmm"])
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("template", GEMM_TEMPLATES)
def test_shared_memory_is_what_inductor_reckons_with(template: str, itemsize: int, op: str) -> None:
    """The figure agrees with Inductor's own estimate, for plain kernels and for those with TMA."""
    from torch._inductor.template_heuristics.triton import (
        CUDAMMTemplateConfigHeuristic,
        GemmConfig,
        get_shared_memory_checker_opts,
    )

    tma = template == "triton_mm_persistent_tma"
    options = (
        get_shared_memory_checker_opts(op, itemsize) if tma else dict.fromkeys(("has_sm_layout_conversion",), False)
    )
    options.setdefault("layout_conversion_byte_size", 0)
    for config in TILES:
        block_m, block_n, block_k, group_m, num_stages, num_warps = config.params
        gemm = GemmConfig(block_m, block_n, block_k, num_stages, num_warps, group_m=group_m)
        estimate = CUDAMMTemplateConfigHeuristic().get_shared_memory_estimation(gemm, itemsize, **options)
        assert shared_memory(config._replace(template=template), op, itemsize) == estimate


def test_accumulators_are_spread_over_all_threads() -> None:
    """A block of 256 x 128 float32 in 8 warps is 128 registers a thread; what is left over counts as one."""
    assert accumulator_registers(Config("triton_mm", (256, 128, 64, 8, 3, 8))) == 128
    assert accumulator_registers(Config("triton_bmm", (16, 16, 64, 8, 3, 16))) == 1


def test_threads_share_registers() -> None:
    """A thread has 255 registers, unless there are so many that they share 65,536."""
    warps = (4, 8, 16)
    assert [registers(Config("triton_mm", (64, 64, 64, 8, 3, each))) for each in warps] == [255, 255, 128]


def test_each_architecture_has_its_templates() -> None:
    """TMA comes with sm_90, the C++ template is for CPUs only, and these have nothing else but aten."""
    assert set(runs_on("sm_90")) == set(TEMPLATES) - {"cpp_gemm"}
    assert set(runs_on("sm_89")) == set(runs_on("sm_90")) - {"triton_mm_persistent_tma"}
    assert runs_on("cpu-avx512") == ("aten", "cpp_gemm")
    assert "triton_mm" in runs_on("gfx942")
