"""Merging two tables, with what both came from or without."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diode_lut.errors import TableError
from diode_lut.hardware import Hardware
from diode_lut.table import Candidate, Entry, Range, Table
from diode_lut.table.edit import Merged, merge
from diode_lut.table.format import key_text
from diode_lut.table.lookup import overlaps, repeats
from diode_lut.templates.config import ATEN, Config
from tests.strategies import STRATEGIES, share

H200 = Hardware("NVIDIA H200", "sm_90", 132)
A, B, C = (Config("triton_mm", (size, 64, 32, 8, 3, 4)) for size in (16, 32, 64))


def row(config: Config = A, m: Range = (1, 8), *, gain: int | None = None, **fields: Any) -> Entry:
    entry = Entry("mm", "float16", "nn", 16, None, m, (8, 8), (8, 8), (Candidate(config, gain),))
    return entry._replace(**fields)


def table(*entries: Entry, torch: str = "2.11.0", **fields: Any) -> Table:
    return Table(H200, entries, {"torch": torch, **fields})


def contradictory(entries: tuple[Entry, ...]) -> bool:
    reachable = {number: entry for number, entry in enumerate(entries) if entry.volume}
    return any(repeats(reachable)) or any(overlaps(reachable))


def sound(entries: list[Entry]) -> list[Entry]:
    """Without those that contradict an earlier one."""
    kept: list[Entry] = []
    for entry in entries:
        if entry.volume and not contradictory((*kept, entry)):
            kept.append(entry)
    return kept


tables = st.lists(STRATEGIES.entries, max_size=5).map(sound).map(lambda rows: table(*rows))
edits = st.tuples(tables, tables, st.integers(0, 31), st.integers(0, 31)).map(
    lambda drawn: table(*sound([*_some(drawn[0], drawn[2]), *_some(drawn[1], drawn[3])]))
)


def _some(whole: Table, mask: int) -> list[Entry]:
    return [entry for number, entry in enumerate(whole.entries) if mask >> number & 1]


@settings(max_examples=share(80))
@given(tables, tables)
def test_what_one_side_changed_is_taken(base: Table, changed: Table) -> None:
    """If the other side left everything as it was, or did the same, the result is what was made of it."""
    for ours, theirs in ((base, changed), (changed, base), (changed, changed)):
        merged = merge(base, ours, theirs)
        assert merged.table == changed
        assert not merged.conflicts


@settings(max_examples=share(80))
@given(tables, tables)
def test_uniting_with_itself_or_nothing_changes_nothing(one: Table, other: Table) -> None:
    """Without a base, a table comes out as it went in, if the other has the same rows or none."""
    assert merge(None, one, one).table == one
    assert merge(None, one, table()).table == one
    assert merge(None, table(), one).table == one


@pytest.mark.slow
@settings(max_examples=share(150))
@given(st.none() | tables, edits, edits)
def test_no_row_is_lost_or_doubled_without_a_remark(base: Table | None, ours: Table, theirs: Table) -> None:
    """Each row of either side is in the result, or something is said about its key; and the result is sound."""
    merged = merge(base, ours, theirs)
    said = " ".join(map(str, merged.remarks))
    assert not contradictory(merged.table.entries)
    for entry in (*ours.entries, *theirs.entries):
        assert entry in merged.table.entries or key_text(entry) in said or entry in (base.entries if base else ())
    for entry in merged.table.entries:
        assert any(entry.key == other.key for other in (*ours.entries, *theirs.entries))


@settings(max_examples=share(100))
@given(tables, st.integers(0, 31), st.integers(0, 31))
def test_rows_that_both_removed_stay_removed(base: Table, our_mask: int, their_mask: int) -> None:
    """Removals of both sides add up, and each is said."""
    ours, theirs = (table(*_some(base, mask)) for mask in (our_mask, their_mask))
    merged = merge(base, ours, theirs)
    assert merged.table == table(*_some(base, our_mask & their_mask))
    assert len(merged.remarks) == len(set(ours.entries) ^ set(theirs.entries))


@pytest.mark.parametrize(
    ("ours", "theirs", "reason"),
    [
        (row(B, gain=1100), row(C, gain=1200), "it gains more over aten"),
        (row(B, gain=1200, problems=1), row(C, gain=1201, problems=2), "it has more measured problems behind it"),
        (row(B, gain=1900), row(C, note="by hand"), "it has a note"),
        (row(B), row(C, problems=3), "it has more measured problems behind it"),
    ],
)
def test_the_better_evidence_wins_on_either_side(ours: Entry, theirs: Entry, reason: str) -> None:
    """Whoever has it, the row with clearly better evidence stays, and the remark says why and names both kernels."""
    for one, other, name in ((ours, theirs, "theirs"), (theirs, ours, "ours")):
        merged = merge(table(row(A)), table(one), table(other))
        assert merged.table.entries == (theirs,)
        (remark,) = merged.remarks
        assert remark.text.endswith(f"{name} stays: {reason}")
        assert str(B) in remark.text
        assert str(C) in remark.text


def test_a_gain_that_the_base_has_for_another_config_is_not_believed() -> None:
    """A row whose config was changed by hand keeps the old config's gain, which is no evidence, nor the best."""
    base, edited, measured = row(A, gain=1500), row(B, gain=1500), row(C, gain=1100)
    merged = merge(table(base), table(edited), table(measured))
    assert conflict(merged).configs == (B,)
    best = merge(table(base), table(edited), table(measured), "best")
    assert (best.table.entries, best.conflicts) == ((measured,), ())
    (remark,) = best.remarks
    assert remark.text.endswith("theirs stays: the other gain was measured for another config")


def test_newer_software_decides_last() -> None:
    """Version 2.13 is newer than 2.9, and than 2.11."""
    for older in ("2.9.1", "2.11.0+cu130"):
        merged = merge(None, table(row(B), torch="2.13.0+cpu"), table(row(C), torch=older))
        assert merged.table.entries == (row(B),)
        assert merged.table.provenance["torch"] == "2.13.0+cpu"


def conflict(merged: Merged) -> Entry:
    (entry,) = merged.table.entries
    assert len(merged.conflicts) == 1
    return entry


def test_equal_evidence_is_a_conflict_that_names_both() -> None:
    """Ours stays, its note and the remark name both kernels."""
    merged = merge(table(row(A)), table(row(B, gain=1100)), table(row(C, gain=1105)))
    entry = conflict(merged)
    assert entry.configs == (B,)
    for text in (entry.note or "", str(merged.conflicts[0])):
        assert f"ours {B} (1.100), theirs {C} (1.105)" in text


def test_two_notes_are_a_conflict() -> None:
    """What two people wrote by hand no figure decides; nothing that they wrote is lost."""
    entry = conflict(merge(None, table(row(B, note="mine", gain=1500)), table(row(C, note="yours"))))
    assert entry.configs == (B,)
    assert entry.note is not None
    assert entry.note.startswith("mine; merge conflict: ")


def test_the_same_kernel_is_no_conflict() -> None:
    """Where only gains within noise differ, ours stays."""
    merged = merge(table(row(A)), table(row(B, gain=1100)), table(row(B, gain=1105)))
    assert (merged.table.entries, merged.conflicts) == ((row(B, gain=1100),), ())


def test_a_row_removed_here_and_changed_there_stays_as_a_conflict() -> None:
    """It is not lost, and people are asked."""
    for ours, theirs in ((table(), table(row(B))), (table(row(B)), table())):
        assert conflict(merge(table(row(A)), ours, theirs)).configs == (B,)


def test_new_rows_that_contradict_each_other_are_settled_by_evidence() -> None:
    """Rows of the same size that share problems cannot both stay; of others, the narrower one goes first."""
    one, other = row(B, (1, 8), problems=2), row(C, (5, 12), problems=5)
    merged = merge(None, table(one), table(other))
    assert merged.table.entries == (other,)
    assert "mm float16 nn align 16 m 1-8" in str(merged.remarks[0])
    nested = row(ATEN, (6, 7))
    assert set(merge(None, table(one), table(nested)).table.entries) == {one, nested}


def test_rows_for_other_values_of_n_do_not_contradict_each_other() -> None:
    """Rows with another ``n_align`` stay, although their ranges overlap."""
    one, other = row(B, n=(1024, 4096), n_align=16), row(C, n=(1023, 4095), n_align=2)
    merged = merge(None, table(one), table(other))
    assert set(merged.table.entries) == {one, other}
    assert not merged.remarks


def test_provenance_names_all_datasets_and_the_newer_date() -> None:
    """Lists are united; where texts differ the newer stays, and a remark says so."""
    ours = table(datasets=["a", "b"], measured_on="2026-02-01")
    theirs = table(datasets=["b", "c"], measured_on="2026-11-21")
    merged = merge(None, ours, theirs)
    assert merged.table.provenance["datasets"] == ["a", "b", "c"]
    assert merged.table.provenance["measured_on"] == "2026-11-21"
    assert [remark.about for remark in merged.remarks] == ["provenance.measured_on"]


def test_tables_for_different_devices_do_not_merge() -> None:
    """Rows for one device say nothing about another."""
    with pytest.raises(TableError, match=r"is for NVIDIA H100 .*, but the other table is for NVIDIA H200"):
        merge(None, table(), Table(Hardware("NVIDIA H100", "sm_90", 132), ()))
