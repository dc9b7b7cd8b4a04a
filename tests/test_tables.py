"""The shipped tables are what their datasets say."""

from pathlib import Path

import pytest

from diode_lut.build import build
from diode_lut.dataset import read_dataset
from diode_lut.table import Table, read_table, to_bytes
from diode_lut.templates.config import ATEN

TABLES = Path(__file__).parent.parent / "tables"


@pytest.mark.slow
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


def test_float32_rows_for_ranges_gain_at_each_measured_size() -> None:
    """The H100's rows for ranges of float32 matmuls name a config that was faster than aten wherever it was timed."""
    entries = read_table(TABLES / "nvidia-h100.json").entries
    ranges = [each for each in entries if each.dtype == "float32" and each.note is not None]
    gains: dict[tuple[int, int], list[float]] = {each.k: [] for each in ranges if each.k is not None}
    for path in (TABLES / "datasets" / "float32").glob("nvidia-h100*"):
        for record in read_dataset(path):
            for entry in ranges:
                if entry.k is not None and entry.covers(record.problem):
                    gains[entry.k].append(record.times[ATEN] / record.times[entry.best.config])
    assert {k: len(found) for k, found in gains.items()} == {(32, 32): 14, (64, 64): 24}
    assert min(min(found) for found in gains.values()) > 1.02
