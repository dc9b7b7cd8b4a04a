"""Training: of networks on examples, of a teacher, which is an ensemble, and of the student that learns from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from diode_lut.distill.examples import MAX_LOSS, Examples, Space, draw_problems, examples_of
from diode_lut.distill.network import Network, Scale, answers, losses_of, masked, mean_regret
from diode_lut.distill.targets import Target
from diode_lut.model.training_set import kinds_of

_BATCH = 64
_LEARNING_RATE, _WARM_UP, _WEIGHT_DECAY = 3e-3, 0.15, 0.01

_DECAY_LENGTH = 0.15
"""Decay length of an error's weight with the config's loss, in units of log time."""

_MIN_WEIGHT = 0.05
"""Minimum weight of an error."""

_TEMPERATURE = 0.02
"""Softmax temperature, in units of scores."""

_SQUARES_WEIGHT = 10.0
"""Weight of the scores' squared errors, relative to the expected regret of the choice."""


class TrainingPlan(NamedTuple):
    """How to train: the same ``seed`` gives the same network. ``epochs`` is the number of passes over the problems."""

    seed: int = 0
    epochs: int = 100


class Training(NamedTuple):
    """A network and its training examples. A batch has examples of one of the ``lessons``.

    The regret on ``test`` is recorded after each epoch.
    """

    network: Network
    lessons: list[Examples]
    plan: TrainingPlan
    test: Examples | None = None


class Epoch(NamedTuple):
    """The mean training loss of one epoch, and the mean regret on the test problems, NaN without a test."""

    loss: float
    regret: float


@contextmanager
def one_thread() -> Iterator[int]:
    """Let torch use one thread, because sums differ with more; the value is the number of threads before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def train(trainings: Sequence[Training], at_once: int) -> list[list[Epoch]]:
    """Train networks, ``at_once`` at a time; the result has the history of each.

    Each network is trained in one thread, which is faster, and reproducible with any number of threads.
    """
    ended = Event()
    with ThreadPoolExecutor(at_once, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            return list(pool.map(lambda training: _train(training, ended), trainings))
        finally:
            ended.set()  # after an error or Ctrl-C, other networks end after their current epoch


def _train(training: Training, ended: Event) -> list[Epoch]:
    network, lessons, plan, test = training
    generator = torch.Generator().manual_seed(plan.seed)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=_WEIGHT_DECAY, fused=True)
    batches = sum(-(-lesson.size // _BATCH) for lesson in lessons)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _LEARNING_RATE, total_steps=plan.epochs * batches, pct_start=_WARM_UP
    )
    history: list[Epoch] = []
    while len(history) < plan.epochs and not ended.is_set():
        total = 0.0
        for number, rows in _shuffled(lessons, generator):
            loss = _loss(network, lessons[number].take(rows))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
        history.append(Epoch(total / batches, mean_regret(network, test) if test is not None else np.nan))
    return history


def _shuffled(lessons: list[Examples], generator: torch.Generator) -> list[tuple[int, Tensor]]:
    batches = [
        (number, rows)
        for number, lesson in enumerate(lessons)
        for rows in torch.split(torch.randperm(lesson.size, generator=generator), _BATCH)
    ]
    return [batches[index] for index in torch.randperm(len(batches), generator=generator).tolist()]


def _loss(network: Network, examples: Examples) -> Tensor:
    scores: Tensor = network(examples)
    weight = (torch.exp(-examples.losses / _DECAY_LENGTH) + _MIN_WEIGHT) * examples.applies
    choice = torch.softmax(masked(-scores / _TEMPERATURE, examples.applies, -torch.inf), dim=1)
    return _SQUARES_WEIGHT * _squares(scores, examples.losses, weight) + (choice * examples.losses).sum(1).mean()


def _squares(scores: Tensor, losses: Tensor, weight: Tensor) -> Tensor:
    """Mean squared error of scores, up to an offset per problem; a slow config cannot be scored too slow."""
    errors = scores - losses
    errors = errors - (errors * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True)
    errors = torch.where((losses >= MAX_LOSS) & (errors > 0), 0.0, errors)
    return (errors**2 * weight).sum() / weight.sum()


MEMBERS = 6
"""Number of networks in the teacher."""


class Teacher(NamedTuple):
    """Trained networks; ``unseen`` is, per problem, the number of the member that was not trained on its GEMM."""

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
    examples: Examples, test: Examples | None, scale: Scale, space: Space, plan: TrainingPlan, at_once: int
) -> tuple[Teacher, list[Epoch]]:
    """The teacher, with ``at_once`` members trained at a time, and the history of its first member."""
    generator = torch.Generator().manual_seed(plan.seed)
    unseen = (torch.randperm(int(examples.gemm.max()) + 1, generator=generator) % MEMBERS)[examples.gemm]
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
    plan: TrainingPlan,
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
