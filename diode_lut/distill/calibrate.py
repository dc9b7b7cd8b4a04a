"""Calibration: what the regret that a student expects has turned out to mean, on problems that it had not seen.

What is well known is calibrated apart from the rest. Else little would be trusted anywhere: a regret that means much
among problems like many others means little among rare ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from diode_lut.distill.examples import Space, examples_of
from diode_lut.distill.student import train_student
from diode_lut.distill.targets import Target
from diode_lut.distill.training import Network, Plan, masked
from diode_lut.model.kinds import Kind
from diode_lut.model.ranking import GOOD, Calibration
from diode_lut.model.split import Split

FOLDS = 2

_STEPS = 100
"""A calibration has about so many steps."""

_CERTAIN = 1.645
"""Standard deviations below a share that was found: the true one is above that with a probability of 95 %."""


def calibrate(targets: Sequence[Target], kinds: Sequence[Kind], space: Space, plan: Plan) -> dict[bool, Calibration]:
    """The calibrations of students: each is asked about a part of the problems after training on the others."""
    well_known = {kind.key for kind in kinds if kind.well_known}
    split = Split(plan.seed + 1, 0.0)
    folds = np.array([int(split.draw(target.problem) * FOLDS) for target in targets])
    known = np.array([target.problem[:4] in well_known for target in targets])
    expected, good = np.empty(len(targets)), np.empty(len(targets), np.bool_)
    for fold in range(FOLDS):
        training = [target for target, of in zip(targets, folds, strict=True) if of != fold]
        unseen = [target for target, of in zip(targets, folds, strict=True) if of == fold]
        student = train_student(training, None, space, plan).student
        expected[folds == fold], good[folds == fold] = _asked(student, unseen, space)
    return {each: calibration_of(expected[known == each], good[known == each]) for each in (True, False)}


@torch.no_grad()
def _asked(student: Network, targets: Sequence[Target], space: Space) -> tuple[list[float], list[bool]]:
    """For each problem the logarithm of the regret expected of the first choice, and whether it was good."""
    examples = examples_of([target.problem for target in targets], space, targets)
    scores, regrets = student(student.scale.apply(examples)).unbind(-1)
    choice = masked(scores, examples.applies, torch.inf).argmin(1, keepdim=True)
    losses = examples.losses.gather(1, choice)[:, 0]
    return regrets.gather(1, choice)[:, 0].tolist(), (losses <= np.log1p(GOOD)).tolist()


def calibration_of(expected: np.ndarray, good: np.ndarray) -> Calibration:
    """The share of good answers to be sure of among those with no more than each regret; never rising with it."""
    if not len(good):
        return Calibration((), ())
    order = np.argsort(expected, kind="stable")
    shares = _at_least(np.cumsum(good[order]), np.arange(1, len(good) + 1))
    shares = np.maximum.accumulate(shares[::-1])[::-1]
    steps = np.unique(np.linspace(0, len(good) - 1, _STEPS).round().astype(int))
    return Calibration(tuple(expected[order][steps].round(4).tolist()), tuple(shares[steps].round(4).tolist()))


def _at_least(good: np.ndarray, among: np.ndarray) -> np.ndarray:
    """The lower end of Wilson's interval for shares that were found so: of few answers, little is certain."""
    share, doubt = good / among, _CERTAIN**2 / among
    bound: np.ndarray = (share + doubt / 2 - np.sqrt(doubt * (share * (1 - share) + doubt / 4))) / (1 + doubt)
    return bound
