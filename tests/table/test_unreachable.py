"""Rows that more specific rows leave nothing to answer."""

from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from diode_lut.problem import MAX_SIZE, OPS, Problem
from diode_lut.table import Candidate, Entry
from diode_lut.table.lookup import unreachable
from diode_lut.templates.config import ATEN
from tests.strategies import share

SIZES = range(1, 5)
COLUMNS = range(1, 13)  # values of N: aligned are multiples of 4 with tf32, of 8 with float16


def row(op: str | None = "mm", dtype: str | None = "float16", **sizes: tuple[int, int] | None) -> Entry:
    key = {"b": None, "m": None, "n": None, "k": (1, 1), **sizes}
    return Entry(op, dtype, "nn", 16, key["b"], key["m"], key["n"], key["k"], (Candidate(ATEN),))


def _by_hand(entries: dict[int, Entry]) -> list[int]:
    """Asking for every problem: rows that a narrower row always beats."""
    problems = [
        Problem(op, dtype, "nn", 16, b, m, n, 1)
        for op, dtype, b, m, n in product(OPS[1:3], ("float16", "tf32"), (1, 2), SIZES, COLUMNS)
        if op == "bmm" or b == 1
    ]
    answering = set()
    for problem in problems:
        covering = [number for number, entry in entries.items() if entry.covers(problem)]
        least = min((entries[number].volume for number in covering), default=0)
        answering |= {number for number in covering if entries[number].volume == least}
    return [number for number in entries if number not in answering]


@settings(max_examples=share(300))
@given(data=st.data())
def test_it_agrees_with_asking_for_every_problem(data: st.DataObject) -> None:
    """A row is reported exactly if some more specific row covers each of its problems."""
    ranges = st.tuples(st.sampled_from(SIZES), st.sampled_from(SIZES)).map(lambda ends: (min(ends), max(ends)))
    batches = st.sampled_from([(1, 1), (1, 2), (2, 2)])
    drawn = st.builds(
        lambda op, dtype, b, m, n: row(op, dtype, b=None if op == "addmm" else b, m=m, n=n),
        st.sampled_from(["addmm", "bmm"]),
        st.sampled_from(["float16", "tf32"]),
        batches,
        ranges,
        ranges,
    )
    entries = dict(enumerate(data.draw(st.lists(drawn, max_size=20))))
    assert list(unreachable(entries)) == _by_hand(entries)


@settings(max_examples=share(300))
@given(data=st.data())
def test_it_agrees_where_rows_are_for_some_results_only(data: st.DataObject) -> None:
    """Rows for some values of N only are reported exactly as well."""
    ends = st.sampled_from([(4, 8), (4, 12), (8, 12), (8, 9), (1, 3), (5, 7), (3, 9), (4, 11), (9, 11), (1, 12)])
    drawn = st.builds(
        lambda op, m, n, n_align: row(op, "tf32", m=m, n=n)._replace(
            n_align=n_align if n_align != 16 or n[1] // 4 * 4 >= n[0] else None
        ),
        st.sampled_from(["addmm", "bmm"]),
        st.sampled_from([(1, 2), (3, 4), (1, 4), (2, 2)]),
        ends,
        st.sampled_from([None, 2, 16]),
    )
    entries = dict(enumerate(data.draw(st.lists(drawn, max_size=12))))
    assert list(unreachable(entries)) == _by_hand(entries)


def test_rows_for_anything_can_be_covered_too() -> None:
    """A row without a dtype is not used if there is a row for each dtype, and used if there is none for one."""
    anything = row(dtype=None, m=(1, MAX_SIZE))
    each = [row(dtype=dtype) for dtype in ("float16", "bfloat16", "float32", "tf32")]
    assert list(unreachable(dict(enumerate([anything, *each])))) == [0]
    assert list(unreachable(dict(enumerate([anything, *each[1:]])))) == []


def test_a_row_for_several_batches_says_nothing_of_ops_without_one() -> None:
    """A row for a batch of 2 and more and any op leaves the single GEMMs of a wider row alone."""
    wide: dict[str, Any] = {"m": (1, 8), "n": (1, 1)}
    several = row(op=None, b=(2, MAX_SIZE), **wide)
    single = row(op=None, b=(1, MAX_SIZE), **wide)
    assert list(unreachable({0: single, 1: several})) == []
