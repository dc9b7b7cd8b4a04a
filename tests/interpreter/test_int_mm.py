"""int_mm on the device on which Triton's interpreter executes kernels: the template computes what PyTorch does."""

from typing import Any

import pytest

from tests.interpreter.conftest import found_for
from tests.programs.int_mm import CASES
from tests.sampled import sampled


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Run tests/programs/int_mm.py in a process of its own, and return its findings."""
    return found_for(request, "int_mm.py")


@pytest.mark.parametrize("case", sampled(CASES, "row-major", "odd sizes", "large sums", "heavy"))
def test_row_computes_int_mm(found: dict[str, Any], case: str) -> None:
    """The row's kernel runs alone: each integer is exact, and what is fused behind is within bfloat16's rounding."""
    *_, epilogue = CASES[case]
    ran, error = found[case]
    assert ran
    assert error <= (0 if epilogue == "none" else 0.05)
