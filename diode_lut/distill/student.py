"""The teacher, an ensemble, and the student that learns from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from diode_lut.distill.candidates import Target
from diode_lut.distill.examples import LOST, Examples, Space, draw_problems, examples_of
from diode_lut.distill.network import Network, Scale, answers, losses_of
from diode_lut.distill.training import Epoch, Plan, Training, one_thread, train
from diode_lut.model.kinds import kinds_of

MEMBERS = 6


class Teacher(NamedTuple):
    """Trained networks; ``unseen`` says for each problem which of them has not learned from it."""

    members: tuple[Network, ...]
    unseen: Tensor

    def teach(self, examples: Examples) -> Examples:
        """The examples with the losses that the members expect, on average."""
        scores = torch.stack([answers(member, examples) for member in self.members]).mean(0)
        return examples._replace(losses=(scores - scores.amin(1, keepdim=True)).clamp(max=LOST))

    def unseen_losses(self, examples: Examples) -> Tensor:
        """The loss of a first choice on each of the problems learned from, by the member that has not seen it."""
        losses = torch.empty(examples.size)
        for number, member in enumerate(self.members):
            rows = (self.unseen == number).nonzero()[:, 0]
            losses[rows] = losses_of(member, examples.take(rows))
        return losses


def train_teacher(
    examples: Examples, test: Examples | None, scale: Scale, space: Space, plan: Plan, at_once: int
) -> tuple[Teacher, list[Epoch]]:
    """The teacher, so many of whose members are trained at a time, and how the first of them came about."""
    generator = torch.Generator().manual_seed(plan.seed)
    unseen = torch.randperm(examples.size, generator=generator) % MEMBERS
    trainings = []
    for number in range(MEMBERS):
        own = plan._replace(seed=MEMBERS * plan.seed + number)
        seen = examples.take((unseen != number).nonzero()[:, 0])
        trainings.append(Training(Network(scale, space, own.seed), [seen], own, None if number else test))
    history, *_ = train(trainings, at_once)
    return Teacher(tuple(training.network for training in trainings), unseen), history


_DRAWN = 1
"""So many problems are drawn for each one measured."""


class Trained(NamedTuple):
    """A student and its teacher, the problems that both have learned from, with the scale applied, and the history of
    both: of the teacher, that of its first member.
    """

    student: Network
    teacher: Teacher
    measured: Examples
    histories: dict[str, list[Epoch]]


def train_student(
    targets: Sequence[Target],
    test: Examples | None,
    space: Space,
    plan: Plan,
    report: Callable[[str], None] = lambda _: None,
) -> Trained:
    """The student of a teacher, both trained on the same problems. ``report`` is told what is being done.

    As many networks are trained at a time as torch has threads; all else is done in one.
    """
    with one_thread() as at_once:
        problems = [target.problem for target in targets]
        measured = examples_of(problems, space, targets)
        scale = Scale.of(measured, space.configs)
        measured = scale.apply(measured)
        test = None if test is None else scale.apply(test)
        report(f"training the teacher: {MEMBERS} networks")
        teacher, teaching = train_teacher(measured, test, scale, space, plan, at_once)
        drawn = draw_problems(problems, kinds_of(problems), _DRAWN * len(problems), plan.seed)
        lessons = [measured]
        if drawn:  # where all sizes that may be drawn were measured, there are none
            lessons.append(teacher.teach(scale.apply(examples_of(drawn, space))))
        report("training its student")
        student = Network(scale, space, plan.seed)
        (learning,) = train([Training(student, lessons, plan, test)], at_once)
        return Trained(student, teacher, measured, {"teacher": teaching, "student": learning})
