"""Confidence is what can be relied on, not what happened to be found."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diode_lut.distill.calibrate import Regression, calibration_of


@pytest.mark.parametrize(("good", "among", "expected"), [(19, 20, 0.8040), (60, 60, 0.9569), (950, 1000, 0.9374)])
def test_the_last_confidence_is_a_lower_bound(good: int, among: int, expected: float) -> None:
    """Expected is what SciPy has: ``binomtest(good, among).proportion_ci(0.9, "wilson").low``."""
    found = calibration_of(np.arange(among, dtype=float), np.arange(among) < good, 0.0)
    assert found.confidences[-1] == pytest.approx(expected, abs=2e-4)


@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_confidence_never_rises_with_the_doubt(good: list[bool]) -> None:
    """Nor is it ever certain."""
    found = calibration_of(np.random.default_rng(1).normal(size=len(good)), np.array(good), 0.0)
    assert list(found.doubts) == sorted(found.doubts)
    assert list(found.confidences) == sorted(found.confidences, reverse=True)
    assert all(0 <= confidence < 1 for confidence in found.confidences)


def test_those_with_the_same_doubt_count_together() -> None:
    """Of equal doubts the order says nothing: half of all answers are good, whichever come first."""
    good = np.arange(100) < 50
    for doubts in (np.zeros(100), np.linspace(0, 4e-5, 100)):
        assert calibration_of(doubts, good, 0.0).confidence(0.0) == pytest.approx(0.4190, abs=2e-4)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=300), st.randoms())
def test_the_order_of_answers_does_not_matter(answers: list[tuple[int, bool]], shuffled: random.Random) -> None:
    """The same doubts and outcomes, in another order, mean the same."""
    found = []
    for _ in range(2):
        doubts, good = zip(*answers, strict=True)
        found.append(calibration_of(np.array(doubts, float), np.array(good), 0.0))
        shuffled.shuffle(answers)
    assert found[0] == found[1]
    assert found[0].doubts == tuple(sorted({float(doubt) for doubt, _ in answers}))


def test_regression_finds_what_doubts_follow_from() -> None:
    """Of outcomes drawn with known odds it finds their weights, and what has no influence has none."""
    draw = torch.Generator().manual_seed(1)
    known = torch.randn(40_000, 3, generator=draw) * torch.tensor([0.1, 1.0, 10.0]) + 5.0
    odds = known @ torch.tensor([8.0, 1.0, 0.0]) - 46.0
    bad = (torch.rand(len(known), generator=draw) < torch.sigmoid(odds)).float()
    found = Regression.of(known, bad)
    assert found.weights.tolist() == pytest.approx([8.0, 1.0, 0.0], rel=0.05, abs=0.01)
    assert found.doubts(known).mean().item() == pytest.approx(odds.mean().item(), abs=0.05)
