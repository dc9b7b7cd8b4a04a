"""Confidence is what can be relied on, not what happened to be found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diode_lut.distill.calibrate import calibration_of


@pytest.mark.parametrize(("good", "among", "expected"), [(19, 20, 0.8040), (60, 60, 0.9569), (950, 1000, 0.9374)])
def test_the_last_confidence_is_a_lower_bound(good: int, among: int, expected: float) -> None:
    """Expected is what SciPy has: ``binomtest(good, among).proportion_ci(0.9, "wilson").low``."""
    found = calibration_of(np.arange(among, dtype=float), np.arange(among) < good)
    assert found.confidences[-1] == pytest.approx(expected, abs=2e-4)


@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_confidence_never_rises_with_the_regret(good: list[bool]) -> None:
    """Nor is it ever certain."""
    found = calibration_of(np.random.default_rng(1).normal(size=len(good)), np.array(good))
    assert list(found.regrets) == sorted(found.regrets)
    assert list(found.confidences) == sorted(found.confidences, reverse=True)
    assert all(0 <= confidence < 1 for confidence in found.confidences)


def test_nothing_held_out_is_no_confidence() -> None:
    """Whatever regret is expected."""
    assert calibration_of(np.empty(0), np.empty(0, np.bool_)).confidence(-9.0) == 0
