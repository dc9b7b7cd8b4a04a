"""The regression for padded operands, fitted to problems that were timed with and without padding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diode_lut.distill.targets import Target
from diode_lut.kernels.config import ATEN
from diode_lut.kernels.padding import pad_multiple
from diode_lut.model.padding import PaddingModel, can_be_padded, padding_features, scaled, terms_of

MIN_PADDED_PROBLEMS = 60
"""Minimum number of problems that the regression is fitted to."""

_MIN_OF_KIND = 10
"""Minimum number of problems that make a pair of op and dtype known."""

_L2_WEIGHT = 30.0
"""Weight of the squared weights, of all terms but 1, in the sum of squared errors."""

_PARTS = 8
"""Number of parts in the cross-validation that gives the error."""

_DIGITS = 6
"""Digits after the point to which numbers are rounded."""

_Array = npt.NDArray[np.floating[Any]]


def fit_padding(targets: Sequence[Target], seed: int) -> PaddingModel | None:
    """The regression; None if too few problems were timed with padding. ``seed`` draws the parts for its error."""
    known = [target for target in targets if _padded_aten(target) is not None]
    counts = Counter((target.problem.op, target.problem.dtype) for target in known)
    kinds = tuple(sorted(kind for kind, count in counts.items() if count >= _MIN_OF_KIND))
    known = [target for target in known if (target.problem.op, target.problem.dtype) in kinds]
    if len(known) < MIN_PADDED_PROBLEMS:
        return None
    features = np.array([padding_features(target.problem) for target in known])
    mean, deviation = features.mean(0).round(_DIGITS), features.std(0).round(_DIGITS)
    deviation[deviation == 0] = 1
    terms = np.array([terms_of(scaled(row, mean, deviation)) for row in features])
    times = np.array([_padded_aten(target) for target in known])
    weights = tuple(_fitted(terms, times).round(_DIGITS).tolist())
    return PaddingModel(
        tuple(mean.tolist()), tuple(deviation.tolist()), weights, kinds, round(_error(terms, times, seed), _DIGITS)
    )


def _padded_aten(target: Target) -> float | None:
    """log(time of aten with padding / time of the best without)."""
    problem = target.problem
    time = target.padded.get(ATEN.padded(pad_multiple(problem.dtype))) if can_be_padded(problem) else None
    return None if time is None else time - target.best


def _fitted(terms: _Array, times: _Array) -> _Array:
    """The weights of a ridge regression."""
    penalty = _L2_WEIGHT * np.eye(terms.shape[1])
    penalty[0, 0] = 0
    weights: _Array = np.linalg.solve(terms.T @ terms + penalty, terms.T @ times)
    return weights


def _error(terms: _Array, times: _Array, seed: int) -> float:
    """Root mean squared error on problems that a regression was not fitted to."""
    parts = np.random.default_rng(seed).permutation(len(times)) % _PARTS
    errors = np.empty(len(times))
    for part in range(_PARTS):
        unseen = parts == part
        errors[unseen] = terms[unseen] @ _fitted(terms[~unseen], times[~unseen]) - times[unseen]
    return float(np.sqrt((errors**2).mean()))
