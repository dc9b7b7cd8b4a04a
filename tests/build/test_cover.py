"""The fewest rows: checked against a search through all ways to place rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diode_lut.build.boxes import BoxedRow, boxed_rows
from diode_lut.build.cover import Group, Row, Sizes, cover, halfway

CONFIGS = 4
costs = st.dictionaries(st.integers(0, CONFIGS - 1), st.floats(0.99, 1.02), min_size=1)
size = st.integers(1, 40) | st.sampled_from((64, 65, 128, 1000, 4096, 2**31 - 1))
groups = st.dictionaries(st.tuples(st.sampled_from((1, 8)), size, size, size), costs, min_size=1, max_size=12).map(
    lambda problems: Group(range(len(problems)), list(problems), list(problems.values()), CONFIGS)
)


def walk(row: Row) -> Iterator[Row]:
    yield row
    for inner in row.inner:
        yield from walk(inner)


def fewest_rows(group: Group) -> int:
    """The same question answered by trying everything: a row with any config, or none, at every box of the tree."""

    @cache
    def needed(problems: tuple[int, ...], inherited: int | None) -> int:
        if all(inherited in group.costs[problem] for problem in problems):
            return 0
        configs = range(group.configs)
        if len(problems) == 1:
            return 1
        halves = split(problems)
        without_row = sum(needed(half, inherited) for half in halves)
        return min(without_row, *(1 + sum(needed(half, config) for half in halves) for config in configs))

    def split(problems: tuple[int, ...]) -> list[tuple[int, ...]]:
        points = [group.sizes[problem] for problem in problems]
        extents = [max(axis) / min(axis) for axis in zip(*points, strict=True)]
        widest = extents.index(max(extents))
        cut = halfway(min(point[widest] for point in points), max(point[widest] for point in points))
        lower = tuple(problem for problem in problems if group.sizes[problem][widest] <= cut)
        return [lower, tuple(problem for problem in problems if problem not in lower)]

    return needed(tuple(group.problems), None)


@given(groups)
def test_no_placement_needs_fewer_rows(group: Group) -> None:
    """The cover has as many rows as the best of all placements on the same tree."""
    assert len(list(walk(cover(group)))) == fewest_rows(group)


@given(groups)
def test_every_problem_gets_an_allowed_config(group: Group) -> None:
    """Each problem belongs to exactly one row, whose config is allowed for it."""
    owners = {problem: row.config for row in walk(cover(group)) for problem in row.problems}
    assert sorted(problem for row in walk(cover(group)) for problem in row.problems) == list(group.problems)
    assert all(config in group.costs[problem] for problem, config in owners.items())


def test_the_cheaper_of_equally_good_configs_is_taken() -> None:
    """Where several configs need equally many rows, the least sum of costs decides, then the lower number."""
    sizes: list[Sizes] = [(1, 8, 8, 8), (1, 9, 8, 8)]
    assert cover(Group([0, 1], sizes, [{0: 1.0, 2: 1.0}, {0: 1.015, 2: 1.0}], 3)).config == 2
    assert cover(Group([0, 1], sizes, [{1: 1.0, 2: 1.0}, {1: 1.0, 2: 1.0}], 3)).config == 1


def answers(rows: list[BoxedRow], point: Sizes) -> BoxedRow:
    """The row with the smallest box around the point, which is what a table answers."""

    def volume(row: BoxedRow) -> int:
        result = 1
        for low, high in row.box:
            result *= high - low + 1
        return result

    covering = [row for row in rows if all(low <= x <= high for x, (low, high) in zip(point, row.box, strict=True))]
    return min(covering, key=volume)


@given(groups)
def test_boxes_are_nested_or_apart(group: Group) -> None:
    """Of two rows one is strictly inside the other, or they share no point: the most specific row is never in doubt."""
    boxes = [row.box for row in boxed_rows(group)]
    for number, one in enumerate(boxes):
        for other in boxes[:number]:
            pairs = list(zip(one, other, strict=True))
            apart = any(a[1] < b[0] or b[1] < a[0] for a, b in pairs)
            inside = all(b[0] <= a[0] and a[1] <= b[1] for a, b in pairs)
            around = all(a[0] <= b[0] and b[1] <= a[1] for a, b in pairs)
            assert apart or inside != around


@given(groups)
def test_the_smallest_box_is_the_owner(group: Group) -> None:
    """For each problem the smallest box around it is that of the row that it belongs to, and serves it."""
    rows = boxed_rows(group)
    assert sorted(problem for row in rows for problem in row.problems) == list(group.problems)
    for row in rows:
        for problem in row.problems:
            assert answers(rows, group.sizes[problem]) is row
            assert row.config in group.costs[problem]


@given(groups)
def test_every_box_ends_at_measurements(group: Group) -> None:
    """Each end of each range is the size of some measured problem inside the box."""
    for row in boxed_rows(group):
        inside = [
            point
            for point in group.sizes
            if all(low <= x <= high for x, (low, high) in zip(point, row.box, strict=True))
        ]
        assert row.box == tuple((min(axis), max(axis)) for axis in zip(*inside, strict=True))


@pytest.mark.parametrize(
    ("low", "high", "last_of_lower"),
    [(1, 2, 1), (1, 3, 2), (3, 4, 3), (5, 8, 6), (513, 1024, 768), (100, 200, 128), (129, 4096, 2048)],
)
def test_halves_end_at_round_sizes(low: int, high: int, last_of_lower: int) -> None:
    """Octaves are parted at powers of two, an octave at a round number in it."""
    assert halfway(low, high) == last_of_lower


@given(st.integers(1, 2**31 - 2), st.integers(1, 2**31 - 1))
def test_both_halves_have_something(low: int, distance: int) -> None:
    """The cut is never outside the range, so that both halves are smaller."""
    high = min(low + distance, 2**31 - 1)
    assert low <= halfway(low, high) < high
