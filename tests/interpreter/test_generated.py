"""Generated kernels with fixed configs, on the device on which Triton's interpreter executes kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forks import Forks
from tests.interpreter.conftest import found_by


def test_generated_kernels_are_right(with_device: Forks, tmp_path: Path) -> None:
    """Norms, softmax, sums, losses, transposes and their gradients are those of float64, whatever a row says."""
    found = found_by(with_device, "generate.py", tmp_path)
    assert list(found) == ["persistent", "persistent rows", "looped", "looped rows"]
    for each in found.values():
        assert each["errors"] == pytest.approx([0] * len(each["errors"]), abs=1e-5)
        assert each["kernels"]["fixed_config"] >= 9
