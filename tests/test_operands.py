"""Shapes and strides, and the problems that they are."""

import pytest
from hypothesis import given, settings

from diode_lut.errors import ProblemError
from diode_lut.problem import Operand, Problem, packed_operands, problem_of
from tests.formats.drawing import packed
from tests.strategies import share


@settings(max_examples=share(200))
@given(packed())
def test_operands_say_what_the_problem_says(problem: Problem) -> None:
    """From a packed problem to its operands and back nothing is lost."""
    a, b = packed_operands(problem)
    assert problem_of(problem.op, problem.dtype, a, b) == problem


@pytest.mark.parametrize(
    ("a", "align"),
    [
        (Operand((64, 32), (32, 1)), 16),
        (Operand((64, 32), (40, 1)), 16),
        (Operand((64, 32), (33, 1)), 2),
        (Operand((64, 32), (32, 1), 8), 16),
        (Operand((64, 32), (32, 1), 1), 2),
        (Operand((1, 32), (33, 1)), 16),
    ],
)
def test_gaps_and_offsets_count_for_the_alignment(a: Operand, align: int) -> None:
    """Rows that begin on a 16-byte boundary are aligned, whatever is between them; one row needs no step."""
    assert problem_of("mm", "float16", a, Operand((32, 16), (16, 1))).align == align


@pytest.mark.parametrize(("strides", "align"), [((1, 8, 1), 2), ((8, 64, 1), 16), ((512, 1, 1), 16)])
def test_matrices_of_one_column_side_by_side(strides: tuple[int, ...], align: int) -> None:
    """Matrices that start an element apart are not aligned, whatever the step between their rows is."""
    b = Operand((8, 1, 64), (64, 64, 1))
    assert problem_of("bmm", "float16", Operand((8, 512, 1), strides), b) == Problem(
        "bmm", "float16", "nn", align, 8, 512, 64, 1
    )


def test_matrices_of_one_element_next_to_each_other_are_not_aligned() -> None:
    """A batch is packed with a step of one element then, which is no boundary."""
    one = Operand((2, 1, 1), (1, 1, 1))
    assert problem_of("bmm", "float16", one, one).align == 2


def test_what_no_table_knows_is_refused() -> None:
    """Neither rows nor columns without gaps, sizes that do not match, and batches of an op that has none."""
    b = Operand((32, 16), (16, 1))
    for a in (Operand((64, 32), (64, 2)), Operand((64, 31), (31, 1)), Operand((2, 64, 32), (2048, 32, 1))):
        with pytest.raises(ProblemError):
            problem_of("mm", "float16", a, b)


def test_a_single_row_is_row_major() -> None:
    """A matrix of one row has the same strides either way, and its letter is n."""
    with pytest.raises(ProblemError, match="tn align 16"):
        packed_operands(Problem.of("mm", 1, 64, 64, dtype="float16", layout="tn"))


def test_an_alignment_that_packed_matrices_do_not_have_is_refused() -> None:
    """How far apart the rows of such a problem are is not known."""
    with pytest.raises(ProblemError, match="align 2"):
        packed_operands(Problem("mm", "float16", "nn", 2, 1, 64, 64, 64))
