"""A model: it ranks configs for one problem by their expected times, with a confidence in the first."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from math import log, log1p
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diode_lut.domain.hardware import Hardware
from diode_lut.domain.ops import NO_EPILOGUE
from diode_lut.domain.problem import Problem
from diode_lut.kernels.architecture import architecture
from diode_lut.kernels.config import ATEN, Config
from diode_lut.kernels.padding import pad_multiple, padded
from diode_lut.model.candidates import Candidates, families, family_of
from diode_lut.model.features import exp
from diode_lut.model.network import Scorer, Weights
from diode_lut.model.padding import PaddingModel
from diode_lut.model.training_set import Kind, Split, unknown

MAX_RANKED = 32
"""Maximum number of configs in a ranking, which is the maximum that Inductor is given to choose from."""

GOOD = 0.05
"""A first config is good if it is slower than the best by at most this fraction; confidence is in that."""

MAX_LEAD = 0.5
"""Cap on the lead of a first choice: how far its score is ahead of the second's."""

_DIGITS = 4
"""Digits after the point to which scores are rounded: of configs that are closer, the first candidate counts as faster.

"""

REMEMBERED = 512
"""Number of rankings that are remembered. Deciding for a range of sizes asks for up to 256 of them several times."""


class Ranking(NamedTuple):
    """Configs, the fastest first, with their expected times over that of ``aten``. ``aten`` is always one of them.

    ``confidence``, from 0 to 1, is the confidence that the first config is good.
    """

    configs: tuple[Config, ...]
    times: tuple[float, ...]
    confidence: float

    def first(self, count: int) -> Ranking:
        """The ranking with the first ``count`` configs, of which ``aten`` is the last if it is further down."""
        if len(self.configs) <= count:
            return self
        places = [*range(count)]
        if ATEN not in self.configs[:count]:
            places[-1] = self.configs.index(ATEN)
        configs, times = (tuple(each[place] for place in places) for each in self[:2])
        return Ranking(configs, times, self.confidence)


class Calibration(NamedTuple):
    """The confidence for each doubt: the share of good answers among those with at most this doubt.

    ``doubts`` are logarithms of odds in ascending order. ``confidences`` has a value per doubt, in descending order.
    ``per_lead`` is how much the doubt decreases per unit by which the first score is ahead of the second.
    """

    per_lead: float
    doubts: tuple[float, ...]
    confidences: tuple[float, ...]

    def doubt(self, doubt: float, best: Sequence[float]) -> float:
        """The network's ``doubt`` in the first choice, less the part for its lead in the ``best`` scores, sorted."""
        lead = min(best[1] - best[0], MAX_LEAD) if len(best) > 1 else MAX_LEAD
        return doubt - self.per_lead * lead

    def confidence(self, doubt: float) -> float:
        """The confidence from 0 to 1 for a doubt; 0 if the doubt is larger than all in ``doubts``."""
        place = bisect_left(self.doubts, doubt)
        return self.confidences[place] if place < len(self.confidences) else 0.0


NEVER = Calibration(0.0, (), ())
"""The calibration that is never confident."""


class Model:
    """Ranks the candidates for a problem; read-only.

    ``candidates`` are the configs that it chooses from. ``kinds`` are the problems that it was trained for.
    ``calibration`` maps doubts to confidence, ``fused_calibration`` those about problems with an epilogue. ``split``
    tells which problems it was not trained on. ``padding`` says what padding costs or gains; without it, nothing is
    padded. ``path`` is the weights file and ``digest`` the SHA-256 of its bytes in
    hexadecimal; a model in memory has neither.
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
        fused_calibration: Calibration = NEVER,
        padding: PaddingModel | None = None,
    ) -> None:
        self.hardware = hardware
        self.weights = weights
        self.candidates = tuple(candidates)
        self.kinds = tuple(kinds)
        self.calibration, self.fused_calibration = calibration, fused_calibration
        self.split, self.padding = split, padding
        self.provenance = provenance or {}
        self.path, self.digest = path, digest
        self._families: dict[str, list[tuple[Candidates, Scorer]]] = {}
        self._ranked = lru_cache(REMEMBERED)(self._rank)

    def unknown(self, problem: Problem) -> str:
        """Why the model does not rank for the problem; empty if it does."""
        return unknown(self.kinds, problem)

    def rank(self, problem: Problem, hardware: Hardware | None = None, *, padding: bool = True) -> Ranking | None:
        """The ranking for a problem on ``hardware``, by default the model's own; None for an unknown problem.

        Configs that the hardware's architecture cannot launch are left out.
        ``padding`` says whether the operands may be padded: then there are configs with a ``pad`` where that could pay.
        """
        return self._ranking(problem, hardware or self.hardware, MAX_RANKED, padding=padding)

    def times(
        self, problem: Problem, hardware: Hardware | None = None, *, padding: bool = True
    ) -> Mapping[Config, float]:
        """The expected times over that of ``aten`` of all configs that can run; none for an unknown problem.

        The arguments are those of ``rank``.
        """
        most = 2 * len(self.candidates)
        ranking = self._ranking(problem, hardware or self.hardware, most, padding=padding)
        return {} if ranking is None else dict(zip(ranking.configs, ranking.times, strict=True))

    def _ranking(self, problem: Problem, hardware: Hardware, most: int, *, padding: bool) -> Ranking | None:
        """At most ``most`` configs, half of them with padding where that could pay."""
        alone = self._ranked(problem, hardware.arch, hardware.sm_count)
        if alone is None:
            return None
        if not padding or self.padding is None or not self.padding.knows(problem):
            return alone.first(most)
        multiple = pad_multiple(problem.dtype)
        other = self._ranked(padded(problem, multiple), hardware.arch, hardware.sm_count)
        if other is None:
            return alone.first(most // 2)
        alone, other = alone.first(most // 2), other.first(most // 2)
        configs = tuple(config.padded(multiple) for config in other.configs)
        times = self.padding.times(problem, other.times, min(alone.times))
        return _merged(alone, Ranking(configs, times, other.confidence), self.padding)

    def _rank(self, problem: Problem, arch: str, sm_count: int) -> Ranking | None:
        """All configs that apply to the problem as it is, and aten."""
        kind = self._kinds.get(problem.kind)
        if kind is None or kind.outside(problem):
            return None
        candidates, scorer = self._families_for(arch)[family_of(problem)]
        calibration = self.calibration if problem.epilogue == NO_EPILOGUE else self.fused_calibration
        applicable = np.flatnonzero(candidates.applicable(problem))
        scores, doubts = scorer.scores(problem, sm_count)
        scores = np.round(scores - scores[candidates.aten], _DIGITS)
        order = applicable[np.argsort(scores[applicable], kind="stable")]
        doubt = calibration.doubt(float(doubts[order[0]]), scores[order[:2]].tolist())
        configs = tuple(map(candidates.configs.__getitem__, order.tolist()))
        times = exp(scores[order]).tolist()
        return Ranking(configs, tuple(times), calibration.confidence(doubt))

    @cached_property
    def _kinds(self) -> dict[tuple[str, str, str, int, str, str], Kind]:
        return {kind.key: kind for kind in self.kinds}

    def _families_for(self, arch: str) -> list[tuple[Candidates, Scorer]]:
        """The candidates and scorers on an architecture: for problems without a batch, then for problems with one."""
        if arch not in self._families:
            both = families(self.candidates, architecture(arch))
            self._families[arch] = [(candidates, Scorer(self.weights, candidates)) for candidates in both]
        return self._families[arch]

    def __repr__(self) -> str:
        return f"<Model for {self.hardware}: {len(self.candidates)} candidates, {self.path or 'in memory'}>"


def _merged(one: Ranking, other: Ranking, padding: PaddingModel) -> Ranking:
    """Both rankings as one; the confidence is that in the first config, and in its ranking being the better one."""
    first, second = (one, other) if one.times[0] <= other.times[0] else (other, one)
    lead = log(second.times[0] / first.times[0]) + log1p(GOOD)
    pairs = sorted(zip(first.configs + second.configs, first.times + second.times, strict=True), key=itemgetter(1))
    configs, times = zip(*pairs, strict=True)
    return Ranking(configs, times, first.confidence * padding.chance(lead))
