"""The student: one network that learns from the measurements, and from the teacher on problems drawn besides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from diode_lut.distill.drawn import draw_problems
from diode_lut.distill.examples import Examples, Space, examples_of
from diode_lut.distill.targets import Target
from diode_lut.distill.teacher import Teacher, train_teacher
from diode_lut.distill.training import Epoch, Lesson, Network, Plan, Scale, train
from diode_lut.model.kinds import kinds_of

_DRAWN = 1
"""So many problems are drawn for each one measured."""


class Trained(NamedTuple):
    """A student and its teacher, and the history of both: of the teacher, that of its first member."""

    student: Network
    teacher: Teacher
    histories: dict[str, list[Epoch]]


def train_student(targets: Sequence[Target], test: Examples | None, space: Space, plan: Plan) -> Trained:
    """The student of a teacher, both trained on the same problems."""
    problems = [target.problem for target in targets]
    measured = examples_of(problems, space, targets)
    scale = Scale.of(measured, space.configs)
    measured = scale.apply(measured)
    test = None if test is None else scale.apply(test)
    teacher, teaching = train_teacher(measured, test, scale, space, plan)
    drawn = draw_problems(problems, kinds_of(problems), _DRAWN * len(problems), plan.seed)
    lessons = [Lesson(measured), teacher.teach(scale.apply(examples_of(drawn, space)))]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        student = Network(scale, space)
    return Trained(student, teacher, {"teacher": teaching, "student": train(student, lessons, test, plan)})
