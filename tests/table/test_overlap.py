"""Overlaps are found as by comparing all pairs."""

from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from diode_lut.problem import (
    ALIGNS,
    ATTENTION,
    DOMAINS,
    DTYPES,
    GENERATED,
    MATMULS,
    NO_DTYPE,
    OP_SIZES,
    SIZE_FIELDS,
    Problem,
)
from diode_lut.table import Entry, lookup
from tests.strategies import share


def _shares(one: Entry, other: Entry) -> bool:
    """Whether some possible problem with sizes up to 9 is covered by both: brute force, one axis after the other."""
    return any(_share_problems_of(op, one, other) for op in (*MATMULS, *ATTENTION, *GENERATED))


def _share_problems_of(op: str, one: Entry, other: Entry) -> bool:
    domain = DOMAINS[op]
    alone = [entry._replace(**dict.fromkeys((*SIZE_FIELDS, "n_align"))) for entry in (one, other)]
    for dtype, layout, align, epilogue, variant in product(
        (NO_DTYPE,) if op in GENERATED else DTYPES[:2], domain.layouts, ALIGNS, domain.epilogues, domain.variants
    ):
        problem = Problem(op, dtype, layout, align, 1, 1, 1, 1, epilogue, variant)
        if all(entry.covers(problem) for entry in alone):
            values = {name: range(1, 10) if name in OP_SIZES[op] else (1,) for name in SIZE_FIELDS}
            return all(
                any(_covers(one, name, each) and _covers(other, name, each) for each in sizes)
                for name, sizes in values.items()
            )
    return False


def _covers(entry: Entry, name: str, value: int) -> bool:
    size = getattr(entry, name)
    if name == "n" and entry.n_align is not None and (value % 8 == 0) != (entry.n_align == 16):
        return False
    return size is None or size[0] <= value <= size[1]


def _same_problems(entry: Entry) -> tuple[Any, ...]:
    batch = (1, 1) if entry.op in ("mm", "addmm") else entry.b
    return entry._replace(b=batch).key


@settings(max_examples=share(100))
@given(data=st.data())
def test_overlaps_agree_with_comparing_all_pairs(data: st.DataObject, draw_from: Any) -> None:
    """Each row is reported with the first earlier row of another key, the same volume and a problem in common."""
    reachable = draw_from.entries.filter(lambda entry: entry.volume > 0)
    some = data.draw(st.lists(reachable, min_size=1, max_size=6))
    moved = [
        entry._replace(m=entry.n, n=entry.m, n_align=None, dtype=data.draw(st.sampled_from([entry.dtype, *DTYPES[:2]])))
        for entry in some
    ]
    entries = dict(enumerate(some + moved))
    first = {}
    for number, entry in entries.items():
        first.setdefault(_same_problems(entry), number)
    expected = {}
    for number in first.values():
        for earlier in sorted(first.values()):
            one, other = entries[number], entries[earlier]
            if earlier < number and one.volume == other.volume and _shares(one, other):
                expected.setdefault(number, earlier)
    assert dict(lookup.overlaps(entries)) == expected
    for number, earlier in expected.items():
        problem = lookup.shared_problem(entries[number], entries[earlier])
        if problem.h % problem.g == 0:  # of rows for attention, some cover no number of heads that goes with g
            assert Problem.checked(*problem) == problem
        assert entries[number].covers(problem)
        assert entries[earlier].covers(problem)


@settings(max_examples=share(100))
@given(data=st.data())
def test_rows_that_share_a_problem_are_found(data: st.DataObject, draw_from: Any) -> None:
    """All rows that share a problem with an entry are found, and no others."""
    rows = data.draw(st.lists(draw_from.entries.filter(lambda row: row.volume > 0), max_size=6))
    entry = data.draw(draw_from.entries.filter(lambda row: row.volume > 0))
    expected = [number for number, row in enumerate(rows) if _shares(row, entry)]
    assert list(lookup.Neighbours(rows).of(entry, len(rows))) == expected


@settings(max_examples=share(200))
@given(data=st.data())
def test_rows_for_some_values_of_n_only(data: st.DataObject) -> None:
    """Rows with ``n_align`` share the problems that both answer for."""
    sizes = st.integers(1, 13)
    ranges = st.tuples(sizes, sizes).map(lambda ends: (min(ends), max(ends)))
    drawn = st.builds(
        lambda op, n, n_align: Entry(op, "tf32", "nn", 16, None, (1, 1), n, (1, 1), (), n_align=op and n_align),
        st.sampled_from(["mm", "mm", None]),
        ranges,
        st.sampled_from([None, 2, 16]),
    )
    one, other = data.draw(drawn), data.draw(drawn)
    problems = (Problem("mm", "tf32", "nn", 16, 1, 1, n, 1) for n in range(1, 14))
    shared = [problem for problem in problems if one.covers(problem) and other.covers(problem)]
    assert list(lookup.Neighbours([one]).of(other, 1)) == ([0] if shared else [])
    if shared:
        assert lookup.shared_problem(one, other) == shared[0]


def test_heads_of_a_shared_problem() -> None:
    """The number of heads that a message names is one that attention can have, if the rows cover one."""
    row = Entry("flex_attention", None, None, None, None, None, None, None, (), g=(3, 3))
    shared = lookup.shared_problem(row, row._replace(h=(2, 8), v=(64, 64)))
    assert (shared.h, shared.g, shared.v) == (3, 3, 64)
