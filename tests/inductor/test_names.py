from __future__ import annotations

import pytest
import torch
from triton.runtime.errors import OutOfResources

from diode_lut.dataset import REASONS
from diode_lut.inductor.names import failure_reason

SHARED_MEMORY = OutOfResources(327680, 232448, "shared memory")
TENSOR_MEMORY = OutOfResources(1024, 512, "tensor memory")


@pytest.mark.parametrize(
    ("error", "stage", "reason"),
    [
        (SHARED_MEMORY, "compile", "shared_memory"),
        (RuntimeError(f"No valid triton configs. OutOfResources: {SHARED_MEMORY}"), "launch", "shared_memory"),
        (TENSOR_MEMORY, "compile", "compile"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB."), "launch", "out_of_memory"),
        (RuntimeError("Triton Error [CUDA]: out of memory"), "launch", "out_of_memory"),
        (TimeoutError(), "compile", "timeout"),
        (RuntimeError("benchmark timed out after 60s"), "launch", "timeout"),
        (AssertionError("Incorrect result from choice"), "launch", "wrong_result"),
        (AssertionError("bad tile"), "compile", "compile"),
        (RuntimeError("CUDA error: invalid argument"), "launch", "launch"),
        (NotImplementedError("no kernel"), "compile", "compile"),
    ],
)
def test_reason_is_what_the_error_says_else_the_stage(error: Exception, stage: str, reason: str) -> None:
    """An error that names a cause gives that cause, any other the stage in which it came; all are dataset reasons."""
    assert failure_reason(error, stage) == reason
    assert reason in REASONS
