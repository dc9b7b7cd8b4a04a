"""The mask and the modification of scores that stand for each class of them, and the tensors that these capture."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from diode_lut.domain.problem import Problem
from diode_lut.domain.variants import Modifications

WINDOW = 1024
"""Keys that a query of a sliding window sees, itself included."""

_DOCUMENTS = 8
"""Documents in a sequence, all equally long."""

_SOFT_CAP = 20.0

Modification = Callable[..., Any]


# PyTorch passes all indices to each.
# ruff: noqa: ARG001


def _full(b: Any, h: Any, m: Any, n: Any) -> Any:
    return b.new_ones(size=(), dtype=torch.bool)


def _causal(b: Any, h: Any, m: Any, n: Any) -> Any:
    return m >= n


def _window(b: Any, h: Any, m: Any, n: Any) -> Any:
    return (m >= n) & (m - n < WINDOW)


def _document(b: Any, h: Any, m: Any, n: Any, captured: Any) -> Any:
    return captured[m] == captured[n]


def _plain(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    return score


def _capped(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    return torch.tanh(score / _SOFT_CAP) * _SOFT_CAP


def _biased(score: Any, b: Any, h: Any, m: Any, n: Any, captured: Any) -> Any:
    return score + captured[h]


MASK_MODS: dict[str, Modification] = {"full": _full, "causal": _causal, "computed": _window, "captured": _document}
"""What stands for each of MASKS, where there are as many queries as keys."""

SCORE_MODS: dict[str, Modification] = {"plain": _plain, "computed": _capped, "captured": _biased}


def captured_by(problem: Problem, device: str) -> dict[str, torch.Tensor]:
    """The tensors that the mask and the modification of scores read, under ``mask`` and ``score``."""
    modifications, found = Modifications.of(problem.variant), {}
    if modifications.mask == "captured":
        length = max(problem.m, problem.n)
        documents = torch.arange(length, dtype=torch.int32, device=device) * min(_DOCUMENTS, length) // length
        found["mask"] = documents.to(torch.int32)
    if modifications.score == "captured":
        found["score"] = torch.randn(problem.h, device=device)
    return found


def with_captured(modification: Modification, captured: torch.Tensor | None) -> Modification:
    """The modification, which reads this tensor if there is one, as a function of the indices."""
    return modification if captured is None else partial(modification, captured=captured)
