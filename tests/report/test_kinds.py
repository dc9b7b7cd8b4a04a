"""The kinds of problems that have a panel on the page."""

from diode_lut.problem import Problem
from diode_lut.report import ShownKind, kinds_of
from diode_lut.table import Candidate, Entry
from diode_lut.templates.config import ATEN


def row(op: str | None, dtype: str | None, layout: str | None) -> Entry:
    return Entry(op, dtype, layout, None, None, None, None, None, (Candidate(ATEN),))


def test_open_rows_belong_to_the_kinds_that_they_cover() -> None:
    """A row with a field left out has a kind of its own only if it covers no other kind; kinds are sorted."""
    rows = [row("bmm", None, None), row("mm", None, "nn"), row("mm", "float16", "nn"), row("mm", "float32", "nt")]
    problems = [Problem("mm", "bfloat16", "nn", 16, 1, 1, 1, 1)]
    assert kinds_of(rows, problems) == [
        ShownKind("mm", "float16", "nn"),
        ShownKind("mm", "bfloat16", "nn"),
        ShownKind("mm", "float32", "nt"),
        ShownKind("bmm", None, None),
    ]


def test_a_row_for_any_op_is_for_gemms() -> None:
    """It has a kind of its own beside attention and grouped matmuls, which it does not cover."""
    attention = row("flex_attention", "bfloat16", "nt")
    grouped = row("grouped_mm", "bfloat16", "nt")
    assert kinds_of([row(None, None, None), attention, grouped], []) == [
        ShownKind("flex_attention", "bfloat16", "nt"),
        ShownKind("grouped_mm", "bfloat16", "nt"),
        ShownKind(None, None, None),
    ]


def test_a_row_for_everything() -> None:
    """A table whose only row is for everything has one kind; a table without rows has none."""
    assert kinds_of([row(None, None, None)], []) == [ShownKind(None, None, None)]
    assert kinds_of([], []) == []
