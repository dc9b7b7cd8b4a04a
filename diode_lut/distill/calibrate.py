"""Calibration: how sure a student can be of its first choice.

Whether a choice is good can be told from what its network has made of the problem and the config, and from how far it
is ahead of the next one: a logistic regression says how much to doubt it. But on problems that the student has learned
from its choices are better than on others. So those that count are the choices of the teacher's member that has not
seen the problem, which are about as good as the student's own. In turn, what a doubt means is found on problems that
had no part in the regression.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, pad

from diode_lut.distill.examples import Examples
from diode_lut.distill.network import Network, answers, layers_of
from diode_lut.distill.student import Trained
from diode_lut.model.ranking import GOOD, MOST_LEAD, Calibration

_STEPS = 100
"""A calibration has about so many steps."""

_DIGITS = 4
"""So many digits of doubts and confidences are kept."""

_CERTAIN = 1.645
"""Standard deviations below a share that was found: the true one is above that with a probability of 95 %."""

_DECAY = 1e-3
"""How much the squares of the regression's weights count against its loss."""


class Regression(NamedTuple):
    """Doubts, as logarithms of odds: ``weights`` times what is known of the choice, plus ``bias``."""

    weights: Tensor
    bias: Tensor

    @classmethod
    def of(cls, known: Tensor, bad: Tensor) -> Regression:
        """The logistic regression of ``bad``, problems, on what is ``known``, problems x numbers."""
        mean, deviation = known.mean(0), known.std(0).clamp(min=1e-3)
        scaled = (known - mean) / deviation
        weights, bias = torch.zeros(scaled.shape[1], requires_grad=True), torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.LBFGS((weights, bias), max_iter=200, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            loss = binary_cross_entropy_with_logits(scaled @ weights + bias, bad) + _DECAY * weights.square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(loss)  # type: ignore[no-untyped-call]
        weights, bias = weights.detach() / deviation, bias.detach()
        return cls(weights, bias - weights @ mean)

    def doubts(self, known: Tensor) -> Tensor:
        """One for each row of what is known."""
        return known @ self.weights + self.bias


class Calibrated(NamedTuple):
    """What to make of a student's layers for the doubt, and what doubts mean."""

    weights: Tensor
    bias: Tensor
    calibration: Calibration


def calibrate(trained: Trained) -> Calibrated:
    """How sure the student can be, from the problems that it and its teacher have learned from."""
    known = _known(trained.student, trained.measured)
    good = trained.teacher.unseen_losses(trained.measured) <= np.log1p(GOOD)
    doubts = torch.empty(len(good))
    for part in range(len(trained.teacher.members)):
        out = trained.teacher.unseen == part
        doubts[out] = Regression.of(known[~out], (~good[~out]).float()).doubts(known[out])
    weights, bias = Regression.of(known, (~good).float())
    calibration = calibration_of(doubts.numpy(), good.numpy(), -float(weights[-1]))
    return Calibrated(weights[:-1], bias, calibration)


def _known(student: Network, examples: Examples) -> Tensor:
    """Of the first choice on each problem: what both layers make of it, and its lead over the next."""
    scores = pad(answers(student, examples), (0, 1), value=torch.inf)  # so that there is a next one always
    best, order = scores.topk(2, dim=1, largest=False)
    lead = (best[:, 1:] - best[:, :1]).clamp(max=MOST_LEAD)
    return torch.cat((layers_of(student, examples, order[:, 0]), lead), dim=1)


def calibration_of(doubts: np.ndarray, good: np.ndarray, per_lead: float) -> Calibration:
    """The share of good answers to be sure of among those with no more than each doubt; never rising with it."""
    doubts = doubts.round(_DIGITS)
    order = np.argsort(doubts, kind="stable")
    last = np.flatnonzero(np.diff(doubts[order], append=np.inf))  # of those with the same doubt
    shares = _at_least(np.cumsum(good[order])[last], last + 1)
    shares = np.maximum.accumulate(shares[::-1])[::-1]
    steps = np.unique(np.searchsorted(last, np.linspace(0, len(good) - 1, _STEPS).round()))
    confidences = shares[steps].round(_DIGITS)
    return Calibration(per_lead, tuple(doubts[order][last[steps]].tolist()), tuple(confidences.tolist()))


def _at_least(good: np.ndarray, among: np.ndarray) -> np.ndarray:
    """The lower end of Wilson's interval for shares that were found so: of few answers, little is certain."""
    share, doubt = good / among, _CERTAIN**2 / among
    bound: np.ndarray = (share + doubt / 2 - np.sqrt(doubt * (share * (1 - share) + doubt / 4))) / (1 + doubt)
    return bound
