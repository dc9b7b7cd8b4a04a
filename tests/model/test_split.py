"""The split into training and test problems."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diode_lut.errors import ProblemError
from diode_lut.model import TEST, TRAIN, Split, belongs, family_name, parse_family
from diode_lut.problem import EPILOGUES, Problem
from tests.model.small import MM

PROBLEMS = [MM._replace(m=m) for m in range(1, 2001)]


def test_share_is_kept() -> None:
    """About the given fraction of the problems is in the test group."""
    groups = [Split(0, 0.2).group(problem) for problem in PROBLEMS]
    assert set(groups) == {TRAIN, TEST}
    assert groups.count(TEST) / len(groups) == pytest.approx(0.2, abs=0.04)


def test_each_problem_is_drawn_alone() -> None:
    """A seed always draws the same problems, in every dataset; another seed draws others."""
    first = Split(0, 0.2)
    assert [first.group(problem) for problem in PROBLEMS] == [Split(0, 0.2).group(problem) for problem in PROBLEMS]
    assert [first.draw(problem) for problem in PROBLEMS[:5]] != [
        Split(1, 0.2).draw(problem) for problem in PROBLEMS[:5]
    ]


def test_epilogues_do_not_split_a_gemm() -> None:
    """A GEMM is in the same group with every class of epilogue, so that no test problem's twin is trained on."""
    split = Split(0, 0.2)
    for problem in PROBLEMS[:200]:
        assert len({split.group(problem._replace(epilogue=name)) for name in EPILOGUES}) == 1


@pytest.mark.parametrize(("op", "dtype", "parts"), [("int_mm", "int8", 1), ("mm", "bfloat16", 2)])
def test_layers_of_bytes_are_not_split(op: str, dtype: str, parts: int) -> None:
    """A layer in int8 is in the same group with any number of rows, so that a model is tested on layers new to it."""
    split = Split(0, 0.2)
    rows = [Problem.of(op, m, 4096, 4096, dtype=dtype, layout="nt") for m in range(1, 100)]
    assert len(set(map(split.group, rows))) == parts


def test_families_are_left_out_as_a_whole() -> None:
    """Every problem of a left-out family is in the group with the family's name, drawn or not."""
    family = parse_family("layout=nt,m=1:64")
    split = Split(0, 0.2, (family,))
    for problem in PROBLEMS:
        assert (split.group(problem) == "layout=nt,m=1:64") is (problem.m <= 64)


families = st.lists(
    st.sampled_from(["op=mm", "dtype=bfloat16", "layout=tn", "align=2", "b=1", "m=1:64", "n=7", "k=1024:2048"]),
    min_size=1,
    unique=True,
).map(",".join)


@given(text=families)
def test_split_survives_json(text: str) -> None:
    """A split that is written as JSON and read again is the same."""
    split = Split(3, 0.1, (parse_family(text),))
    assert Split.from_json(split.to_json()) == split


@pytest.mark.parametrize(
    "text", ["", "op=conv", "size=3", "m=9:3", "m=x", "m", "align=4", "m=0", "m=5:", "op=mm,,", "op=mm,op=bmm"]
)
def test_bad_families(text: str) -> None:
    """A family that no problem can belong to is an error that quotes it."""
    with pytest.raises(ProblemError, match=text.split(",")[-1] or "condition"):
        parse_family(text)


def test_belonging() -> None:
    """A condition on a size is a range with both ends included, or one number."""
    problem = Problem("mm", "float16", "tn", 2, 1, 64, 7, 9)
    assert belongs(problem, parse_family("op=mm,layout=tn,align=2,m=1:64,n=7"))
    assert not belongs(problem, parse_family("m=1:63"))
    assert family_name(parse_family("n=7,align=2")) == "n=7:7,align=2"
