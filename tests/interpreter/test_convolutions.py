"""1x1 convolutions as GEMMs on the device on which Triton's interpreter executes kernels."""

from typing import Any

import pytest
import torch

from tests.interpreter.conftest import found_for
from tests.sampled import sampled


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    return found_for(request, "convolve.py")


BLOCKS = {
    "option": [32, 64],
    "residual": [32, 64],
    "norm": [64],
    "norm in float16": [64],
    "one pixel": [64],
    "gelu": [64],
    "chain": [32, 64],
}
"""Of the kernels' source codes, by case."""


@pytest.mark.skipif(torch.version.cuda is not None, reason="PyTorch asks for cuDNN's version")
@pytest.mark.parametrize("case", sampled(BLOCKS, "option", "norm in float16", "one pixel", "gelu"))
def test_rows_compute_1x1_convolutions(found: dict[str, Any], case: str) -> None:
    """Kernels of rows compute them and what follows, with Inductor's option and without, as float64 does."""
    assert found[case]["blocks"] == BLOCKS[case]
    assert found[case]["others"] == 0
    assert found[case]["error"] == pytest.approx(0, abs=0.01)
