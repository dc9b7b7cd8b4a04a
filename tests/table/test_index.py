"""The index gives the answers of a scan through all rows."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diode_lut.hardware import Hardware
from diode_lut.problem import BATCHED, Problem
from diode_lut.table import Candidate, Entry, Range, Table
from diode_lut.table.lookup import Index
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
    for fields in (("m",), ("n",), *([("b", "m")] if problem.op in BATCHED else [])):
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
def test_rows_are_sorted_once(make: Callable[[int], list[Entry]]) -> None:
    """However rows lie, each takes at most 150 lines of Python. After that, lookups take as many for any number."""
    problem = Problem("mm", "float16", "nn", 16, 1, 7, 7, 7)
    others = problem._replace(dtype="bfloat16"), problem._replace(dtype="float32", k=9)
    lines = set()
    for count in (300, 3000):
        index = Index(entry._replace(dtype=None) for entry in make(count))
        assert lines_run(index.find, problem) < 150 * count
        lines |= {lines_run(index.find, other) for other in others}
    assert max(lines) < 600


def test_borders_look_at_rows_with_the_problems_sizes() -> None:
    """The borders of a problem take as long whatever number of rows with other sizes there is."""
    lines = set()
    for count in (300, 3000):
        index = Index(_families(count))
        for n in (80, 160, 240):
            problem = Problem("mm", "float16", "nn", 16, 1, 64, n, 2 * n)
            assert index.borders(problem, ("m",)) == {1, 15, 16, 64, 4096}
            lines.add(lines_run(index.borders, problem._replace(m=63), ("m",)))
    assert len(lines) == 1


def test_a_wildcard_reaches_every_kind_of_problem() -> None:
    """A row without a key answers for any problem, even of an op or dtype that no table can name."""
    anything = Entry(None, None, None, None, None, None, None, None, (Candidate(ATEN),))
    problem = Problem("scaled_mm", "float8", "nn", 4, 1, 2**40, 1, 1)
    assert Index([anything]).find(problem) == anything


@pytest.mark.parametrize(("n_align", "answered"), [(16, (False, True)), (2, (True, False)), (None, (True, True))])
@pytest.mark.parametrize("n", [(1024, 4096), (1023, 4096), None], ids=str)
def test_rows_for_some_values_of_n(n: tuple[int, int] | None, n_align: int | None, answered: tuple[bool, bool]) -> None:
    """A row with ``n_align`` answers for the N that have it, whatever ends its range has and whoever measured it."""
    row = Entry("mm", "bfloat16", "nt", 16, None, None, n, None, (Candidate(ATEN),), n_align=n_align)
    found = [Problem("mm", "bfloat16", "nt", 16, 1, 64, size, 64) for size in (2731, 2736)]
    for each in (row, row._replace(problems=3)):
        index = Index([each])
        assert tuple(index.find(problem) is not None for problem in found) == answered
        assert tuple(each.covers(problem) for problem in found) == answered


def test_other_ops_have_no_such_results() -> None:
    """Ranges of N for attention, and those for float8, answer for all sizes between."""
    for op, dtype in (("flex_attention", "bfloat16"), ("scaled_mm", "float8_e4m3fn")):
        variant = "causal" if op == "flex_attention" else "tensor-bfloat16"
        row = Entry(op, dtype, "nt", 16, None, None, (1024, 4096), None, (Candidate(ATEN),), 3, variant=variant)
        assert Index([row]).find(Problem(op, dtype, "nt", 16, 1, 64, 1999, 64, variant=variant)) == row
