"""Evaluating: what a selector's choices cost, on problems where many configs were timed."""

from __future__ import annotations

from diode_lut.evaluate.evaluate import evaluate
from diode_lut.evaluate.evaluation import (
    EXACT,
    MISS,
    MODEL,
    RANGE,
    SLOWER,
    Answer,
    Case,
    Evaluation,
    Outcome,
    Select,
    Summary,
    answers_of,
    answers_of_model,
)

__all__ = [
    "EXACT",
    "MISS",
    "MODEL",
    "RANGE",
    "SLOWER",
    "Answer",
    "Case",
    "Evaluation",
    "Outcome",
    "Select",
    "Summary",
    "answers_of",
    "answers_of_model",
    "evaluate",
]
