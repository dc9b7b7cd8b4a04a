"""Evaluating: what a selector's choices cost, on problems where many configs were timed."""

from __future__ import annotations

from diode_lut.evaluate.evaluate import evaluate
from diode_lut.evaluate.evaluation import SLOWER, Case, Evaluation, Outcome, Summary
from diode_lut.evaluate.select import EXACT, MISS, RANGE, Answer, Select, answers_of

__all__ = [
    "EXACT",
    "MISS",
    "RANGE",
    "SLOWER",
    "Answer",
    "Case",
    "Evaluation",
    "Outcome",
    "Select",
    "Summary",
    "answers_of",
    "evaluate",
]
