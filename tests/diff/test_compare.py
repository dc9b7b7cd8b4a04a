"""What is different between two tables."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diode_lut.diff import Change, compare
from diode_lut.hardware import Hardware
from diode_lut.table import Candidate, Entry, Range, Table
from diode_lut.templates.config import ATEN, Config
from tests.strategies import STRATEGIES, share

H200 = Hardware("NVIDIA H200", "sm_90", 132)
A, B = (Config("triton_mm", (size, 64, 32, 8, 3, 4)) for size in (16, 64))


def row(m: Range, *configs: Config, gain: int | None = None, n: Range | None = (8, 8), op: str = "mm") -> Entry:
    first, *others = configs or (A,)
    candidates = (Candidate(first, gain), *map(Candidate, others))
    return Entry(op, "float16", "nn", 16, None, m, n, (8, 8), candidates)


def changes(old: list[Entry], new: list[Entry]) -> list[Change]:
    return list(compare(Table(H200, old), Table(H200, new)).changes)


def kinds(old: list[Entry], new: list[Entry]) -> list[str]:
    return [change.kind for change in changes(old, new)]


@settings(max_examples=share(50))
@given(STRATEGIES.tables, st.randoms(use_true_random=False))
def test_order_is_no_difference(table: Table, random: object) -> None:
    """A table is the same as itself with its rows in another order."""
    shuffled = list(table.entries)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert not compare(table, Table(table.hardware, shuffled, table.provenance))


@settings(max_examples=share(150))
@given(st.lists(STRATEGIES.entries, max_size=6), st.lists(STRATEGIES.entries, max_size=6))
def test_changes_lead_from_the_old_rows_to_the_new(old: list[Entry], new: list[Entry]) -> None:
    """Taking away what the changes call old and adding what they call new makes the old table's rows the new one's."""
    rows = list(old)
    for change in changes(old, new):
        if change.old is not None:
            rows.remove(change.old)
        if change.new is not None:
            rows.append(change.new)
    assert sorted(map(repr, rows)) == sorted(map(repr, new))


@settings(max_examples=share(100))
@given(st.lists(STRATEGIES.entries, max_size=6), st.lists(STRATEGIES.entries, max_size=6))
def test_a_diff_can_be_turned_round(old: list[Entry], new: list[Entry]) -> None:
    """The other way round as many rows come as went, and as many are widened as were narrowed."""
    one, other = (compare(Table(H200, x), Table(H200, y)).counts for x, y in ((old, new), (new, old)))
    turned = {"added": "removed", "removed": "added", "narrowed": "widened", "widened": "narrowed"}
    assert {turned.get(kind, kind): count for kind, count in one.items()} == other


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (row((1, 8), A), row((1, 8), B), "winner"),
        (row((1, 8), A, B), row((1, 8), A), "details"),
        (row((1, 8), A, gain=1100), row((1, 8), A, gain=1200), "details"),
        (row((1, 8), A), row((1, 8), A)._replace(note="x"), "details"),
        (row((1, 8), A), row((1, 4), A), "narrowed"),
        (row((1, 8), A), row((1, 8), A, n=None), "widened"),
        (row((1, 8), A), row((1, 4), B), "narrowed"),
    ],
)
def test_kinds_of_changes(old: Entry, new: Entry, kind: str) -> None:
    """What became of a row has one name."""
    (change,) = changes([old], [new])
    assert (change.kind, change.old, change.new) == (kind, old, new)


def test_rows_that_no_problem_fits_are_narrowed_too() -> None:
    """Both cover nothing, because mm has no batch of two; but what the one says lies inside the other."""
    wide, narrow = (row((1, 8), n=sizes)._replace(b=(2, 2)) for sizes in (None, (8, 8)))
    assert kinds([wide], [narrow]) == ["narrowed"]
    assert kinds([narrow], [wide]) == ["widened"]


def test_a_range_that_moved_is_another_row() -> None:
    """Rows are paired only where one lies inside the other."""
    assert kinds([row((1, 8))], [row((2, 9))]) == ["removed", "added"]
    assert kinds([row((1, 8))], [row((1, 4), op="addmm")]) == ["removed", "added"]


def test_rows_with_the_same_winner_are_paired_first() -> None:
    """Of the two parts that a row was cut into, the one that kept its kernel is what is left of it."""
    found = changes([row((1, 8), A)], [row((1, 7), B), row((8, 8), A)])
    assert [(change.kind, change.row.configs) for change in found] == [("added", (B,)), ("narrowed", (A,))]


def test_the_header_counts() -> None:
    """Another version of the software is a difference, of the field that says it."""
    one, other = (Table(H200, [row((1, 8))], {"torch": version}) for version in ("2.11.0", "2.13.0"))
    diff = compare(one, other)
    assert diff
    assert diff.header == (("provenance.torch", "2.11.0", "2.13.0"),)


def test_an_unbatched_op_has_no_other_batch_than_one() -> None:
    """A row for mm with b left out and one with b 1 cover the same."""
    one = row((1, 8), ATEN)
    assert kinds([one], [one._replace(b=(1, 1))]) == ["details"]
