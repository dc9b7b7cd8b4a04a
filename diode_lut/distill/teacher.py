"""The teacher: an ensemble of networks, each of which leaves out another part of the problems."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from diode_lut.distill.examples import LOST, Examples, Space
from diode_lut.distill.network import Network, Scale, answers, losses_of
from diode_lut.distill.training import Epoch, Plan, Training, train

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
