"""Rankings of the candidates: the network in NumPy, the regression for padding, and the model of both.

The network has two hidden ReLU layers over the features, and the same scores on every machine. BLAS adds products in an
order of its own, by processor and number of threads. So the factors of a product are rounded, the matrix to 26 bits and
its inputs to 26, and no sum of products needs more than the 53 bits of a float64. Nothing is rounded while they are
added, and every order gives the same sum. Everything else is arithmetic on single elements, defined to the last bit by
IEEE 754.

The part of the first layer for the candidates is computed once, and the part for the problem once per problem.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations_with_replacement
from math import log, log1p
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diode_lut.hardware import Hardware, architecture
from diode_lut.model import Kind, Split
from diode_lut.model.features import (
    CONFIG_FEATURES,
    JOINT_FEATURES,
    PROBLEM_FEATURES,
    Candidates,
    Floats,
    config_features,
    exp,
    families,
    family_of,
    log2,
    problem_features,
    vectors,
)
from diode_lut.model.generated import KernelModel
from diode_lut.problem import NO_EPILOGUE, ROW_BYTES, Problem, letters
from diode_lut.templates.config import (
    ATEN,
    PADDED_OPS,
    Config,
    copied_bytes,
    is_copied,
    needed_pad,
    pad_multiple,
    padded,
)

MAX_NEURONS = 256  # maximum neurons of a hidden layer in a weights file

MAX_WEIGHT = 1000  # Maximum magnitude of a weight in a weights file. Up to this magnitude nothing overflows

_BITS = 26
"""Bits of a row's sum of magnitudes in a rounded matrix, and of the largest input. The 53rd bit is for rounding up."""


class Weights(NamedTuple):
    """The weights: matrices have a row per output and a column per input, biases are columns.

    The first layer is split into ``problem``, ``config`` and ``joint``, by the dependence of its inputs. Scaling of the
    features is part of the weights. ``learned`` are the learned features of configs: a row per feature, a column per
    candidate. They follow CONFIG_FEATURES in the inputs of ``config``. ``last`` maps the second layer to scores,
    ``doubt`` maps both layers to doubts.
    """

    learned: Floats
    problem: Floats
    config: Floats
    joint: Floats
    first_bias: Floats
    second: Floats
    second_bias: Floats
    last: Floats
    last_bias: Floats
    doubt: Floats
    doubt_bias: Floats

    def shapes(self, candidates: int) -> dict[str, tuple[int, int]]:
        """Return the required shapes by name, given the number of candidates, of neurons and of learned features."""
        first, second, learned = self.second.shape[1], self.second.shape[0], self.learned.shape[0]
        return {
            "learned": (learned, candidates),
            "problem": (first, len(PROBLEM_FEATURES)),
            "config": (first, len(CONFIG_FEATURES) + learned),
            "joint": (first, len(JOINT_FEATURES)),
            "first_bias": (first, 1),
            "second": (second, first),
            "second_bias": (second, 1),
            "last": (1, second),
            "last_bias": (1, 1),
            "doubt": (1, first + second),
            "doubt_bias": (1, 1),
        }


class Scorer:
    """The network for a fixed list of candidates."""

    def __init__(self, weights: Weights, candidates: Candidates) -> None:
        self._tiling = candidates.tiling
        self._problem, self._joint = _rounded(weights.problem), _rounded(weights.joint)
        fixed = np.vstack((config_features(candidates.configs), weights.learned[:, candidates.numbers]))
        self._of_configs = _product(_rounded(weights.config), fixed) + weights.first_bias
        # Doubts are sums over both layers: the last row of both matrices.
        of_first, of_second = np.split(weights.doubt, [weights.second.shape[1]], axis=1)
        self._second, self._second_bias = _rounded(np.vstack((weights.second, of_first))), weights.second_bias
        self._last = _rounded(np.vstack((weights.last, of_second)))
        self._last_bias = np.vstack((weights.last_bias, weights.doubt_bias))

    def scores(self, problem: Problem, sm_count: int) -> tuple[Floats, Floats]:
        """Return scores and doubts of all candidates.

        The difference of two scores is the difference of the logarithms of the two expected times. A doubt is the
        logarithm of the odds against the candidate being a good choice if it is ranked first.
        """
        first = _product(self._joint, self._tiling.features(problem, sm_count))
        first += _product(self._problem, problem_features(problem, sm_count))
        first += self._of_configs
        np.maximum(first, 0.0, out=first)
        second = _product(self._second, first)
        second, of_first = second[:-1], second[-1]
        second += self._second_bias
        np.maximum(second, 0.0, out=second)
        scores, doubts = _product(self._last, second) + self._last_bias
        return scores, doubts + of_first


def _rounded(matrix: Floats) -> Floats:
    """Round each row of the matrix, to a unit that gives the sum of the row's magnitudes _BITS bits."""
    sums = np.array([[math.fsum(row)] for row in np.abs(matrix).tolist()])
    units = np.ldexp(1.0, np.frexp(sums)[1] - _BITS)
    return np.asarray(np.rint(matrix / units) * units)


def _product(rounded: Floats, inputs: Floats) -> Floats:
    """Return the exact product of a rounded matrix and the inputs, these rounded to _BITS bits of the largest.

    Inputs in float64 are overwritten: so large arrays would take longer to allocate than to fill.
    """
    _, exponent = math.frexp(max(inputs.max(), -inputs.min()))
    whole = inputs if inputs.dtype == np.float64 else inputs.astype(np.float64)
    whole *= math.ldexp(1.0, _BITS - exponent)
    product: Floats = rounded @ np.rint(whole, out=whole)
    product *= math.ldexp(1.0, exponent - _BITS)
    return product


PADDING_FEATURES = (
    *("log_b", "log_m", "log_n", "log_k", "log_flops_per_byte", "log_tiles", "log_time", "log_copying_time"),
    *(f"log_{matrix}_vector" for matrix in "abc"),
    *("a_copied", "b_copied", "bias", "a_transposed", "b_transposed", "bfloat16"),
)

OVER = "the best with padding over the best without"  # the measure of the regression's times, named in weights files

_LEAST_TILES, _TILE = 132, 128
"""The least number of tiles in PADDING_FEATURES, and their rows and columns: with fewer, processors are idle."""

_FLOPS, _BYTES, _START = 7e14, 2.8e12, 3e-6
"""Operations and bytes of a GEMM per second, and seconds that each takes longer, roughly those of an H100."""

_COPIED_BYTES, _COPY_START = 2.5e12, 1.5e-6  # bytes of copies per second, and seconds that each takes longer

_MAX_DEVIATIONS = 3.0  # cap on the distance of a feature from its mean, in standard deviations

_PADDING_DIGITS = 4
"""Probabilities are rounded to this number of digits after the point, to be the same on every machine."""


class PaddingModel(NamedTuple):
    """The regression for padding. ``mean`` and ``deviation`` scale the features, ``weights`` has a number per term.

    ``kinds`` are the pairs of op and dtype it knows. ``error`` is the standard deviation of the logarithm of the
    measured over the expected time with which ``chance`` fits held-out problems best.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    weights: tuple[float, ...]
    kinds: tuple[tuple[str, str], ...]
    error: float

    def knows(self, problem: Problem) -> bool:
        """Return whether Inductor may pad the problem's operands, and the regression knows its op and dtype."""
        return can_be_padded(problem) and (problem.op, problem.dtype) in self.kinds

    def times(self, problem: Problem, times: Sequence[float], best: float) -> tuple[float, ...]:
        """Return expected times with copies, relative to ``aten`` on the operands as they are, as is ``best``.

        ``best`` is the least time on the operands as they are. ``times`` are for padded operands, relative to ``aten``
        on these.
        """
        terms = terms_of(scaled(padding_features(problem), self.mean, self.deviation))
        log_time = math.fsum(weight * term for weight, term in zip(self.weights, terms, strict=True))
        multiple = pad_multiple(problem.dtype)
        copied = copied_bytes(problem, multiple)
        copies = copied / (copied + padded(problem, multiple).nbytes)  # their share of all bytes that are moved
        with_copies = [copies + (1 - copies) * time for time in times]
        factor = best * float(exp(log_time)) / min(with_copies)
        return tuple(factor * time for time in with_copies)

    def chance(self, lead: float) -> float:
        """Return the probability of being faster with an expected ``lead``, a difference of log(time)."""
        return round(0.5 * (1 + math.erf(lead / (self.error * math.sqrt(2)))), _PADDING_DIGITS)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the JSON object in a weights file."""
        return {"features": PADDING_FEATURES, "over": OVER, **self._asdict()}


def can_be_padded(problem: Problem) -> bool:
    """Return whether Inductor may pad the problem's operands, and some row of A, B or C is not aligned as it is.

    Where all rows are aligned, padding M gained nothing on any of 51 GEMMs on an H100 and an H200.
    """
    if problem.op not in PADDED_OPS or problem.epilogue != NO_EPILOGUE:
        return False
    is_aligned = problem.align == ROW_BYTES and min(vectors(problem)) == ROW_BYTES
    return not is_aligned and needed_pad(problem, pad_multiple(problem.dtype)) > 1


def padding_features(problem: Problem) -> list[float]:
    """Return PADDING_FEATURES of a problem. Logarithms are to base 2, and times of copies are over the GEMM's."""
    multiple = pad_multiple(problem.dtype)
    larger, copied = padded(problem, multiple), is_copied(problem, multiple)
    bias = problem.op == "addmm"
    copies = sum(copied) + (bias and larger.n > problem.n)
    copying = copies * _COPY_START + copied_bytes(problem, multiple) / _COPIED_BYTES
    time = _START + max(larger.operations / _FLOPS, larger.nbytes / _BYTES)
    tiles = problem.b * -(-problem.m // _TILE) * -(-problem.n // _TILE)
    ratios = (problem.operations / problem.nbytes, max(tiles, _LEAST_TILES), time, copying / time)
    letter_a, letter_b = letters(problem.layout)
    flags = (*copied, bias, letter_a == "t", letter_b == "t", problem.dtype == "bfloat16")
    return [*log2((*problem.sizes, *ratios, *vectors(problem))).tolist(), *map(float, flags)]


def scaled(features: Sequence[float], mean: Sequence[float], deviation: Sequence[float]) -> list[float]:
    """Return the features in standard deviations from their means."""
    distances = ((each - middle) / by for each, middle, by in zip(features, mean, deviation, strict=True))
    return [max(-_MAX_DEVIATIONS, min(_MAX_DEVIATIONS, distance)) for distance in distances]


def terms_of(features: Sequence[float]) -> list[float]:
    """Return the regression's terms: 1, the features, the products of each two of them and of each with itself."""
    return [1.0, *features, *(one * other for one, other in combinations_with_replacement(features, 2))]


MAX_RANKED = 32  # maximum number of configs in a ranking, for Inductor to choose from

GOOD = 0.05
"""A first config is good if it is slower than the best by at most this fraction. Confidence is the chance of it."""

MAX_LEAD = 0.5  # cap on the lead of a first choice: the distance of its score from the second

_DIGITS = 4
"""Scores are rounded to this number of digits after the point. Of equal scores, the first candidate counts as faster.
"""

REMEMBERED = 512
"""Number of remembered rankings. Deciding for a range of sizes asks for up to 256 of them several times."""


class Ranking(NamedTuple):
    """Configs, the fastest first, with their expected times relative to ``aten``. ``aten`` is always among them.

    ``confidence``, from 0 to 1, is the chance of the first config being good.
    """

    configs: tuple[Config, ...]
    times: tuple[float, ...]
    confidence: float

    def first(self, count: int) -> Ranking:
        """Return the first ``count`` configs. If ``aten`` is further down, it replaces the last of them."""
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
    The doubt decreases by ``per_lead`` per unit of the first score's lead over the second.
    """

    per_lead: float
    doubts: tuple[float, ...]
    confidences: tuple[float, ...]

    def doubt(self, doubt: float, best: Sequence[float]) -> float:
        """Return the network's ``doubt`` in the first choice, less the part for its lead in the ``best`` scores."""
        lead = min(best[1] - best[0], MAX_LEAD) if len(best) > 1 else MAX_LEAD
        return doubt - self.per_lead * lead

    def confidence(self, doubt: float) -> float:
        """Return the confidence from 0 to 1 for a doubt. 0 if the doubt is larger than all in ``doubts``."""
        place = bisect_left(self.doubts, doubt)
        return self.confidences[place] if place < len(self.confidences) else 0.0


NEVER = Calibration(0.0, (), ())  # the calibration without confidence


class Model:
    """Ranks the candidates for a problem. It is read-only.

    ``candidates`` are its choices. ``kinds`` are the problems of its training. ``calibration`` maps doubts to
    confidence, ``fused_calibration`` doubts about problems with an epilogue. ``split`` tells training and test problems
    apart. ``padding`` estimates the cost and gain of padding. Without it, nothing is padded. ``kernels`` ranks configs
    for generated kernels on the model's own device. ``path`` is the weights file and ``digest`` the SHA-256 of its
    bytes in hexadecimal. A model in memory has neither.
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
        kernels: KernelModel | None = None,
    ) -> None:
        self.hardware = hardware
        self.weights = weights
        self.candidates = tuple(candidates)
        self.kinds = tuple(kinds)
        self.calibration, self.fused_calibration = calibration, fused_calibration
        self.split, self.padding, self.kernels = split, padding, kernels
        self.provenance = provenance or {}
        self.path, self.digest = path, digest
        self._kinds = {kind.key: kind for kind in self.kinds}
        self._families: dict[str, list[tuple[Candidates, Scorer]]] = {}
        self._ranked = lru_cache(REMEMBERED)(self._rank)

    def rank(self, problem: Problem, hardware: Hardware | None = None, *, padding: bool = True) -> Ranking | None:
        """Return the ranking for a problem on ``hardware``, by default the model's own. None for an unknown problem.

        Configs the hardware's architecture cannot launch are left out. ``padding`` says whether the operands may be
        padded. Then there are configs with a ``pad`` if padding can pay.
        """
        return self._ranking(problem, hardware or self.hardware, MAX_RANKED, padding=padding)

    def times(
        self, problem: Problem, hardware: Hardware | None = None, *, padding: bool = True
    ) -> Mapping[Config, float]:
        """Return the expected times, relative to ``aten``, of all runnable configs. No times for an unknown problem.

        The arguments are those of ``rank``.
        """
        most = 2 * len(self.candidates)
        ranking = self._ranking(problem, hardware or self.hardware, most, padding=padding)
        return {} if ranking is None else dict(zip(ranking.configs, ranking.times, strict=True))

    def _ranking(self, problem: Problem, hardware: Hardware, most: int, *, padding: bool) -> Ranking | None:
        """Rank at most ``most`` configs, half of them with padding if it can pay."""
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
        other = Ranking(configs, times, other.confidence)
        first, second = (alone, other) if alone.times[0] <= other.times[0] else (other, alone)
        # The confidence is that in the first config, and in its ranking being the better of the two.
        lead = log(second.times[0] / first.times[0]) + log1p(GOOD)
        pairs = sorted(zip(first.configs + second.configs, first.times + second.times, strict=True), key=itemgetter(1))
        configs, times = zip(*pairs, strict=True)
        return Ranking(configs, times, first.confidence * self.padding.chance(lead))

    def _rank(self, problem: Problem, arch: str, sm_count: int) -> Ranking | None:
        """Rank all applicable configs for the problem as it is, and aten."""
        kind = self._kinds.get(problem.kind)
        if kind is None or kind.outside(problem):
            return None
        if arch not in self._families:
            both = families(self.candidates, architecture(arch))
            self._families[arch] = [(each, Scorer(self.weights, each)) for each in both]
        candidates, scorer = self._families[arch][family_of(problem)]
        calibration = self.calibration if problem.epilogue == NO_EPILOGUE else self.fused_calibration
        applicable = np.flatnonzero(candidates.applicable(problem))
        scores, doubts = scorer.scores(problem, sm_count)
        scores = np.round(scores - scores[candidates.aten], _DIGITS)
        order = applicable[np.argsort(scores[applicable], kind="stable")]
        doubt = calibration.doubt(float(doubts[order[0]]), scores[order[:2]].tolist())
        configs = tuple(map(candidates.configs.__getitem__, order.tolist()))
        times = exp(scores[order]).tolist()
        return Ranking(configs, tuple(times), calibration.confidence(doubt))

    def __repr__(self) -> str:
        return f"<Model for {self.hardware}: {len(self.candidates)} candidates, {self.path or 'in memory'}>"
