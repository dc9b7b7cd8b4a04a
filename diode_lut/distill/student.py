"""The student: one network that learns from the measurements, and from the teacher on problems drawn besides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from diode_lut.distill.drawn import draw_problems
from diode_lut.distill.examples import Examples, Space, examples_of
from diode_lut.distill.network import Network, Scale
from diode_lut.distill.targets import Target
from diode_lut.distill.teacher import MEMBERS, Teacher, train_teacher
from diode_lut.distill.training import Epoch, Plan, Training, one_thread, train
from diode_lut.model.kinds import kinds_of

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
