"""Joined matmuls and few rows on Triton's interpreter: a row changes no digit that counts."""

from typing import Any

import pytest

from tests.interpreter.conftest import found_for
from tests.programs.join import CASES
from tests.programs.measure_joined import PROBLEMS
from tests.sampled import sampled


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Run tests/programs/join.py in a process of its own, and return its findings."""
    return found_for(request, "join.py")


@pytest.mark.parametrize(
    "case",
    sampled(
        CASES,
        "odd sizes",
        "biases",
        "swiglu in training",
        "geglu in float32",
        "float8, swiglu",
        "computed",
        "chained",
        "a batch may change, with biases",
        "a size may change in training",
        "few rows, odd sizes",
        "few rows, swiglu",
    ),
)
def test_kernel_computes_it(found: dict[str, Any], case: str) -> None:
    """The matmuls are kernels of the template, and results and gradients are those of float64."""
    assert found[case]["kernels"] == CASES[case].kernels
    assert max(found[case]["errors"]) < (1e-6 if CASES[case].dtype == "float32" else 0.01)


def test_row_is_in_the_keys_of_caches(found: dict[str, Any]) -> None:
    """A graph is served from a cache with the same table only, and the receipt tells of joined matmuls each time."""
    assert found["compiles"] == ["miss 1", "hit 1", "miss 1", "miss 0"]


def test_nothing_is_written_beside(found: dict[str, Any]) -> None:
    """No kernel writes outside of its tensors."""
    assert found["overruns"] == 0


@pytest.fixture(scope="module")
def measured(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Run tests/programs/measure_joined.py in a process of its own, and return its findings."""
    return found_for(request, "measure_joined.py", "problem")


@pytest.mark.parametrize("problem", sampled(PROBLEMS, "geglu", "float8 three", "add"))
def test_what_is_measured_computes_it(measured: dict[str, Any], problem: str) -> None:
    """Each kernel that ``collect`` times computes the matmuls, joined, apart, and with the work that follows."""
    found = measured[problem]
    assert ["default", *found["kernels"]] == found["tried"]
    assert found["apart"] == found["rivals"]
