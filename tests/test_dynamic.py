"""Decisions over the sizes of a problem that may change."""

from __future__ import annotations

import pytest

from diode_lut.selection.dynamic import MAX_SAMPLES, Axis, samples_over
from diode_lut.selection.selector import Selector, Tier
from diode_lut.selection.sources import THRESHOLD, ModelSource
from tests.model.small import H200, MM, model

SELECTOR = Selector(H200, [Tier("model", (ModelSource(model(confidence=0.99), H200),))])
LOW, HIGH = 3, 8000


@pytest.mark.parametrize("fields", ["m", "mn", "mnk"])
def test_the_number_of_combinations_is_bounded(fields: str) -> None:
    """However many sizes change, sources are asked at few combinations, the smallest and the largest among them."""
    axes = [Axis((name,), LOW, HIGH) for name in fields]
    samples = samples_over(SELECTOR, MM, axes, THRESHOLD, padding=False)
    assert len(fields) < len(samples) <= MAX_SAMPLES
    assert {(LOW,) * len(axes), (HIGH,) * len(axes)} <= {sample.sizes for sample in samples}
