"""The teacher: an ensemble of networks, each trained on its own part of the problems.

Where its members disagree, nobody should be sure.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from diode_lut.distill.examples import LOST, Examples, Space
from diode_lut.distill.training import Epoch, Lesson, Network, Plan, Scale, masked, train

MEMBERS = 6

_SHARE = 0.85
"""What part of the problems each member sees."""

_LEAST_REGRET = 1e-3
"""Added to regrets, whose logarithms are learned."""

_AT_ONCE = 512
"""So many problems are answered at a time."""


class Teacher(NamedTuple):
    """Trained networks."""

    members: tuple[Network, ...]

    @torch.no_grad()
    def teach(self, examples: Examples) -> Lesson:
        """The examples with what the members say about them: losses, and logarithms of the regret to expect."""
        parts = [self._teach(examples.take(rows)) for rows in torch.split(torch.arange(examples.size), _AT_ONCE)]
        losses, regrets = (torch.cat(part) for part in zip(*parts, strict=True))
        return Lesson(examples._replace(losses=losses), regrets)

    def _teach(self, examples: Examples) -> tuple[Tensor, Tensor]:
        scores = torch.stack([member(examples)[..., 0] for member in self.members])
        scores = masked(scores, examples.applies, torch.inf)
        best = scores.amin(2, keepdim=True)
        mean = scores.mean(0)
        losses = (mean - mean.amin(1, keepdim=True)).clamp(max=LOST)
        regrets = torch.expm1((scores - best).clamp(max=LOST)).mean(0)
        return losses, torch.log(regrets + _LEAST_REGRET)


def train_teacher(
    examples: Examples, test: Examples | None, scale: Scale, space: Space, plan: Plan
) -> tuple[Teacher, list[Epoch]]:
    """The teacher, and how its first member came about."""
    members, histories = [], []
    for number in range(MEMBERS):
        own = plan._replace(seed=1000 * plan.seed + number)
        generator = torch.Generator().manual_seed(own.seed)
        rows = torch.randperm(examples.size, generator=generator)[: round(_SHARE * examples.size)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(own.seed)
            member = Network(scale, space)
        histories.append(train(member, [Lesson(examples.take(rows))], test, own))
        members.append(member)
    return Teacher(tuple(members)), histories[0]
