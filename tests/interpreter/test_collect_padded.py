"""Measuring kernels on padded operands, float8 and int8 on the device on which Triton's interpreter executes them."""

from typing import Any

import pytest

from tests.forks import Forks
from tests.interpreter.conftest import found_by

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(with_device: Forks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run tests/programs/collect_padded.py in a process of its own, and return its findings."""
    return found_by(with_device, "collect_padded.py", tmp_path_factory.mktemp("collect"))


@pytest.mark.parametrize("stage", ["sweep", "final"])
@pytest.mark.parametrize(
    ("problem", "pad"),
    [
        ("mm 24x27x77 bfloat16 nt align 2", 8),
        ("addmm 24x32x1029 float16 nn align 2", 8),
        ("bmm 3x20x30x45 float32 nt align 2", 4),
    ],
)
def test_padded_operands_are_measured(found: dict[str, Any], problem: str, pad: int, stage: str) -> None:
    """Both stages run the library and the kernels with and without padding; the results that are checked are right."""
    kernels = ["triton_bmm"] if problem.startswith("bmm") else ["triton_mm", "triton_mm_persistent_tma"]
    tiled = [f"{kernel} 32x32x32 g8 s3 w4" for kernel in kernels]
    expected = {"aten", tiled[0], f"aten pad{pad}", *(f"{kernel} pad{pad}" for kernel in tiled)}
    assert found[f"{problem} {stage}"] == dict.fromkeys(expected, 1_000_000)


def test_padding_with_an_epilogue_is_not_measured(found: dict[str, Any]) -> None:
    """A table that names it there, against what it is for, costs that config alone its time."""
    measured = found["mm 24x27x77 bfloat16 nt align 2 epilogue light"]
    assert measured == dict.fromkeys(["aten", "triton_mm 32x32x32 g8 s3 w4"], 1_000_000)


@pytest.mark.parametrize("stage", ["sweep", "final"])
@pytest.mark.parametrize(
    "problem",
    [
        "scaled_mm tensor-bfloat16-fast 24x32x96 float8_e4m3fn nt align 16",
        "scaled_mm row-bfloat16-fast 33x32x96 float8_e4m3fn nt align 16",
        "scaled_mm tensor-bfloat16 24x32x96 float8_e5m2 nt align 16",
    ],
)
def test_float8_is_measured(found: dict[str, Any], problem: str, stage: str) -> None:
    """Both stages run the library and both templates with scales of tensors and of rows, and gradients in float8."""
    kernels = ["triton_mm 32x32x32 g8 s3 w4", "triton_mm_persistent_tma 32x32x32 g8 s3 w4"]
    assert found[f"{problem} {stage}"] == dict.fromkeys(["aten", *kernels], 1_000_000)


@pytest.mark.parametrize(
    "case",
    [
        "24x32x96 int8 nt align 16 sweep",
        "24x32x96 int8 nt align 16 final",
        *(f"24x32x96 int8 nt align 16 epilogue {name} final" for name in ("light", "medium", "heavy")),
        "33x72x200 int8 nn align 2 sweep",
        "33x72x200 int8 nn align 2 final",
    ],
)
def test_int8_is_measured(found: dict[str, Any], case: str) -> None:
    """Both stages run the library and the template on int8; the last one also with scales and what may follow them."""
    assert found[f"int_mm {case}"] == dict.fromkeys(["aten", "triton_mm 32x32x32 g8 s3 w4"], 1_000_000)


@pytest.mark.parametrize(("late", "first"), [(0, 1e6), (1, 1e6), (2, 1e6), (20, 1e7)])
def test_a_round_in_which_the_cpu_fell_behind_is_timed_again(found: dict[str, Any], late: int, first: float) -> None:
    """A time that includes waiting for the CPU is replaced, unless the CPU falls behind each time."""
    assert found[f"late {late}"][0] == [first]
