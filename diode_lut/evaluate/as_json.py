"""An evaluation as plain values, for a JSON file."""

from __future__ import annotations

from typing import Any

from diode_lut.evaluate.evaluation import Case, Evaluation, Summary

_DIGITS = 6


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """All figures, and the worst problems; fractions and factors with six digits, times in nanoseconds."""
    return {
        "against": str(evaluation.against),
        "unsolved": evaluation.unsolved,
        "all": _figures(evaluation.summary),
        "by": {
            name: {key: _figures(summary) for key, summary in summaries.items()}
            for name, summaries in evaluation.groups.items()
        },
        "worst": [_worst(case) for case in evaluation.worst],
    }


def _figures(summary: Summary) -> dict[str, float | None]:
    return {name: None if value is None else round(value, _DIGITS) for name, value in summary._asdict().items()}


def _worst(case: Case) -> dict[str, Any]:
    return {
        "problem": case.problem._asdict(),
        "source": case.source,
        "choice": case.choice.to_json(),
        "ns": case.ns,
        "best": case.best.to_json(),
        "best_ns": case.best_ns,
        "baseline_ns": case.baseline_ns,
        "regret": round(case.regret, _DIGITS),
    }
