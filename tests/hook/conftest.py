"""Tables for the hook, and a CUDA device that is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import diode_lut
from tests.fake_cuda import fake_cuda


@pytest.fixture
def h200() -> Iterator[None]:
    """Inductor believes in an H200."""
    with fake_cuda():
        yield


@pytest.fixture
def rows(table_file: Callable[..., Path]) -> Iterator[Callable[..., None]]:
    """Makes these rows the user's own table."""
    with diode_lut.config.patch(tables=(), tiers=("user",)):

        def use(*entries: dict[str, Any], **fields: Any) -> None:
            diode_lut.config.tables = (str(table_file(f"rows{len(diode_lut.config.tables)}.json", *entries, **fields)),)

        yield use
