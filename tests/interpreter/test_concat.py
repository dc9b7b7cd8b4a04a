"""Matmuls whose results are concatenated, on the device on which Triton's interpreter executes kernels."""

from pathlib import Path

import pytest

from tests.forks import Forks
from tests.interpreter.conftest import found_by


def test_parts_of_concatenations_are_right(with_device: Forks, tmp_path: Path) -> None:
    """Results and gradients are those of float64, to within rounding, where kernels of rows write the parts."""
    found = found_by(with_device, "concat.py", tmp_path)
    assert found["errors"] == pytest.approx([0] * 7, abs=1e-5)
    assert found["library"] == 0
    assert found["written"] >= 4
