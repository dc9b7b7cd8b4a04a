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

from diode_lut.domain.hardware import Hardware
from diode_lut.domain.problem import Problem
from diode_lut.kernels.architecture import architecture
from diode_lut.kernels.config import Config
from diode_lut.model.candidates import Candidates, families, family_of
from diode_lut.model.kinds import Kind, unknown
from diode_lut.model.network import Scorer, Weights
from diode_lut.model.split import Split

LENGTH = 32
"""So many configs are ranked at most, which is the most that Inductor is ever given to choose from."""

GOOD = 0.05
"""Confidence is that the first config is slower than the best by no more than this fraction."""

MOST_LEAD = 0.5
"""The score of a first choice counts as no further ahead than this."""

_FARTHEST = 10.0
"""Logarithms of times over that of aten are expected to be no further from 0: so times are finite and not zero."""

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
    """What doubts mean: the share of answers that were good, among those with no more doubt.

    ``doubts`` are logarithms of odds, upwards; ``confidences``, downwards, one for each. A doubt is ``per_lead`` less
    for each unit by which the score of the first choice is ahead of the second's.
    """

    per_lead: float
    doubts: tuple[float, ...]
    confidences: tuple[float, ...]

    def doubt(self, doubt: float, best: Sequence[float]) -> float:
        """The doubt in a first choice, of which the network says so much, with the ``best`` scores, its own first."""
        lead = min(best[1] - best[0], MOST_LEAD) if len(best) > 1 else MOST_LEAD
        return doubt - self.per_lead * lead

    def confidence(self, doubt: float) -> float:
        """From 0 to 1; 0 where the doubt is larger than all that were seen."""
        place = bisect_left(self.doubts, doubt)
        return self.confidences[place] if place < len(self.confidences) else 0.0


class Model:
    """Ranks the candidates for a problem; read-only.

    ``candidates`` are what it chooses from, ``kinds`` are the problems that it knows, ``calibration`` says how sure it
    is, ``split`` which problems it was not trained on. ``path`` is the file that it was read from and ``digest`` the
    SHA-256 of that file's bytes in hexadecimal; both are empty for one in memory.
    """

    def __init__(
        self,
        hardware: Hardware,
        weights: Weights,
        candidates: Sequence[Config],
        kinds: Sequence[Kind],
        calibration: Calibration,
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
        self.calibration = calibration
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
        kind = self._kinds.get(problem.kind)
        if kind is None or kind.outside(problem):
            return None
        family, sm_count = family_of(problem), (hardware or self.hardware).sm_count
        candidates = self.families[family]
        applicable = np.flatnonzero(candidates.applicable(problem))
        for scorer in self._scorers[family]:
            scores, doubts = scorer.scores(problem, sm_count)
            scores = np.round(scores - scores[candidates.aten], _DIGITS)
            order = applicable[np.argsort(scores[applicable], kind="stable")]
            best = scores[order[: _SETTLED + 1]].tolist()
            doubt = self.calibration.doubt(float(doubts[order[0]]), best)
            if _settled(best, gain, doubt, self.calibration):
                break
        numbers = order[:LENGTH].tolist()
        if candidates.aten not in numbers:
            numbers[-1] = candidates.aten
        times = np.exp(scores[numbers].clip(-_FARTHEST, _FARTHEST)).tolist()
        configs = tuple(map(candidates.configs.__getitem__, numbers))
        return Ranking(configs, tuple(times), self.calibration.confidence(doubt))

    @cached_property
    def families(self) -> tuple[Candidates, Candidates]:
        """The candidates for products without a batch, and those for products with one."""
        return families(self.candidates, architecture(self.hardware.arch))

    @cached_property
    def _kinds(self) -> dict[tuple[str, str, str, int, str], Kind]:
        return {kind.key: kind for kind in self.kinds}

    @cached_property
    def _scorers(self) -> list[tuple[Scorer, Scorer]]:
        """Of each family one in single precision, and one in double for where that is too close to call."""
        return [(Scorer(self.weights, each), Scorer(self.weights, each, np.float64)) for each in self.families]

    def __repr__(self) -> str:
        return f"<Model for {self.hardware}: {len(self.candidates)} candidates, {self.path or 'in memory'}>"


def _settled(best: list[float], gain: float, doubt: float, calibration: Calibration) -> bool:
    """Whether slightly different scores and doubts would lead to the same answer."""
    apart = all(after - before > _CLOSE for before, after in pairwise(best)) and abs(best[0] + log1p(gain)) > _CLOSE
    close = _CLOSE * (1 + abs(calibration.per_lead))
    return apart and calibration.confidence(doubt - close) == calibration.confidence(doubt + close)
