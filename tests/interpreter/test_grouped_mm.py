"""Grouped matmuls on the device on which Triton's interpreter executes kernels: rows change no digit that counts."""

from typing import Any

import pytest

from tests.forks import Forks
from tests.interpreter.conftest import found_by
from tests.programs.collect_grouped import CASES as MEASURED
from tests.programs.collect_grouped import CONFIGS
from tests.programs.grouped_mm import CASES


@pytest.fixture(scope="module")
def found(with_device: Forks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run tests/programs/grouped_mm.py in a process of its own, and return its findings."""
    return found_by(with_device, "grouped_mm.py", tmp_path_factory.mktemp("grouped"))


@pytest.mark.parametrize("case", CASES)
def test_row_computes_it(found: dict[str, Any], case: str) -> None:
    """The row's kernel runs, also where groups are empty and work follows, and for gradients of A, not of B."""
    gradients = CASES[case].gradients
    assert (found[case]["kernels"], found[case]["library"]) == ((2, 1) if gradients else (1, 0))
    assert len(found[case]["errors"]) == (3 if gradients else 1)
    assert max(found[case]["errors"]) < 0.008


@pytest.fixture(scope="module")
def measured(with_device: Forks) -> dict[str, Any]:
    """Run tests/programs/collect_grouped.py in a process of its own, and return its findings."""
    return found_by(with_device, "collect_grouped.py")


@pytest.mark.parametrize("case", MEASURED)
def test_it_is_measured(measured: dict[str, Any], case: str) -> None:
    """The library and every config run, and compute what float64 does."""
    assert measured[case] == dict.fromkeys(CONFIGS, 1_000_000)
