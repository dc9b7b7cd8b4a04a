"""Rows: what lookup will find in them is checked for every problem."""

from math import prod

from hypothesis import given
from hypothesis import strategies as st

from diode_lut.build.rows import REACH, BuiltRow, Point, RowGroup, few_rows

CONFIGS = 5
costs = st.dictionaries(st.integers(0, CONFIGS - 1), st.floats(0.99, 1.02), min_size=1, max_size=2)
size = st.integers(1, 12) | st.sampled_from((64, 65, 128, 2**31 - 1))


@st.composite
def drawn_groups(draw: st.DrawFn) -> RowGroup:
    """Up to 20 problems; each shares some of the configs that are allowed for it, or none."""
    problems = draw(
        st.dictionaries(st.tuples(st.sampled_from((1, 8)), size, size, size), costs, min_size=1, max_size=20)
    )
    shared = [draw(st.sets(st.sampled_from(sorted(allowed)))) for allowed in problems.values()]
    return RowGroup(range(len(problems)), list(problems), list(problems.values()), shared)


groups = drawn_groups()


def rows_of(group: RowGroup) -> list[BuiltRow]:
    return few_rows(group, group.costs)


def line(*allowed: set[int], first: int) -> RowGroup:
    """Problems along m, with the configs that are allowed for each, all at the same cost."""
    sizes: list[Point] = [(1, first + number, 8, 8) for number in range(len(allowed))]
    return RowGroup(range(len(sizes)), sizes, [dict.fromkeys(configs, 1.0) for configs in allowed], allowed)


def covers(row: BuiltRow, sizes: Point) -> bool:
    return all(low <= size <= high for size, (low, high) in zip(sizes, row.box, strict=True))


@given(groups)
def test_the_smallest_box_is_the_owner(group: RowGroup) -> None:
    """One box around each problem is smaller than all others around it: that of the row that it belongs to."""
    rows = rows_of(group)
    assert sorted(problem for row in rows for problem in row.problems) == list(group.problems)
    for owner in rows:
        for problem in owner.problems:
            assert owner.config in group.costs[problem]
            assert covers(owner, group.sizes[problem])
            others = [row for row in rows if row is not owner and covers(row, group.sizes[problem])]
            assert all(row.volume > owner.volume for row in others)


@given(groups)
def test_boxes_of_the_same_volume_are_apart(group: RowGroup) -> None:
    """No two rows contradict each other anywhere, measured or not."""
    rows = rows_of(group)
    for number, one in enumerate(rows):
        for other in rows[:number]:
            pairs = list(zip(one.box, other.box, strict=True))
            apart = any(a[1] < b[0] or b[1] < a[0] for a, b in pairs)
            assert apart or one.volume != other.volume


@given(groups)
def test_every_box_ends_at_measurements(group: RowGroup) -> None:
    """Each end of each range is the size of some measured problem inside the box."""
    for row in rows_of(group):
        inside = [sizes for sizes in group.sizes if covers(row, sizes)]
        assert row.box == tuple((min(axis), max(axis)) for axis in zip(*inside, strict=True))


@given(groups, st.data())
def test_costs_choose_configs_not_rows(group: RowGroup, data: st.DataObject) -> None:
    """Other costs for the same configs change which config a row has, not which rows there are before they fall in."""
    least = data.draw(st.integers(0, CONFIGS - 1))
    cheaper = [{config: 0.5 if config == least else 1.0 for config in each} for each in group.costs]
    for row in few_rows(group, cheaper):
        configs = group.costs if len(row.problems) == 1 else group.shared
        if all(least in configs[problem] for problem in row.problems):
            assert row.config == least


@given(groups)
def test_what_is_far_apart_is_not_merged(group: RowGroup) -> None:
    """No box extends over more than REACH."""
    for row in rows_of(group):
        assert prod(high / low for low, high in row.box) <= REACH


def test_neighbours_with_a_config_in_common_share_a_row() -> None:
    """Runs of problems with one config are one row each."""
    group = line({0}, {1}, {1}, {2}, {2}, {3}, {3}, {4}, first=9)
    assert sorted((row.box[1], row.config) for row in rows_of(group)) == [
        ((9, 9), 0),
        ((10, 11), 1),
        ((12, 13), 2),
        ((14, 15), 3),
        ((16, 16), 4),
    ]


def test_a_narrow_row_lies_in_a_wide_one() -> None:
    """One problem that needs something else does not part those around it."""
    group = line({0}, {0}, {1}, {0}, {0}, first=9)
    assert sorted((row.box[1], row.config) for row in rows_of(group)) == [((9, 13), 0), ((11, 11), 1)]


def test_the_cheaper_of_equally_good_configs_is_taken() -> None:
    """Where several configs serve all problems of a row, the least sum of costs decides, then the lower number."""
    sizes: list[Point] = [(1, 8, 8, 8), (1, 9, 8, 8)]
    for costs, cheapest in (({0: 1.0, 2: 1.0}, {0: 1.015, 2: 1.0}), 2), (({1: 1.0, 2: 1.0}, {1: 1.0, 2: 1.0}), 1):
        assert rows_of(RowGroup([0, 1], sizes, costs, costs))[0].config == cheapest


def test_what_is_not_shared_is_for_one_problem() -> None:
    """Neighbours with one config have a row each, if one of them does not share it."""
    group = line({0}, {0}, {0}, {0}, first=9)._replace(shared=[{0}, {0}, set(), {0}])
    assert sorted(row.box[1] for row in rows_of(group)) == [(9, 12)]
    group = line({0}, {0}, first=9)._replace(shared=[{0}, set()])
    assert sorted(row.box[1] for row in rows_of(group)) == [(9, 9), (10, 10)]
