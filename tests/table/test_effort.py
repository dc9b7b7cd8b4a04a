"""The work of comparing rows has a limit in steps, and what was left out is said."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from diode_lut.api import explanation_of
from diode_lut.decide.decide import Sources, Tier
from diode_lut.decide.sources import TableSource
from diode_lut.diff import compare
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.table import Candidate, Entry, Range, Table, write_table
from diode_lut.table.edit import merge, set_row
from diode_lut.table.lint import check_file
from diode_lut.table.lookup import ROW_STEPS, STEP_ROWS, STEPS, Effort, overlaps, unreachable
from diode_lut.templates.config import ATEN, Config
from tests.commands import call

GPU = Hardware("GPU", "sm_90", 132)


def row(m: Range | None, n: Range | None = (8, 8), config: Config = ATEN, **fields: object) -> Entry:
    return Entry("mm", "float16", "nn", 16, None, m, n, (8, 8), (Candidate(config),))._replace(**fields)  # type: ignore[arg-type]


def tangled(count: int, side: int) -> list[Entry]:
    """Boxes of half the length along each axis, in any place: whether some cover another is hard to tell."""
    drawn = random.Random(0)

    def sizes() -> Range:
        low = drawn.randint(1, side // 2)
        return low, low + side // 2 + drawn.randint(-1, 1)

    return [row(sizes(), sizes(), op="bmm", b=sizes(), k=sizes()) for _ in range(count)]


def test_the_work_on_any_table_is_bounded() -> None:
    """Rows that overlap in all ways take no more than the steps that there are, and the others are named."""
    entries = dict(enumerate(tangled(2000, 64)))
    effort = Effort(200_000)
    found = set(unreachable(entries, effort))
    assert effort.left >= 0
    assert effort.undecided
    assert not found & effort.undecided
    assert found <= set(unreachable(entries, Effort(2_000_000)))


def test_a_hard_row_leaves_steps_for_the_others() -> None:
    """No row gets more than its share."""
    share = Effort(STEPS).share()
    assert share.left == ROW_STEPS
    effort = Effort(STEPS)
    effort.settle(Effort(ROW_STEPS - 7))
    assert effort.left == STEPS - 7


@pytest.mark.parametrize("count", [2_000, 20_000])
def test_rows_that_many_rows_cover_take_few_steps(count: int) -> None:
    """A row that is covered by many small ones is found, in a number of steps that hardly grows faster than theirs."""
    effort = Effort()
    parts = [row((size, size)) for size in range(1, count + 1)]
    assert list(unreachable(dict(enumerate([*parts, row((1, count))])), effort)) == [count]
    assert STEPS - effort.left < 300 * count


def test_looking_for_rows_that_are_not_there_is_work() -> None:
    """A row that shares no problem with thousands of others takes steps for some of them, and to prepare them."""
    others = [row((size, size), (1, 8)) for size in range(1, 50 * STEP_ROWS + 1)]
    effort = Effort()
    assert list(unreachable(dict(enumerate([*others, row((9000, 9015), (9, 9))])), effort)) == []
    assert STEPS - effort.left >= 8 * (len(others) + 1) + 50


def test_overlaps_that_take_too_long_are_not_looked_for() -> None:
    """Rows after the last step are undecided, those before are compared."""
    entries = {number: row((number, number + 100)) for number in range(1, 101)}
    effort = Effort(1000)
    found = dict(overlaps(entries, effort))
    assert set(found).isdisjoint(effort.undecided)
    assert {1} | found.keys() | effort.undecided == entries.keys()
    assert effort.undecided


def test_check_says_what_it_did_not_look_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a note with the number of rows, in each format, and the exit code is that of a good table."""
    monkeypatch.setattr("diode_lut.table.lookup.STEPS", 0)
    path = tmp_path / "t.json"
    write_table(Table(GPU, [row((1, 8)), row((2, 2)), row((9, 16))]), path)
    (unused, contradictory) = check_file(path)
    assert (unused.note, contradictory.note) == (True, True)
    words = "note: entries: rows that are never used were not looked for in 3 rows: too many"
    result = call("check", path)
    assert (result.exit_code, words in result.stdout) == (0, True)
    assert result.stderr == "1 file, 0 faults, 2 notes\n"
    assert call("check", path, "--format", "github").stdout.startswith("::notice file=")
    assert '"severity": "note"' in call("check", path, "--format", "json").stdout


def test_set_says_what_it_did_not_look_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is set whether or not it can be found out if it is ever used."""
    monkeypatch.setattr("diode_lut.table.lookup.STEPS", 0)
    assert set_row(Table(GPU, [row((1, 8))]), row((2, 4))).undecided == 2
    write_table(Table(GPU, [row((1, 8))]), tmp_path / "t.json")
    result = call("set", tmp_path / "t.json", "mm", "--m", "1-4", "--config", "aten", "--note", "x")
    assert "not looked for, because it takes too long: whether" in result.stdout


def test_diff_says_that_pairs_were_not_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rows that are narrowed are then called removed and added."""
    old, new = Table(GPU, [row((1, 8))]), Table(GPU, [row((2, 4))])
    assert (compare(old, new).counts, compare(old, new).unpaired) == ({"narrowed": 1}, False)
    monkeypatch.setattr("diode_lut.table.lookup.STEPS", 10)
    diff = compare(old, new)
    assert (diff.counts, diff.unpaired) == ({"added": 1, "removed": 1}, True)
    for table, name in ((old, "old.json"), (new, "new.json")):
        write_table(table, tmp_path / name)
    said = call("diff", tmp_path / "old.json", tmp_path / "new.json").stdout
    assert "rows: 1 added, 1 removed; not all that were narrowed or widened were looked for" in said


def test_diff_counts_masks_and_pairs_as_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without a partner take steps too, and each pair takes more than to find that it is none."""
    apart = Table(GPU, [row((size, size)) for size in range(1, 51)]), Table(GPU, [row((100, 101))] * 50)
    alike = Table(GPU, [row((1, 8))]), Table(GPU, [row((2, 4))])
    for (old, new), steps in ((apart, 8 * 50 + 49), (alike, 8 + 1 + 2 + 7)):
        monkeypatch.setattr("diode_lut.table.lookup.STEPS", steps)
        assert compare(old, new).unpaired


def test_merge_leaves_what_it_could_not_compare_to_people(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows stay, and it is a conflict."""
    monkeypatch.setattr("diode_lut.table.lookup.STEPS", 0)
    merged = merge(None, Table(GPU, [row((1, 8))]), Table(GPU, [row((2, 9))]))
    assert len(merged.table.entries) == 2
    assert [str(remark) for remark in merged.conflicts] == [
        "CONFLICT: rows: contradictions were not looked for in 2: too many cover some of the same sizes"
    ]


def test_merge_has_one_limit_for_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a row had to go, the others are compared again, with the steps that are left."""
    ours, theirs = Table(GPU, [row((1, 8)), row((20, 27))]), Table(GPU, [row((2, 9))])
    said = {}
    for steps in (40, 80):
        monkeypatch.setattr("diode_lut.table.lookup.STEPS", steps)
        said[steps] = [str(remark) for remark in merge(None, ours, theirs).conflicts]
    assert [steps for steps, remarks in said.items() if "were not looked for" in " ".join(remarks)] == [40]


def test_explain_shows_some_of_many_rows() -> None:
    """Of the rows that would have answered next the first ten are shown."""
    table = Table(GPU, [row((1, high)) for high in range(1, 31)])
    said = str(
        explanation_of(
            Sources(GPU, [Tier("user", (TableSource(table),))]), Problem("mm", "float16", "nn", 16, 1, 1, 8, 8)
        )
    )
    assert said.count("  then: ") == 9
    assert "\n  and 19 more rows" in said


def test_many_parts_do_not_nest_too_deeply(tmp_path: Path, save: Callable[[str], Path]) -> None:
    """A row that thousands of rows cover is reported as such, not as a table that cannot be read."""
    path = tmp_path / "t.json"
    write_table(Table(GPU, [*(row((size, size)) for size in range(1, 3001)), row((1, 3000))]), path)
    assert [error.reason for error in check_file(path)] == [
        "is never used: more specific rows cover all of its problems"
    ]
