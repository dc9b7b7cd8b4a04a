"""The teacher, which is an ensemble, and the student that learns from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from diode_lut.distill.examples import MAX_LOSS, Examples, Space, draw_problems, examples_of
from diode_lut.distill.network import Network, Scale, answers, losses_of
from diode_lut.distill.targets import Target
from diode_lut.distill.training import Epoch, Plan, Training, one_thread, train
from diode_lut.model.kinds import kinds_of

MEMBERS = 6
"""Number of networks in the teacher."""


class Teacher(NamedTuple):
    """Trained networks; ``unseen`` is, per problem, the number of the member that was not trained on it."""

    members: tuple[Network, ...]
    unseen: Tensor

    def teach(self, examples: Examples) -> Examples:
        """The examples with the members' mean expected losses."""
        scores = torch.stack([answers(member, examples) for member in self.members]).mean(0)
        return examples._replace(losses=(scores - scores.amin(1, keepdim=True)).clamp(max=MAX_LOSS))

    def unseen_losses(self, examples: Examples) -> Tensor:
        """Per training problem: the loss of the first choice of the member that was not trained on it."""
        losses = torch.empty(examples.size)
        for number, member in enumerate(self.members):
            rows = (self.unseen == number).nonzero()[:, 0]
            losses[rows] = losses_of(member, examples.take(rows))
        return losses


def train_teacher(
    examples: Examples, test: Examples | None, scale: Scale, space: Space, plan: Plan, at_once: int
) -> tuple[Teacher, list[Epoch]]:
    """The teacher, with ``at_once`` members trained at a time, and the history of its first member."""
    generator = torch.Generator().manual_seed(plan.seed)
    unseen = torch.randperm(examples.size, generator=generator) % MEMBERS
    trainings = []
    for number in range(MEMBERS):
        own = plan._replace(seed=MEMBERS * plan.seed + number)
        seen = examples.take((unseen != number).nonzero()[:, 0])
        trainings.append(Training(Network(scale, space, own.seed), [seen], own, None if number else test))
    history, *_ = train(trainings, at_once)
    return Teacher(tuple(training.network for training in trainings), unseen), history


_DRAWN_PER_MEASURED = 1
"""Number of drawn problems per measured problem."""


class Trained(NamedTuple):
    """A student and its teacher, the scaled measured problems that both were trained on, and the histories of both.

    The teacher's history is that of its first member.
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
    """A student and its teacher, trained on the same problems. ``report`` is called with a line of text per stage.

    As many networks are trained at a time as torch has threads; everything else runs in one thread.
    """
    with one_thread() as at_once:
        problems = [target.problem for target in targets]
        measured = examples_of(problems, space, targets)
        scale = Scale.of(measured, space.configs)
        measured = scale.apply(measured)
        test = None if test is None else scale.apply(test)
        report(f"training the teacher: {MEMBERS} networks")
        teacher, teaching = train_teacher(measured, test, scale, space, plan, at_once)
        drawn = draw_problems(problems, kinds_of(problems), _DRAWN_PER_MEASURED * len(problems), plan.seed)
        lessons = [measured]
        if drawn:  # empty if all sizes that may be drawn were measured
            lessons.append(teacher.teach(scale.apply(examples_of(drawn, space))))
        report("training the student")
        student = Network(scale, space, plan.seed)
        (learning,) = train([Training(student, lessons, plan, test)], at_once)
        return Trained(student, teacher, measured, {"teacher": teaching, "student": learning})
