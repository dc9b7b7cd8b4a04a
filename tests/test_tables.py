"""The shipped tables are what their datasets say."""

from pathlib import Path

import pytest

from diode_lut.build import build
from diode_lut.dataset import read_dataset
from diode_lut.table import Table, read_table, to_bytes

TABLES = Path(__file__).parent.parent / "tables"


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.json")), ids=lambda path: path.stem)
def test_a_table_comes_out_of_its_datasets(path: Path) -> None:
    """Building from the datasets that a table names gives the file, byte for byte."""
    shipped = read_table(path)
    found = {f"sha256:{each.digest}": each for each in map(read_dataset, (TABLES / "datasets").rglob(f"{path.stem}*"))}
    named = shipped.provenance["datasets"]
    assert isinstance(named, list)
    noted = Table(shipped.hardware, [entry for entry in shipped.entries if entry.note is not None])
    result = build([found[digest] for digest in named], previous=noted)
    assert to_bytes(result.table) == path.read_bytes()
