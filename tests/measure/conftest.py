"""Collecting with the measurers in measurers.py."""

from pathlib import Path

import pytest

from diode_lut.measure import MEASURERS
from tests.measure.collection import Collection


@pytest.fixture
def collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Collection:
    """A collection in which every stage is measured by those in measurers.py."""
    from tests.measure.measurers import finalists  # which imports torch

    for stage, function in {"autotune": "measure", "sweep": "sweep", "final": "final"}.items():
        monkeypatch.setitem(MEASURERS, stage, f"tests.measure.measurers:{function}")
    monkeypatch.setattr("diode_lut.measure.collector.finalists", finalists)
    return Collection(tmp_path)
