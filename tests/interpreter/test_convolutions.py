"""1x1 convolutions as GEMMs on the device on which Triton's interpreter executes kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.forks import Forks
from tests.interpreter.conftest import found_by


@pytest.mark.skipif(torch.version.cuda is not None, reason="PyTorch asks for cuDNN's version")
def test_rows_compute_1x1_convolutions(with_device: Forks, tmp_path: Path) -> None:
    """With Inductor's option, kernels of rows compute them, relu and a residual fused, as float64 does."""
    found = found_by(with_device, "convolve.py", tmp_path)
    assert found["blocks"] == [32, 64]
    assert found["others"] == 0
    assert found["error"] == pytest.approx(0, abs=0.01)
