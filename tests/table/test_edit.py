"""Changing single rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diode_lut.errors import TableError
from diode_lut.hardware import Hardware
from diode_lut.table import Candidate, Entry, Table, write_table
from diode_lut.table.edit import set_row, unset_row
from diode_lut.table.lint import check_file
from diode_lut.templates.config import ATEN, Config
from tests.strategies import share

GPU = Hardware("GPU", "sm_90", 132)


def row(m: tuple[int, int] | None, config: Config = ATEN, **fields: Any) -> Entry:
    key = {"op": "mm", "dtype": "float16", "layout": "nn", "align": 16, "b": None, "n": (8, 8), "k": (8, 8), **fields}
    return Entry(candidates=(Candidate(config),), m=m, **key)


@settings(max_examples=share(50))
@given(data=st.data())
def test_a_good_table_stays_good(data: st.DataObject, draw_from: Any, tmp_path_factory: Any) -> None:
    """Whatever rows are set, one after the other, is refused or leaves a table that passes check and answers so."""
    path: Path = tmp_path_factory.getbasetemp() / "edited.json"
    table = Table(GPU, [])
    for entry in data.draw(st.lists(draw_from.entries, max_size=8)):
        try:
            table = set_row(table, entry).table
        except TableError:
            continue
        assert entry in table.entries
        write_table(table, path)
        assert check_file(path) == []


def test_a_row_with_the_same_key_is_replaced() -> None:
    """There is one row for a key: the new one, whatever the old one said."""
    old, new = row((1, 8), problems=3, note="built"), row((1, 8), Config("decompose_k", (2,)), note="by hand")
    edit = set_row(Table(GPU, [old, row((9, 9))]), new)
    assert edit.table.entries == (row((9, 9)), new)
    assert (edit.gone, edit.new, edit.narrower, edit.wider) == (old, new, (), ())


def test_rows_about_the_same_problems_are_named() -> None:
    """Rows that are narrower and wider than the new one are told apart, the most specific first."""
    wide, wider, narrow = row((1, 8)), row(None), row((2, 2))
    edit = set_row(Table(GPU, [wider, row((9, 9)), wide, narrow]), row((2, 4)))
    assert (edit.narrower, edit.wider) == ((narrow,), (wide, wider))


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (
            row((3, 4)),
            "would cover mm 4x8x8 float16 nn align 16 with the same specificity as mm float16 nn align 16 m 4-5",
        ),
        (row((1, 2), dtype=None), "it would never be used: more specific rows cover all of its problems"),
        (row((7, 7)), "it would leave nothing to answer to mm float16 nn align 16 m 7-8 n 8 k 8 (unset that first)"),
        (row((9, 9), Config("triton_bmm", (64, 64, 32, 8, 3, 4))), "configs[0].template: triton_bmm cannot do mm"),
        (row((9, 9), Config("decompose_k", (16,))), "configs[0].k_split: 16 divides no k of the row (8)"),
    ],
)
def test_what_would_be_wrong_is_refused(new: Entry, message: str) -> None:
    """Rows that check would report, or that would make it report others, are errors that say so."""
    rows = [row((1, 2), dtype=dtype) for dtype in ("float16", "bfloat16", "float32", "tf32")]
    table = Table(GPU, [*rows, row((4, 5)), row((7, 8)), row((8, 8))])
    with pytest.raises(TableError) as raised:
        set_row(table, new)
    assert message in str(raised.value)


def test_a_row_for_what_rows_of_build_leave_out_is_set() -> None:
    """Rows for some values of N leave the others to a row for any."""
    built = [row(m, n=(1024, 2048), n_align=16) for m in ((1, 4), (5, 8))]
    edit = set_row(Table(GPU, built), row((1, 8), n=(1024, 2048)))
    assert edit.narrower == tuple(built)


def test_a_row_is_removed_by_its_key() -> None:
    """The row with the key goes, whatever it answers; the rest stays."""
    table = Table(GPU, [row((1, 8), note="x"), row((9, 9))])
    edit = unset_row(table, row((1, 8)))
    assert edit.table.entries == (row((9, 9)),)
    assert edit.gone == row((1, 8), note="x")


def test_a_key_that_no_row_has_is_an_error() -> None:
    """The message names the closest row."""
    with pytest.raises(TableError, match=r"no row has the key mm .* m 2 .* \(the closest: mm .* m 1-8 n 8 k 8\)"):
        unset_row(Table(GPU, [row((1, 8)), row(None)]), row((2, 2)))


def test_the_file_is_named(good: str, save: Callable[[str], Path]) -> None:
    """Of a table from a file, errors begin with the file."""
    from diode_lut.table import read_table

    path = save(good)
    with pytest.raises(TableError, match="^" + str(path)):
        unset_row(read_table(path), row((2, 2)))
