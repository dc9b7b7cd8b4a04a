"""Calibration of the confidence in a student's first choice.

A logistic regression predicts the doubt: the log odds that the choice is not good. Its inputs are the activations of
both hidden layers for the choice, and the choice's lead over the second. The student's choices on its training problems
are better than those on new ones. So the labels are from the choices of the teacher's member that was not trained on
the problem; these are about as good as the student's choices on new problems. The confidence for a doubt is found by
cross-validation, on problems that the regression was not fitted to, with and without an epilogue apart.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, pad

from diode_lut.distill.examples import Examples
from diode_lut.distill.network import Network, answers, layers_of
from diode_lut.distill.training import Trained
from diode_lut.model.ranking import GOOD, MAX_LEAD, Calibration

_STEPS = 100
"""Approximate number of steps of a calibration."""

_DIGITS = 4
"""Digits after the point to which doubts and confidences are rounded."""

_Z_SCORE = 1.645
"""Standard deviations of a one-sided confidence interval of 95 %."""

_L2_WEIGHT = 1e-3
"""Weight of the L2 penalty in the regression's loss."""


class Regression(NamedTuple):
    """Doubts, as logarithms of odds: ``weights`` times the inputs for a choice, plus ``bias``."""

    weights: Tensor
    bias: Tensor

    @classmethod
    def of(cls, inputs: Tensor, bad: Tensor) -> Regression:
        """The logistic regression of ``bad`` (problems; 0 or 1) on the inputs ``inputs`` (problems x inputs)."""
        mean, deviation = inputs.mean(0), inputs.std(0).clamp(min=1e-3)
        scaled = (inputs - mean) / deviation
        weights, bias = torch.zeros(scaled.shape[1], requires_grad=True), torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.LBFGS((weights, bias), max_iter=200, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            loss = binary_cross_entropy_with_logits(scaled @ weights + bias, bad) + _L2_WEIGHT * weights.square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(loss)  # type: ignore[no-untyped-call]
        weights, bias = weights.detach() / deviation, bias.detach()
        return cls(weights, bias - weights @ mean)

    def doubts(self, inputs: Tensor) -> Tensor:
        """The doubt for each row of inputs."""
        return inputs @ self.weights + self.bias


class Calibrated(NamedTuple):
    """The weights from a student's layers to the doubt, and the confidences of doubts.

    ``calibration`` is for problems without an epilogue, ``fused_calibration`` for those with one.
    """

    weights: Tensor
    bias: Tensor
    calibration: Calibration
    fused_calibration: Calibration


def calibrate(trained: Trained) -> Calibrated:
    """The calibration of a student, from the problems that it and its teacher were trained on."""
    inputs = _inputs(trained.student, trained.measured)
    good = trained.teacher.unseen_losses(trained.measured) <= np.log1p(GOOD)
    fused = trained.measured.fused
    doubts = torch.empty(len(good))
    for part in range(len(trained.teacher.members)):
        held_out = trained.teacher.unseen == part
        doubts[held_out] = Regression.of(inputs[~held_out], (~good[~held_out]).float()).doubts(inputs[held_out])
    weights, bias = Regression.of(inputs, (~good).float())
    calibrations = (
        calibration_of(doubts[rows].numpy(), good[rows].numpy(), -float(weights[-1])) for rows in (~fused, fused)
    )
    return Calibrated(weights[:-1], bias, *calibrations)


def _inputs(student: Network, examples: Examples) -> Tensor:
    """The regression's inputs per problem: both layers for the first choice, and its lead over the second."""
    scores = pad(answers(student, examples), (0, 1), value=torch.inf)  # so that there is always a second one
    best, order = scores.topk(2, dim=1, largest=False)
    lead = (best[:, 1:] - best[:, :1]).clamp(max=MAX_LEAD)
    return torch.cat((layers_of(student, examples, order[:, 0]), lead), dim=1)


def calibration_of(doubts: np.ndarray, good: np.ndarray, per_lead: float) -> Calibration:
    """Per doubt: the lower bound of the share of good answers with at most that doubt, made non-increasing.

    Without any answers there are no doubts, and the confidence is always 0.
    """
    if not len(good):
        return Calibration(per_lead, (), ())
    doubts = doubts.round(_DIGITS)
    order = np.argsort(doubts, kind="stable")
    last = np.flatnonzero(np.diff(doubts[order], append=np.inf))  # the last of those with the same doubt
    shares = _lower_bounds(np.cumsum(good[order])[last], last + 1)
    shares = np.maximum.accumulate(shares[::-1])[::-1]
    steps = np.unique(np.searchsorted(last, np.linspace(0, len(good) - 1, _STEPS).round()))
    confidences = shares[steps].round(_DIGITS)
    return Calibration(per_lead, tuple(doubts[order][last[steps]].tolist()), tuple(confidences.tolist()))


def _lower_bounds(good: np.ndarray, among: np.ndarray) -> np.ndarray:
    """The lower end of Wilson's interval for the share ``good`` / ``among``."""
    share, width = good / among, _Z_SCORE**2 / among
    bound: np.ndarray = (share + width / 2 - np.sqrt(width * (share * (1 - share) + width / 4))) / (1 + width)
    return bound
