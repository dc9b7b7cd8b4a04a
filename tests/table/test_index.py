"""The index gives the answers of a scan through all rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.table import Candidate, Entry, Range, Table
from diode_lut.table.table import Index
from diode_lut.templates.config import ATEN
from tests.steps import lines_run
from tests.strategies import share

GPU = Hardware("GPU", "sm_90", 132)


def _first(entries: list[Entry], problem: Problem) -> Entry | None:
    return next(iter(Table(GPU, entries).covering(problem)), None)


@settings(max_examples=share(100))
@given(data=st.data())
def test_the_index_agrees_with_a_scan(data: st.DataObject, draw_from: Any) -> None:
    """Wildcards, ranges, exact rows, rows in rows and ties: the index finds the entry that comes first in a scan."""
    entries = data.draw(st.lists(draw_from.entries, max_size=30))
    problems = data.draw(st.lists(draw_from.problems, min_size=1, max_size=20))
    index = Index(entries)
    assert [index.find(problem) for problem in problems] == [_first(entries, problem) for problem in problems]


@settings(max_examples=share(100))
@given(data=st.data())
def test_borders_agree_with_a_scan(data: st.DataObject, draw_from: Any) -> None:
    """The borders along some sizes are the ends of all rows that cover the problem there."""
    entries = data.draw(st.lists(draw_from.entries, max_size=30))
    problem = data.draw(draw_from.problems)
    for fields in (("m",), ("n",), ("b", "m")):
        ends = {end for entry in entries for name in fields for end in getattr(entry, name) or ()}
        moved = {end: problem._replace(**dict.fromkeys(fields, end)) for end in ends}
        expected = {
            end
            for end, there in moved.items()
            if any(entry.covers(there) and end in (getattr(entry, name) or ()) for entry in entries for name in fields)
        }
        assert Index(entries).borders(problem, fields) == expected


@settings(max_examples=share(30))
@given(data=st.data())
def test_the_order_of_rows_does_not_matter(data: st.DataObject, draw_from: Any) -> None:
    """Rows with the same specificity, even with the same key, answer in canonical order wherever they are."""
    entries = data.draw(st.lists(draw_from.entries, min_size=2, max_size=8))
    again = data.draw(st.permutations(entries))
    problem = data.draw(draw_from.problems)
    assert Index(entries).find(problem) == Index(again).find(problem)


def _cells(side: int) -> list[Entry]:
    """Boxes side by side, and in each a smaller one."""
    low = [1 + 8 * number for number in range(side)]
    boxes = [((m, m + 7), (n, n + 7), (k, k + 7)) for m in low for n in low for k in low]
    inner = [tuple((size[0] + 2, size[1] - 2) for size in box) for box in boxes]
    return [_row(*box) for box in (*boxes, *inner)]


def _everywhere(count: int) -> list[Entry]:
    """Boxes that all hold the same point, so that no cut separates them."""
    return [_row((500 - i, 500 + i), (500 - i, 500 + 2 * i), (500 - i, 500 + 3 * i)) for i in range(1, count)]


def _scattered(count: int) -> list[Entry]:
    draw = random.Random(7)

    def size() -> Range:
        low = int(2 ** draw.uniform(0, 10))
        return low, int(low * draw.uniform(1, 3))

    return [_row(size(), size(), size()) for _ in range(count)]


def _row(m: Range, n: Range, k: Range) -> Entry:
    return Entry("mm", "float16", "nn", 16, None, m, n, k, (Candidate(ATEN),))


@pytest.mark.parametrize("entries", [_cells(8), _everywhere(450), _scattered(1500)], ids=["cells", "nested", "random"])
def test_large_groups_agree_with_a_scan(entries: list[Entry]) -> None:
    """Groups of many more rows than a leaf takes, easy to cut or not, give the answers of a scan."""
    index = Index(entries)
    draw = random.Random(1)
    for entry in draw.sample(entries, 100):
        sizes = [draw.choice((size[0] - 1, size[0], size[1], size[1] + 1)) for size in entry[5:8]]
        problem = Problem("mm", "float16", "nn", 16, 1, *(max(size, 1) for size in sizes))
        assert index.find(problem) == _first(entries, problem)


def _families(count: int) -> list[Entry]:
    """Rows as ``build`` makes them: for each of some N and K one for a few rows, one for 64, one for all others."""
    sizes = [(8 * number, 16 * number) for number in range(1, count // 3 + 1)]
    return [_row(m, (n, n), (k, k)) for n, k in sizes for m in ((1, 15), (64, 64), (16, 4096))]


@pytest.mark.parametrize("make", [_everywhere, _scattered, _families], ids=["nested", "random", "families"])
def test_the_index_is_made_in_one_pass(make: Callable[[int], list[Entry]]) -> None:
    """However rows lie, each takes at most 150 lines of Python; other kinds of problems do not group them again."""
    problem = Problem("mm", "float16", "nn", 16, 1, 7, 7, 7)
    others = problem._replace(dtype="bfloat16"), problem._replace(dtype="float32", k=9)
    for count in (300, 3000):
        index = Index(entry._replace(dtype=None) for entry in make(count))
        assert lines_run(index.find, problem) < 150 * count
        looked_at = len(list(index.near(problem)))
        assert all(lines_run(index.find, other) < 100 * (looked_at + 5) for other in others)


def test_only_rows_with_the_problems_sizes_are_looked_at() -> None:
    """A lookup and its borders look at the rows of one family, whatever number of families there is."""
    lines = set()
    for count in (300, 3000):
        index = Index(_families(count))
        for n in (80, 160, 240):
            problem = Problem("mm", "float16", "nn", 16, 1, 64, n, 2 * n)
            assert [entry.m for entry in index.near(problem)] == [(1, 15), (16, 4096), (64, 64)]
            assert index.borders(problem, ("m",)) == {1, 15, 16, 64, 4096}
            there = problem._replace(m=63)
            lines.add((lines_run(index.find, there), lines_run(index.borders, there, ("m",))))
    assert len(lines) == 1


def test_a_wildcard_reaches_every_kind_of_problem() -> None:
    """A row without a key answers for any problem, even of an op or dtype that no table can name."""
    anything = Entry(None, None, None, None, None, None, None, None, (Candidate(ATEN),))
    problem = Problem("scaled_mm", "float8", "nn", 4, 1, 2**40, 1, 1)
    assert Index([anything]).find(problem) == anything


@pytest.mark.parametrize(
    ("n", "problems", "answered"),
    [
        ((1024, 4096), 3, (False, True)),
        ((1023, 4095), 3, (True, False)),
        ((1023, 4096), 3, (True, True)),
        ((1024, 4096), None, (True, True)),
        ((2731, 2731), 3, (True, False)),
        (None, 3, (True, True)),
    ],
    ids=str,
)
def test_built_ranges_are_for_results_aligned_as_those_measured(
    n: tuple[int, int] | None, problems: int | None, answered: tuple[bool, bool]
) -> None:
    """A range that build made of GEMMs with aligned results answers for no other one, and the other way round."""
    row = Entry("mm", "bfloat16", "nt", 16, None, None, n, None, (Candidate(ATEN),), problems=problems)
    index = Index([row])
    found = [Problem("mm", "bfloat16", "nt", 16, 1, 64, size, 64) for size in (2731, 2736)]
    assert tuple(index.find(problem) is not None for problem in found) == answered
    assert tuple(row.covers(problem) for problem in found) == answered


def test_other_ops_have_no_such_results() -> None:
    """Ranges of N for attention, and those for float8, answer for all sizes between."""
    for op, dtype in (("flex_attention", "bfloat16"), ("scaled_mm", "float8_e4m3fn")):
        variant = "causal" if op == "flex_attention" else "tensor-bfloat16"
        row = Entry(op, dtype, "nt", 16, None, None, (1024, 4096), None, (Candidate(ATEN),), 3, variant=variant)
        assert Index([row]).find(Problem(op, dtype, "nt", 16, 1, 64, 1999, 64, variant=variant)) == row
