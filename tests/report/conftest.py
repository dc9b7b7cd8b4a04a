"""Files for reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.report.measured import H200, ROWS, write_dataset


@pytest.fixture
def table(table_file: Callable[..., Path]) -> Path:
    """The rows, in a table of their own."""
    return table_file("mine.json", *ROWS)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """The problems: two that the range answers, one that the open row does, a miss, and the exact one."""
    return write_dataset(tmp_path / "timings.msgpack", H200)
