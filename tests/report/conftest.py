"""Files for reports."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.report.measured import H200, ROWS, write_dataset


@pytest.fixture
def table(table_file: Callable[..., Path]) -> Path:
    """A table with ROWS."""
    return table_file("mine.json", *ROWS)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """PROBLEMS as a dataset: two for the range, one for the open row, a miss, and one for the exact row."""
    return write_dataset(tmp_path / "timings.msgpack", H200)
