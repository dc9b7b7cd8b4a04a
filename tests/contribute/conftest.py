"""Everything is measured by the measurer in measurers.py."""

import pytest

from diode_lut.measure import MEASURERS
from tests.contribute import measurers


@pytest.fixture(autouse=True)
def computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEASURERS, "autotune", "tests.contribute.measurers:measure")
    monkeypatch.setattr(measurers, "noise", 0.0)
