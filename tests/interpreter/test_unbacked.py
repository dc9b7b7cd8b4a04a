"""Sizes that only the data tell, on the device on which Triton's interpreter executes kernels."""

from typing import Any

import pytest

from tests.interpreter.conftest import found_for
from tests.programs.unbacked import ROWS
from tests.sampled import sampled


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The results of tests/programs/unbacked.py, in a process of its own."""
    return found_for(request, "unbacked.py")


@pytest.mark.parametrize("case", sampled(ROWS, "two kernels", "tma", "batch", "unbounded"))
def test_rows_answer_within_bounds(found: dict[str, Any], case: str) -> None:
    """With a bound, one compile gets kernels that are right for all sizes, zero too; without, there is no choice."""
    kernels = 0 if case == "unbounded" else 2 if case in ("two kernels", "library") else 1
    assert (found[case]["asked"], found[case]["hits"]) == (kernels, kernels)
    assert found[case]["no_choice"] == (case == "unbounded")
    assert found[case]["error"] < 1e-4


def test_own_allocator(found: dict[str, Any]) -> None:
    """After a call with tensor descriptors the program's Triton allocator is in force again."""
    assert found["own allocator"]
