"""What commands read: whole tables, and the datasets that go with one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from diode_lut.errors import DatasetError, TableError

if TYPE_CHECKING:
    from diode_lut.dataset import Dataset
    from diode_lut.table import Table


def read_whole_table(path: Path, remedy: str) -> Table:
    """The table; TableError, which gives the remedy, if a row is invalid: what is written from it would lose it."""
    from diode_lut.table import read_table

    table = read_table(path)
    if table.errors:
        raise TableError(f"{table.errors[0]} ({remedy})")
    return table


def read_datasets_for(table: Table, inputs: Iterable[Path]) -> list[Dataset]:
    """The datasets, or DatasetError if one of them was measured on another device than the table is for."""
    from diode_lut.dataset import read_dataset

    datasets = [read_dataset(path, hardware=table.hardware) for path in inputs]
    for dataset in datasets:
        found = dataset.header.hardware
        if not found.same_device(table.hardware):
            raise DatasetError(f"{dataset.path}: measured on {found}, but {table.path} is for {table.hardware}")
    return datasets
