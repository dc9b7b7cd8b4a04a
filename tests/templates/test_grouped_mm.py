"""The template of grouped matmuls."""

import pytest

from diode_lut.hardware import Hardware, architecture
from diode_lut.problem import Problem
from diode_lut.templates.triton_gemm import TRITON_GROUPED_MM

PROBLEM = Problem.of("grouped_mm", 64, 4096, 4096, dtype="bfloat16", layout="nt", b=8)


@pytest.mark.parametrize("arch", ["sm_90", "sm_120"])
def test_pipelines_fit_the_architecture(arch: str) -> None:
    """A sweep tries no pipeline that needs more shared memory than the architecture has, and deep ones where it can."""
    found = [TRITON_GROUPED_MM.tiles(each) for each in TRITON_GROUPED_MM.search(PROBLEM, Hardware("GPU", arch, 132))]
    most = architecture(arch).shared_memory
    assert most is not None
    needed = [2 * each.block_k * (each.block_m + each.block_n) * (each.num_stages - 1) for each in found]
    assert most / 2 < max(needed) <= most


@pytest.mark.parametrize(("arch", "runs"), [("sm_90", True), ("sm_120", True), ("sm_89", False), ("gfx942", False)])
def test_it_needs_tensor_descriptors(arch: str, runs: bool) -> None:
    """There is such a kernel for NVIDIA's architectures that have tensor descriptors."""
    assert TRITON_GROUPED_MM.runs_on(architecture(arch)) is runs
