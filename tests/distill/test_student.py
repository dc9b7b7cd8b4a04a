"""The training examples of a student."""

import math

from diode_lut.distill.examples import Space, Target, choose, draw_problems
from diode_lut.distill.training import TrainingPlan, train_student
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
