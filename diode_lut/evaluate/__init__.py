"""Evaluation of a table or a model: the times of its choices against the best, on measured problems."""

from __future__ import annotations

from diode_lut.evaluate.evaluation import (
    MISS,
    REGRET_CLASSES,
    REGRET_LIMITS,
    SLOWER,
    Case,
    Evaluation,
    Summary,
    evaluate,
    evaluate_on,
    usual_kernels,
)

__all__ = [
    "MISS",
    "REGRET_CLASSES",
    "REGRET_LIMITS",
    "SLOWER",
    "Case",
    "Evaluation",
    "Summary",
    "evaluate",
    "evaluate_on",
    "usual_kernels",
]
