"""The device on which Triton's interpreter executes kernels: right kernels are right there, and mistakes are seen."""

from __future__ import annotations

from typing import Any

import pytest

from tests.forks import Forks
from tests.interpreter.conftest import found_by
from tests.programs.interpret import PROGRAMS

ROUNDING = {"torch.float16": 2.0**-11, "torch.bfloat16": 2.0**-8, "torch.float32": 2.0**-24}


@pytest.fixture(scope="module")
def found(with_device: Forks) -> dict[str, Any]:
    """Run tests/programs/interpret.py in a process of its own, and return its findings."""
    return found_by(with_device, "interpret.py")


def test_unwritten_memory_is_nan(found: dict[str, Any]) -> None:
    """Memory of the device holds NaN until something is written there."""
    assert found["unwritten"] is True


@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_layer_is_right_forward_and_backward(found: dict[str, Any], dtype: str) -> None:
    """A linear layer with relu and all its gradients are within the errors of rounding."""
    assert found["linear"][dtype] < 4 * ROUNDING[dtype]


@pytest.mark.parametrize("template", ["triton_mm", "triton_mm_persistent_tma", "triton_bmm"])
def test_templates_of_rows_are_executed(found: dict[str, Any], template: str) -> None:
    """A row's Triton template is what computes the GEMM, and does so right."""
    error, executed = found["templates"][template]
    assert executed
    assert error < 4 * ROUNDING["torch.bfloat16"]


@pytest.mark.parametrize(("epilogue", "op"), PROGRAMS)
def test_what_is_measured_of_epilogues_is_right(found: dict[str, Any], epilogue: str, op: str) -> None:
    """A GEMM with an epilogue is timed as one Triton kernel, or as the library's and one for the epilogue."""
    for error, kernels in found["programs"][f"{epilogue} {op}"].values():
        assert error < 4 * ROUNDING["torch.bfloat16"]
        assert kernels == 1


def test_other_kernels_are_right(found: dict[str, Any]) -> None:
    """Reductions, scans, views and functions of libdevice give what float64 gives, to within some roundings."""
    assert found["reductions"] < 32 * ROUNDING["torch.float32"]


def test_sizes_may_change(found: dict[str, Any]) -> None:
    """A function compiled for sizes that may change is right at each."""
    assert found["dynamic"] < 8 * ROUNDING["torch.float32"]


def test_a_wrong_digit_is_seen(found: dict[str, Any]) -> None:
    """A kernel that computes something else gives something else."""
    assert found["digit"] > 0.1


def test_what_a_kernel_leaves_out_is_seen(found: dict[str, Any]) -> None:
    """A kernel that leaves one element unwritten gives NaN."""
    assert found["unwritten element"] == float("inf")


def test_writing_beside_a_tensor_is_seen(found: dict[str, Any]) -> None:
    """A kernel that writes behind the end of its tensor is counted, and none of the others is."""
    assert found["overruns"] == [0, 0, 0, 1]
