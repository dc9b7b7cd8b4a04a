"""The benchmark of adopting a device: what it makes of a table to see whether verify notices."""

from pathlib import Path

from bench_adopt import swap

from diode_lut.table import read_table

TABLES = Path(__file__).parent.parent / "tables"


def test_some_rows_have_the_configs_of_others() -> None:
    """Of three in ten rows at most the configs differ, most of these do, and each kind has the configs that it had."""
    table = read_table(TABLES / "nvidia-h100.json")
    swapped = swap(table, 0.3)
    differ = [row != other for row, other in zip(table.entries, swapped.entries, strict=True)]
    assert 0.1 < sum(differ) / len(differ) <= 0.3
    assert [row._replace(candidates=()) for row in swapped.entries] == [
        row._replace(candidates=()) for row in table.entries
    ]
    for kind in {row.kind for row in table.entries}:
        before, after = (
            sorted((row.candidates for row in each.entries if row.kind == kind), key=str) for each in (table, swapped)
        )
        assert before == after
