"""Padding that rows ask for, on the device on which Triton's interpreter executes kernels."""

from typing import Any

import pytest

from tests.interpreter.conftest import found_for
from tests.interpreter.test_device import ROUNDING
from tests.programs.pad import CASES
from tests.sampled import sampled


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Run tests/programs/pad.py in a process of its own, and return its findings."""
    return found_for(request, "pad.py")


@pytest.mark.parametrize(
    "case",
    sampled(
        CASES,
        "mm bfloat16 default",
        "addmm float32 default",
        "addmm of a matrix float32 max-autotune-no-cudagraphs",
        "bmm bfloat16 max-autotune-no-cudagraphs",
        "linear float32 max-autotune-no-cudagraphs",
    ),
)
def test_padded_operands_give_the_same_digits(found: dict[str, Any], case: str) -> None:
    """Result and gradients are right to within rounding, all by the row's kernel, and no benchmark is asked."""
    _, dtype, _ = CASES[case]
    each = found[case]
    assert each["error"] < 4 * ROUNDING[f"torch.{dtype}"]
    assert (each["padded"], each["asked"], each["templates"], each["library"]) == (True, [], 3, 0)


def test_the_library_on_padded_operands(found: dict[str, Any]) -> None:
    """``aten`` with padding is right, forward and backward."""
    case = found["library"]
    assert case["error"] < 4 * ROUNDING["torch.bfloat16"]
    assert (case["padded"], case["asked"], case["templates"], case["library"]) == (True, [], 0, 3)


@pytest.mark.parametrize(("epilogue", "n", "fused"), [("relu", 48, 1), ("relu", 51, 0), ("gelu", 48, 1)])
def test_epilogues_of_padded_operands(found: dict[str, Any], epilogue: str, n: int, fused: int) -> None:
    """Behind a matmul of which only K is padded, a row's kernel is right with the epilogue in it.

    Where N is padded too, the result is cut before the epilogue, and the library multiplies.
    """
    case = found[f"{epilogue} {n}"]
    assert case["error"] < 4 * ROUNDING["torch.bfloat16"]
    assert (case["padded"], case["templates"], case["library"]) == (True, fused, 3 - fused)


def test_tensor_descriptors_of_padded_operands(found: dict[str, Any]) -> None:
    """A kernel that loads through tensor descriptors is right on operands that it could not have without padding."""
    case = found["tma"]
    assert case["error"] < 4 * ROUNDING["torch.bfloat16"]
    assert (case["padded"], case["templates"]) == (True, 3)


def test_padding_where_a_size_may_change(found: dict[str, Any]) -> None:
    """A matmul whose M is dynamic is padded; of its gradients, the one with M as its K is not."""
    case = found["dynamic"]
    assert case["error"] < 4 * ROUNDING["torch.bfloat16"]
    assert (case["padded"], case["templates"], case["library"]) == (True, 2, 1)


@pytest.mark.parametrize("cache", ["fxgraph_cache_hit", "autograd_cache_hit"])
def test_caches_follow_what_rows_say_of_padding(found: dict[str, Any], cache: str) -> None:
    """A row that comes to pad, or the setting, compiles again; whatever was compiled before is then found again."""
    assert found["cache"][cache] == [
        [False, False],  # no padding
        [True, False],
        [False, True],  # the row pads
        [True, True],
        [False, False],  # the setting pad is off
        [True, False],  # no padding
    ]
