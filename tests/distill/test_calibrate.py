"""Calibration: confidence is a lower bound of the share of good answers."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diode_lut.dataset import Record, Timing
from diode_lut.distill.examples import Space, choose, targets_of
from diode_lut.distill.training import (
    Regression,
    Trained,
    TrainingPlan,
    answers,
    calibrate,
    calibration_of,
    layers_of,
    losses_of,
    train_student,
)
from diode_lut.hardware import architecture
from diode_lut.model.features import families
from diode_lut.templates.config import ATEN
from tests.distill import synthetic
from tests.distill.synthetic import CONFIGS
from tests.model.small import H200


@pytest.mark.parametrize(("good", "among", "expected"), [(19, 20, 0.8040), (60, 60, 0.9569), (950, 1000, 0.9374)])
def test_the_last_confidence_is_a_lower_bound(good: int, among: int, expected: float) -> None:
    """The last confidence equals SciPy's ``binomtest(good, among).proportion_ci(0.9, "wilson").low``."""
    found = calibration_of(np.arange(among, dtype=float), np.arange(among) < good, 0.0)
    assert found.confidences[-1] == pytest.approx(expected, abs=2e-4)


def test_without_answers_nothing_is_sure() -> None:
    """Without any answer the confidence is 0 for every doubt."""
    assert calibration_of(np.zeros(0), np.zeros(0, np.bool_), 0.0).confidence(-1e9) == 0


@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_confidence_never_rises_with_the_doubt(good: list[bool]) -> None:
    """Confidence descends with the doubt, and is below 1."""
    found = calibration_of(np.random.default_rng(1).normal(size=len(good)), np.array(good), 0.0)
    assert list(found.doubts) == sorted(found.doubts)
    assert list(found.confidences) == sorted(found.confidences, reverse=True)
    assert all(0 <= confidence < 1 for confidence in found.confidences)


def test_those_with_the_same_doubt_count_together() -> None:
    """Answers with equal doubts are counted together, in any order."""
    good = np.arange(100) < 50
    for doubts in (np.zeros(100), np.linspace(0, 4e-5, 100)):
        assert calibration_of(doubts, good, 0.0).confidence(0.0) == pytest.approx(0.4190, abs=2e-4)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=300), st.randoms())
def test_the_order_of_answers_does_not_matter(answers: list[tuple[int, bool]], shuffled: random.Random) -> None:
    """The same doubts and outcomes in another order give the same calibration."""
    found = []
    for _ in range(2):
        doubts, good = zip(*answers, strict=True)
        found.append(calibration_of(np.array(doubts, float), np.array(good), 0.0))
        shuffled.shuffle(answers)
    assert found[0] == found[1]
    assert found[0].doubts == tuple(sorted({float(doubt) for doubt, _ in answers}))


def test_regression_finds_what_doubts_follow_from() -> None:
    """From outcomes drawn with known odds the regression finds the weights, and 0 for an input without influence."""
    draw = torch.Generator().manual_seed(1)
    known = torch.randn(40_000, 3, generator=draw) * torch.tensor([0.1, 1.0, 10.0]) + 5.0
    odds = known @ torch.tensor([8.0, 1.0, 0.0]) - 46.0
    bad = (torch.rand(len(known), generator=draw) < torch.sigmoid(odds)).float()
    found = Regression.of(known, bad)
    assert found.weights.tolist() == pytest.approx([8.0, 1.0, 0.0], rel=0.05, abs=0.01)
    assert found.doubts(known).mean().item() == pytest.approx(odds.mean().item(), abs=0.05)


@pytest.fixture(scope="module")
def trained() -> Trained:
    """A student and a teacher that err often, because their times are noisy."""
    draw, targets = random.Random(1), []
    for problem in synthetic.problems(120):
        noisy = {config: synthetic.time(config, problem) * math.exp(draw.gauss(0, 0.04)) for config in CONFIGS}
        targets += targets_of([Record(problem, (Timing(ATEN, 4e4), *(Timing(*each) for each in noisy.items())))])
    return train_student(
        targets,
        None,
        Space.of(*families(choose(targets), architecture(H200.arch)), H200),
        TrainingPlan(epochs=8),
    )


@pytest.fixture(scope="module")
def known(trained: Trained) -> torch.Tensor:
    """The regression's inputs: per problem both layers for the student's choice, and its lead."""
    best, order = answers(trained.student, trained.measured).topk(2, dim=1, largest=False)
    return torch.cat((layers_of(trained.student, trained.measured, order[:, 0]), best[:, 1:] - best[:, :1]), dim=1)


@pytest.fixture(scope="module")
def bad(trained: Trained) -> torch.Tensor:
    """Per problem: whether the member that was not trained on it errs by more than 5 %."""
    every = torch.stack([losses_of(member, trained.measured) for member in trained.teacher.members])
    found = every[trained.teacher.unseen, torch.arange(trained.measured.size)] > np.log(1.05)
    assert 10 < found.sum() < len(found) - 10
    assert not torch.equal(found, losses_of(trained.student, trained.measured) > np.log(1.05))
    return found.float()


def test_doubts_are_those_of_a_regression(trained: Trained, known: torch.Tensor, bad: torch.Tensor) -> None:
    """A student's doubts are those of a regression on the members' choices for problems they were not trained on."""
    (weights, bias), calibration, _ = calibrate(trained)
    of_layers = (known[:, :-1] @ weights + bias).tolist()
    leads = known[:, -1].tolist()
    doubts = [calibration.doubt(doubt, [0.0, lead]) for doubt, lead in zip(of_layers, leads, strict=True)]
    expected = Regression.of(known, bad).doubts(known)
    np.testing.assert_allclose(doubts, expected, atol=1e-3)
    assert expected[bad == 1].mean() > expected[bad == 0].mean() + 0.5
    assert abs(calibration.per_lead) > 0.1


def test_what_doubts_mean_is_found_elsewhere(trained: Trained, known: torch.Tensor, bad: torch.Tensor) -> None:
    """The confidences come from doubts that were cross-validated over the members' parts."""
    doubts = torch.empty(len(bad))
    for member in range(len(trained.teacher.members)):
        unseen = trained.teacher.unseen == member
        doubts[unseen] = Regression.of(known[~unseen], bad[~unseen]).doubts(known[unseen])
    _, found, _ = calibrate(trained)
    expected = calibration_of(doubts.numpy(), bad.numpy() == 0, found.per_lead)
    np.testing.assert_allclose(found.doubts, expected.doubts, atol=2e-3)
    np.testing.assert_allclose(found.confidences, expected.confidences, atol=2e-3)


@pytest.mark.slow
def test_problems_with_an_epilogue_have_confidences_of_their_own(trained: Trained) -> None:
    """The confidences for problems with an epilogue are from these problems alone, and so are the others'."""
    fused = torch.arange(trained.measured.size) % 3 == 0
    found, other = (
        calibrate(trained._replace(measured=trained.measured._replace(fused=flags)))[1:] for flags in (fused, ~fused)
    )
    alone, followed = found
    assert (alone, followed) == other[::-1]
    assert alone != followed
    assert len(followed.doubts) == 40
    _, _, unknown = calibrate(trained)
    assert unknown.doubts == ()
