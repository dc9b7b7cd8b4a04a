"""Which templates there are, and for which architectures."""

import pytest

from diode_lut.errors import ProblemError
from diode_lut.hardware import architecture
from diode_lut.problem import MATMULS
from diode_lut.templates.config import TEMPLATES, pointer_gemm, templates_for
from tests.fake_cuda import H200


def test_the_h200_is_as_its_driver_says() -> None:
    """The numbers for sm_90 are what the driver of an H200 gives."""
    sm_90 = architecture("sm_90")
    assert sm_90.shared_memory == H200.shared_memory_per_block_optin
    assert sm_90.registers_per_block == H200.regs_per_multiprocessor
    assert sm_90.warp_size == H200.warp_size


def test_each_architecture_has_its_templates() -> None:
    """TMA comes with sm_90, the C++ template is for CPUs only, and these have nothing else but aten."""
    sm_90 = templates_for(architecture("sm_90"))
    attention = templates_for(architecture("sm_90"), "flex_decoding")
    grouped = templates_for(architecture("sm_90"), "grouped_mm")
    joined = templates_for(architecture("sm_90"), "joined_mm")
    fused = templates_for(architecture("sm_90"), "fused_mm")
    generated = templates_for(architecture("sm_90"), "reduction")
    assert {*sm_90, *attention, *grouped, *joined, *fused, *generated} == set(TEMPLATES) - {"cpp_gemm"}
    assert set(sm_90).isdisjoint(attention)
    assert grouped == ["aten", "triton_grouped_mm"]
    assert templates_for(architecture("sm_89"), "grouped_mm") == ["aten"]
    assert fused == ["default", "quack_gemm"]
    assert templates_for(architecture("sm_100"), "fused_mm") == ["default"]
    assert joined == ["default", "triton_joined_mm", "triton_few_rows"]
    assert templates_for(architecture("gfx942"), "joined_mm") == ["default"]
    assert templates_for(architecture("cpu-avx512"), "flex_attention") == []
    assert set(templates_for(architecture("sm_89"))) == set(sm_90) - {"triton_mm_persistent_tma"}
    assert templates_for(architecture("cpu-avx512")) == ["aten", "cpp_gemm"]
    assert "triton_mm" in templates_for(architecture("gfx942"))


def test_unknown_capabilities_are_those_of_cuda() -> None:
    """A new NVIDIA GPU has CUDA's registers, TMA from sm_90 on, and an unknown size of shared memory."""
    new, old = architecture("sm_130"), architecture("sm_60")
    assert (new.registers_per_thread, new.tma, new.shared_memory) == (255, True, None)
    assert not old.tma


def test_each_op_has_a_plain_triton_template() -> None:
    """That is the one which other tools mean when they name none; another op is an error."""
    assert {pointer_gemm(op) for op in MATMULS} == {"triton_mm", "triton_bmm"}
    assert all(op in TEMPLATES[pointer_gemm(op)].ops for op in MATMULS)
    with pytest.raises(ProblemError, match="conv, for which there is no plain Triton template"):
        pointer_gemm("conv")
