"""Kernels for parts of a dynamic size's range, on the device on which Triton's interpreter executes kernels."""

from __future__ import annotations

from typing import Any

import pytest

from tests.forks import Forks
from tests.interpreter.conftest import found_by
from tests.interpreter.test_device import ROUNDING
from tests.programs.branch import BLOCKS, FUSED, SHAPES, SIZES


@pytest.fixture(scope="module")
def found(with_device: Forks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What tests/programs/branch.py found out in a process of its own."""
    return found_by(with_device, "branch.py", tmp_path_factory.mktemp("branch"))


@pytest.mark.parametrize("first", ["small", "large"])
@pytest.mark.parametrize("op", SHAPES)
def test_each_size_runs_its_kernel(found: dict[str, Any], op: str, first: str) -> None:
    """One compile serves all sizes, each with the kernel of its row, and all results are right to within rounding."""
    case = found[f"{op} triton {first}"]
    assert case["error"] < 4 * ROUNDING["torch.float32"]
    expected = {str(m): [BLOCKS[0] if m < 9 else BLOCKS[1] if m < 33 else BLOCKS[2]] for m in SIZES}
    assert (case["compiles"], case["blocks"]) == (1, expected)


@pytest.mark.parametrize("first", ["small", "large"])
@pytest.mark.parametrize("op", [op for op in SHAPES if op not in FUSED])
def test_the_library_runs_where_it_is_best(found: dict[str, Any], op: str, first: str) -> None:
    """The library is called for the sizes at which it is the best, kernels run for the others."""
    case = found[f"{op} library {first}"]
    assert case["error"] < 4 * ROUNDING["torch.float32"]
    expected = {str(m): [] if m < 9 else [BLOCKS[1] if m < 33 else BLOCKS[2]] for m in SIZES}
    assert (case["compiles"], case["blocks"]) == (1, expected)


@pytest.mark.parametrize("op", FUSED)
def test_the_library_before_pointwise_work(found: dict[str, Any], op: str) -> None:
    """Where the library is the best for some sizes and pointwise work follows, results are right."""
    case = found[f"{op} library small"]
    assert (case["error"] < 4 * ROUNDING["torch.float32"], case["compiles"]) == (True, 1)


def test_an_artifact_runs_the_kernel_of_each_size(found: dict[str, Any]) -> None:
    """So do artifacts of standalone_compile, which servers save, although Inductor runs all kernels to compile them."""
    case = found["artifact"]
    assert case["error"] < 4 * ROUNDING["torch.float32"]
    expected = {str(m): [] if m < 9 else [BLOCKS[1] if m < 33 else BLOCKS[2]] for m in SIZES}
    assert (case["compiles"], case["blocks"]) == (1, expected)
