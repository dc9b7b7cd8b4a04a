"""The merge command: two tables in, or three, one out."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from diode_lut.table import read_table
from diode_lut.table.lint import check_file
from tests.commands import call

KEY = {"op": "mm", "dtype": "float16"}
ATEN = {"template": "aten"}
SPLIT = {"template": "decompose_k", "k_split": 2}
WIDER_SPLIT = {"template": "decompose_k", "k_split": 4}
merge = partial(call, "merge")
Tables = Callable[..., Path]


@pytest.fixture
def base(table_file: Tables) -> Path:
    return table_file("base.json", {**KEY, "m": [1, 8], "configs": [ATEN]}, {**KEY, "m": [9, 9], "configs": [ATEN]})


@pytest.fixture
def ours(table_file: Tables) -> Path:
    return table_file("ours.json", {**KEY, "m": [1, 8], "configs": [SPLIT]}, {**KEY, "m": [9, 9], "configs": [ATEN]})


def test_writes_what_both_made_of_the_base(base: Path, ours: Path, table_file: Tables, tmp_path: Path) -> None:
    """Changes of different rows come together; a row that one side removed is gone, and a line says so."""
    theirs = table_file("theirs.json", {**KEY, "m": [1, 8], "configs": [ATEN]})
    output = tmp_path / "out.json"
    result = merge(base, ours, theirs, "-o", output)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "mm float16 m 9: not changed by ours, removed by the other side: is gone\n"
    assert [entry.configs[0].template for entry in read_table(output).entries] == ["decompose_k"]
    assert check_file(output) == []


def test_a_conflict_leaves_a_valid_table(base: Path, ours: Path, table_file: Tables, tmp_path: Path) -> None:
    """The exit code is 1, the line names both kernels, and so does the note, which is all that check finds."""
    theirs = table_file(
        "theirs.json", {**KEY, "m": [1, 8], "configs": [WIDER_SPLIT]}, {**KEY, "m": [9, 9], "configs": [ATEN]}
    )
    output = tmp_path / "out.json"
    result = merge(base, ours, theirs, "-o", output)
    assert result.exit_code == 1
    assert result.stderr.startswith("CONFLICT: mm float16 m 1-8: ours decompose_k 2, theirs decompose_k 4: ours stays")
    (left,) = check_file(output)
    assert left.where == "entries[0].note"
    assert read_table(output).entries[0].note == "merge conflict: ours decompose_k 2, theirs decompose_k 4"


def test_prints_the_table_without_an_output(ours: Path, base: Path) -> None:
    """What is printed is the table and nothing else; an empty base, which git gives, is none."""
    base.write_text("", encoding="utf-8")
    result = merge(base, ours, ours)
    assert len(json.loads(result.stdout)["entries"]) == 2


def test_a_table_with_invalid_rows_is_refused(base: Path, ours: Path, table_file: Tables, tmp_path: Path) -> None:
    """Merging would lose them, so nothing is written."""
    theirs = table_file("theirs.json", {**KEY, "m": [8, 1], "configs": [ATEN]})
    output = tmp_path / "out.json"
    result = merge(base, ours, theirs, "-o", output)
    assert (result.exit_code, output.exists()) == (1, False)
    assert "entries[0].m" in result.stderr


def test_two_or_three_tables_are_wanted(base: Path) -> None:
    """One table cannot be merged."""
    assert merge(base).exit_code == 2
