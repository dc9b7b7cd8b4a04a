"""The training examples of a student."""

import math

import torch

from diode_lut.distill.examples import Space, Target, choose, draw_problems, examples_of
from diode_lut.distill.training import STUDENTS, Network, Scale, TrainingPlan, answers, train_student
from diode_lut.hardware import architecture
from diode_lut.model import kinds_of
from diode_lut.model.features import families
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN
from tests.distill.synthetic import CONFIGS, time
from tests.model.small import H200


def test_one_layer_swept_densely_is_enough() -> None:
    """If no new problem can be drawn, the student learns from the measurements alone."""
    problems = [Problem("mm", "bfloat16", "nt", 16, 1, m, 4096, 4096) for m in range(1, 65)]
    assert draw_problems(problems, kinds_of(problems), 10, 0) == []
    targets = []
    for problem in problems:
        times = {config: math.log(time(config, problem) / time(ATEN, problem)) for config in [*CONFIGS, ATEN]}
        targets.append(Target(problem, times, min(times.values())))
    space = Space.of(*families(choose(targets), architecture(H200.arch)), H200)
    trained = train_student(targets, None, space, TrainingPlan(epochs=1))
    assert trained.measured.size == 64
    assert len(trained.histories["student"]) == 1


def test_a_student_is_the_mean_of_networks() -> None:
    """One network with the neurons of several has their mean scores, for ops with a batch and without."""
    problems = [Problem(op, "bfloat16", "nt", 16, b, m, 512, 768) for op, b in (("mm", 1), ("bmm", 8)) for m in (8, 96)]
    plain, batched = families([*CONFIGS, ATEN], architecture(H200.arch))
    space = Space.of(plain, batched, H200)
    examples = examples_of(problems, space)
    scale = Scale.of(examples, space.configs)
    networks = [Network(scale, space, seed) for seed in range(STUDENTS + 1)]
    examples = scale.apply(examples)
    found, each = (answers(network, examples) for network in (Network.mean_of(networks), networks[0]))
    mean = torch.stack([answers(network, examples) for network in networks]).mean(0)
    assert torch.allclose(found[examples.applies], mean[examples.applies], atol=1e-5)
    assert not torch.allclose(found[examples.applies], each[examples.applies], atol=1e-3)
