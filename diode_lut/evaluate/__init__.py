"""Evaluating: what a selector's choices cost, on problems where many configs were timed."""

from __future__ import annotations

from diode_lut.evaluate.evaluate import evaluate
from diode_lut.evaluate.evaluation import (
    MISS,
    SLOWER,
    Case,
    Evaluation,
    Outcome,
    Summary,
)

__all__ = [
    "MISS",
    "SLOWER",
    "Case",
    "Evaluation",
    "Outcome",
    "Summary",
    "evaluate",
]
