"""A model: which configs to expect the best times of, for one problem, and how sure that is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import inf, log1p
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diode_lut.model.candidates import Candidates, families, family_of
from diode_lut.model.kinds import Kind, unknown
from diode_lut.model.network import Scorer, Weights
from diode_lut.model.split import Split
from diode_lut.problem import Config, Hardware, Problem

LENGTH = 32
"""So many configs are ranked at most, which is the most that Inductor is ever given to choose from."""

GOOD = 0.05
"""Confidence is that the first config is slower than the best by no more than this fraction."""

_DIGITS = 4
"""Scores that agree in so many digits are equal."""

_SETTLED, _CLOSE = 4, 2e-4
"""The first so many places, the gain, and the confidence, are decided in double precision where numbers are so close.

In single precision they differ between processors, on which BLAS sums up in other orders, by 1e-5 or less. All
processes of a job have to come to the same answer.
"""


class Ranking(NamedTuple):
    """Configs, the fastest first, ``aten`` always among them, with the times expected of them, over that of ``aten``.

    ``confidence``, from 0 to 1, is in the first.
    """

    configs: tuple[Config, ...]
    times: tuple[float, ...]
    confidence: float


class Calibration(NamedTuple):
    """What a regret to expect means: the share of answers that were good, among those with no more than that regret.
    A model has one for the kinds of problems that it knows well, and one for the others.

    ``regrets`` are logarithms, upwards; ``confidences``, downwards, one for each.
    """

    regrets: tuple[float, ...]
    confidences: tuple[float, ...]

    def confidence(self, regret: float) -> float:
        """From 0 to 1; 0 where the regret is larger than all that were seen."""
        place = bisect_left(self.regrets, regret)
        return self.confidences[place] if place < len(self.confidences) else 0.0


class Model:
    """Ranks the candidates for a problem; read-only.

    ``candidates`` are what it chooses from, ``kinds`` are the problems that it knows, ``calibrations`` say how sure it
    is of those that it knows well and of the others, ``split`` says which problems it was not trained on. ``path`` is
    the file that it was read from and ``digest`` the SHA-256 of that file's bytes in hexadecimal; both are empty for
    one in memory.
    """

    def __init__(
        self,
        hardware: Hardware,
        weights: Weights,
        candidates: Sequence[Config],
        kinds: Sequence[Kind],
        calibrations: Mapping[bool, Calibration],
        split: Split,
        provenance: Mapping[str, Any] | None = None,
        *,
        path: Path | None = None,
        digest: str = "",
    ) -> None:
        self.hardware = hardware
        self.weights = weights
        self.candidates = tuple(candidates)
        self.kinds = tuple(kinds)
        self.calibrations = calibrations
        self.split = split
        self.provenance = provenance or {}
        self.path, self.digest = path, digest

    def unknown(self, problem: Problem) -> str:
        """Why the model has nothing to say about the problem; empty if it has."""
        return unknown(self.kinds, problem)

    def rank(self, problem: Problem, hardware: Hardware | None = None, gain: float = inf) -> Ranking | None:
        """The ranking for a problem on some hardware, by default the model's own; None if the problem is unknown.

        ``gain`` over aten is what will be asked of the first.
        """
        kind = self._kinds.get(problem[:4])
        if kind is None or kind.outside(problem):
            return None
        family, sm_count = family_of(problem), (hardware or self.hardware).sm_count
        candidates, calibration = self.families[family], self.calibrations[kind.well_known]
        applicable = np.flatnonzero(candidates.applicable(problem))
        for scorer in self._scorers[family]:
            scores, regrets = scorer.scores(problem, sm_count)
            scores = np.round(scores - scores[candidates.aten], _DIGITS)
            order = applicable[np.argsort(scores[applicable], kind="stable")]
            best = scores[order[: _SETTLED + 1]].tolist()
            if _settled(best, gain, float(regrets[order[0]]), calibration):
                break
        numbers = order[:LENGTH].tolist()
        if candidates.aten not in numbers:
            numbers[-1] = candidates.aten
        times = np.exp(scores[numbers]).tolist()
        configs = tuple(map(candidates.configs.__getitem__, numbers))
        return Ranking(configs, tuple(times), calibration.confidence(float(regrets[numbers[0]])))

    @cached_property
    def families(self) -> tuple[Candidates, Candidates]:
        """The candidates for products without a batch, and those for products with one."""
        return families(self.candidates)

    @cached_property
    def _kinds(self) -> dict[tuple[str, str, str, int], Kind]:
        return {kind.key: kind for kind in self.kinds}

    @cached_property
    def _scorers(self) -> list[tuple[Scorer, Scorer]]:
        """Of each family one in single precision, and one in double for where that is too close to call."""
        return [(Scorer(self.weights, each), Scorer(self.weights, each, np.float64)) for each in self.families]

    def __repr__(self) -> str:
        return f"<Model for {self.hardware}: {len(self.candidates)} candidates, {self.path or 'in memory'}>"


def _settled(best: list[float], gain: float, regret: float, calibration: Calibration) -> bool:
    """Whether slightly different scores and regrets would lead to the same answer."""
    apart = all(after - before > _CLOSE for before, after in pairwise(best)) and abs(best[0] + log1p(gain)) > _CLOSE
    return apart and calibration.confidence(regret - _CLOSE) == calibration.confidence(regret + _CLOSE)
