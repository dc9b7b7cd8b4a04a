"""What a table knows about itself and its file."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.table import Candidate, Entry, Table, read_table, to_bytes
from diode_lut.templates.config import ATEN

Save = Callable[[str | bytes], Path]

GPU = Hardware("GPU", "sm_90", 132)


def _row(**key: Any) -> Entry:
    left_out = dict.fromkeys(("op", "dtype", "layout", "align", "b", "m", "n", "k"))
    return Entry(**{**left_out, **key}, candidates=(Candidate(ATEN),))


def test_the_most_specific_entry_answers() -> None:
    """Exact beats range, a narrow range beats a wide one, and anything beats a row without a key."""
    anything, wide, narrow, exact = (_row(), _row(m=(1, 100)), _row(m=(1, 10)), _row(m=(5, 5)))
    table = Table(GPU, [anything, wide, narrow, exact])
    problem = Problem("mm", "float16", "nn", 16, 1, 5, 5, 5)
    assert table.covering(problem) == [exact, narrow, wide, anything]
    answers = [table.lookup(problem._replace(m=m)) for m in (5, 6, 50, 500)]
    assert answers == [exact, narrow, wide, anything]


def test_a_table_without_a_matching_entry_has_no_answer() -> None:
    """A lookup that no entry covers gives None."""
    table = Table(GPU, [_row(op="bmm")])
    assert table.lookup(Problem("mm", "float16", "nn", 16, 1, 5, 5, 5)) is None


@given(data=st.data())
def test_lookup_is_the_first_of_covering(data: st.DataObject, draw_from: Any) -> None:
    """``lookup`` answers with the entry that ``covering`` has first."""
    table = Table(GPU, data.draw(st.lists(draw_from.entries, max_size=12)))
    problem = data.draw(draw_from.problems)
    assert table.lookup(problem) == next(iter(table.covering(problem)), None)


def test_the_digest_is_that_of_the_file(good: str, save: Save) -> None:
    """A table from a file has the file's digest, even if the file is not in canonical form; any other its own."""
    text = json.dumps(json.loads(good))
    table = read_table(save(text))
    assert table.digest == hashlib.sha256(text.encode()).hexdigest()
    again = Table(table.hardware, table.entries, table.provenance)
    assert again.digest == hashlib.sha256(to_bytes(again)).hexdigest() == read_table(save(good)).digest


def test_tables_are_equal_if_they_say_the_same(good: str, save: Save) -> None:
    """Order of rows and layout of the file do not matter; hardware, provenance and rows do."""
    table = read_table(save(good))
    entries, provenance = table.entries, table.provenance
    same = Table(table.hardware, reversed(entries), provenance)
    assert table == same
    assert hash(table) == hash(same)
    assert table != Table(GPU, entries, provenance)
    assert table != Table(table.hardware, entries)
    assert table != Table(table.hardware, entries[:1], provenance)


def test_the_line_of_an_entry_is_found(good: str, save: Save) -> None:
    """Lines are those of the file as it is, whatever its layout."""
    table = read_table(save(good))
    assert [table.line_of(entry) for entry in table.entries] == [7, 11]
    table = read_table(save(json.dumps(json.loads(good), indent=2)))
    lines = table.path.read_text().splitlines() if table.path else []
    assert ['"addmm"' in lines[table.line_of(entry) or 0] for entry in table.entries] == [True, False]


def test_lines_allow_for_rows_that_were_skipped(good: str, save: Save) -> None:
    """Rows that are left out of the table still take up lines."""
    row = good[good.index('{"op": "bmm"') : good.index("\n]\n}\n")]
    text = good.replace(row, ",\n".join([row, "7", row.replace("bmm", "mm"), "8", "9", row.replace("bmm", "baddbmm")]))
    table = read_table(save(text))
    lines = [table.line_of(entry) for entry in table.entries]
    assert lines == [7, 11, 15, 20]
    assert [number + 1 for number, line in enumerate(text.splitlines()) if line.startswith('{"op')] == lines


def test_there_is_no_line_without_the_file(good: str, save: Save) -> None:
    """A table in memory, a file that has changed or gone, and an entry of another table have no lines."""
    path = save(good)
    table = read_table(path)
    assert Table(table.hardware, table.entries).line_of(table.entries[0]) is None
    assert table.line_of(_row()) is None
    save(good + "\n")
    assert table.line_of(table.entries[0]) is None
    path.unlink()
    assert table.line_of(table.entries[0]) is None
