"""What padding makes of a problem."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diode_lut.problem import DOMAINS, LAYOUTS, Problem
from diode_lut.templates.config import PADDED_OPS, is_copied, pad_multiple, padded

sizes = st.integers(1, 300)
problems = st.builds(
    Problem.of,
    st.sampled_from(("mm", "addmm")),
    sizes,
    sizes,
    sizes,
    dtype=st.sampled_from(DOMAINS["mm"].dtypes),
    layout=st.sampled_from(LAYOUTS),
)


@pytest.mark.parametrize(
    ("sizes", "layout", "expected", "copied"),
    [
        ((1000, 77, 51), "nt", "mm 1000x80x56 bfloat16 nn align 16", (True, True)),
        ((1000, 77, 64), "tt", "mm 1000x80x64 bfloat16 tn align 16", (False, True)),
        ((1001, 80, 64), "nt", "mm 1008x80x64 bfloat16 nt align 16", (True, False)),
        ((1, 77, 51), "nn", "mm 1x80x56 bfloat16 nn align 16", (True, True)),
        ((1000, 80, 64), "tt", "mm 1000x80x64 bfloat16 tt align 16", (False, False)),
    ],
)
def test_padded_problem(sizes: tuple[int, int, int], layout: str, expected: str, copied: tuple[bool, bool]) -> None:
    """Sizes are rounded up, but for 1; what is copied is row-major, and nothing else changes."""
    problem = Problem.of("mm", *sizes, dtype="bfloat16", layout=layout)
    assert str(padded(problem, 8)) == expected
    assert is_copied(problem, 8) == copied


@given(problems)
def test_padding_aligns(problem: Problem) -> None:
    """Padded as Inductor pads, every problem of an op that it pads has aligned rows, and padding again is nothing."""
    assert problem.op in PADDED_OPS
    multiple = pad_multiple(problem.dtype)
    once = padded(problem, multiple)
    assert once.align == 16
    assert padded(once, multiple) == once
    assert padded(problem, 1) == problem
