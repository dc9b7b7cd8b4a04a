"""Matmuls of many widths that share a kernel, on the device on which Triton's interpreter executes kernels."""

from pathlib import Path

import pytest

from tests.forks import Forks
from tests.interpreter.conftest import found_by


def test_a_shared_kernel_is_right(with_device: Forks, tmp_path: Path) -> None:
    """Results and gradients are those of float64, to within rounding: of one kernel with bias, and one without."""
    found = found_by(with_device, "widths.py", tmp_path)
    assert found["errors"] == pytest.approx([0] * 14, abs=1e-5)
    assert (found["kernels"], found["launches"]) == (2, 8)
