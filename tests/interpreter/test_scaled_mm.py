"""scaled_mm on the device on which Triton's interpreter executes kernels: the templates compute what PyTorch does."""

from typing import Any

import pytest

from diode_lut.problem import JOINED_SCALINGS
from tests.forks import Forks
from tests.interpreter.conftest import found_by
from tests.programs.scaled_mm import CASES

TOLERANCES = {"bfloat16": 0.03, "float16": 0.003, "float32": 1e-6}  # the error of an element over sqrt(K)


@pytest.fixture(scope="module")
def found(with_device: Forks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run tests/programs/scaled_mm.py in a process of its own, and return its findings."""
    return found_by(with_device, "scaled_mm.py", tmp_path_factory.mktemp("scaled"))


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_row_computes_scaled_mm(found: dict[str, Any], case: tuple[str, str, str]) -> None:
    """The row's Triton kernel runs, and its result is that of float64 within the precision of the result's type."""
    ran, error = found[" ".join(case)]
    assert ran
    assert error <= TOLERANCES[case[2].split("-")[1]]


@pytest.mark.parametrize("scaling", JOINED_SCALINGS)
def test_row_joins_them(found: dict[str, Any], scaling: str) -> None:
    """A kernel for two with the same A computes both, with scales of tensors and of rows."""
    ran, error = found[f"joined {scaling}"]
    assert ran
    assert error <= TOLERANCES["bfloat16"]
