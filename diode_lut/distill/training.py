"""Training a network: the same for the teacher's members and for the student."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from diode_lut.distill.examples import LOST, Examples, Space
from diode_lut.model.features import Floats
from diode_lut.model.network import OUTPUTS, Weights

HIDDEN = 96, 64
"""Neurons of the two layers."""

LEARNED = 16
"""Features of each candidate that are learned: what its kernel is like beyond what its parameters say."""

_FIRST_LEARNED = 0.1
"""Standard deviation of these at first."""

_BATCH = 64
_LEARNING_RATE, _WARM_UP, _WEIGHT_DECAY = 3e-3, 0.15, 0.01

_TOP = 0.15
"""How fast an error counts for less the further a config is from the best, as a logarithm of time; and"""
_REST = 0.05
"""what it counts at least."""

_TEMPERATURE = 0.02
"""Scores that differ by this are hard to tell apart."""

_SQUARES, _REGRETS = 10.0, 0.1
"""How much squared errors of scores, and those of logarithms of regrets, count against the regret of the choice."""


class Plan(NamedTuple):
    """How to train: the same ``seed`` gives the same network; ``epochs`` are passes over the problems."""

    seed: int = 0
    epochs: int = 100


class Scale(NamedTuple):
    """Mean and standard deviation of each feature: of problems, configs and joint ones."""

    mean: tuple[Tensor, Tensor, Tensor]
    deviation: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def of(cls, examples: Examples, configs: Tensor) -> Scale:
        """What brings these examples to mean 0 and deviation 1; a constant feature stays what it is."""
        parts = examples.features, configs[examples.family][examples.applies], examples.joint[examples.applies]
        deviations = [part.std(0) for part in parts]
        return cls(
            tuple(part.mean(0) for part in parts),  # type: ignore[arg-type]
            tuple(torch.where(deviation > 1e-3, deviation, 1.0) for deviation in deviations),  # type: ignore[arg-type]
        )

    def widened(self, count: int) -> Scale:
        """The same for configs with so many more features, which stay what they are."""
        (problem, config, joint), (of_problem, of_config, of_joint) = self
        return Scale(
            (problem, torch.cat((config, torch.zeros(count))), joint),
            (of_problem, torch.cat((of_config, torch.ones(count))), of_joint),
        )

    def apply(self, examples: Examples) -> Examples:
        """The examples as the network takes them."""
        return examples._replace(
            features=(examples.features - self.mean[0]) / self.deviation[0],
            joint=(examples.joint - self.mean[2]) / self.deviation[2],
        )


class Network(nn.Module):
    """The network of ``model.network`` as torch trains it."""

    def __init__(self, scale: Scale, space: Space) -> None:
        super().__init__()
        self.scale = scale
        self._configs, self._numbers = (space.configs - scale.mean[1]) / scale.deviation[1], space.numbers
        first, second = HIDDEN
        self.learned = nn.Parameter(_FIRST_LEARNED * torch.randn(int(space.numbers.max()) + 1, LEARNED))
        of_problem, of_config, of_joint = map(len, scale.mean)
        inputs = [of_problem, of_config + LEARNED, of_joint]
        whole = nn.Linear(sum(inputs), first)
        self.parts = nn.ParameterList(part.detach().clone() for part in torch.split(whole.weight, inputs, dim=1))
        self.first_bias = nn.Parameter(whole.bias.detach().clone())
        self.second, self.last = nn.Linear(first, second), nn.Linear(second, OUTPUTS)

    def forward(self, examples: Examples) -> Tensor:
        """Scores and logarithms of regrets, problems x candidates x 2, of examples that the scale was applied to."""
        of_problem, of_config, of_joint = self.parts
        plain, batched = torch.cat((self._configs, self.learned[self._numbers]), dim=2) @ of_config.T
        hidden = examples.joint @ of_joint.T + torch.where(examples.family[:, None, None] == 1, batched, plain)
        hidden = torch.relu(hidden + (examples.features @ of_problem.T + self.first_bias)[:, None])
        answer: Tensor = self.last(torch.relu(self.second(hidden)))
        return answer

    def weights(self) -> Weights:
        """What inference needs, with the scaling of features worked in."""
        scale = self.scale.widened(LEARNED)
        scaled = [part / deviation for part, deviation in zip(self.parts, scale.deviation, strict=True)]
        shift = sum(part @ mean for part, mean in zip(scaled, scale.mean, strict=True))
        arrays = (
            self.learned.T,
            *scaled,
            (self.first_bias - shift)[:, None],
            *(self.second.weight, self.second.bias[:, None], self.last.weight, self.last.bias[:, None]),
        )
        return Weights(*(_array(each) for each in arrays))


def _array(tensor: Tensor) -> Floats:
    return tensor.detach().numpy().copy()


class Lesson(NamedTuple):
    """What to learn from. ``regrets`` are the logarithms to answer for each candidate; None to learn only scores."""

    examples: Examples
    regrets: Tensor | None = None


class Epoch(NamedTuple):
    """What became of the network in one pass: mean loss in training, and mean regret of its choices in the test."""

    loss: float
    regret: float


def train(network: Network, lessons: list[Lesson], test: Examples | None, plan: Plan) -> list[Epoch]:
    """Train on all lessons, each in batches of its own; what happened, epoch by epoch."""
    generator = torch.Generator().manual_seed(plan.seed)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=_WEIGHT_DECAY)
    batches = sum(-(-lesson.examples.size // _BATCH) for lesson in lessons)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _LEARNING_RATE, total_steps=plan.epochs * batches, pct_start=_WARM_UP
    )
    history = []
    for _ in range(plan.epochs):
        total = 0.0
        for number, rows in _shuffled(lessons, generator):
            loss = _loss(network, lessons[number], rows)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
        history.append(Epoch(total / batches, mean_regret(network, test) if test is not None else np.nan))
    return history


def _shuffled(lessons: list[Lesson], generator: torch.Generator) -> list[tuple[int, Tensor]]:
    batches = [
        (number, rows)
        for number, lesson in enumerate(lessons)
        for rows in torch.split(torch.randperm(lesson.examples.size, generator=generator), _BATCH)
    ]
    return [batches[place] for place in torch.randperm(len(batches), generator=generator).tolist()]


def _loss(network: Network, lesson: Lesson, rows: Tensor) -> Tensor:
    examples = lesson.examples.take(rows)
    scores, regrets = network(examples).unbind(-1)
    weight = (torch.exp(-examples.losses / _TOP) + _REST) * examples.applies
    choice = torch.softmax(masked(-scores / _TEMPERATURE, examples.applies, -torch.inf), dim=1)
    loss = _SQUARES * _squares(scores, examples.losses, weight) + (choice * examples.losses).sum(1).mean()
    if lesson.regrets is not None:
        errors = (regrets - lesson.regrets[rows]) ** 2
        loss = loss + _REGRETS * (errors * weight).sum() / weight.sum()
    return loss


def _squares(scores: Tensor, losses: Tensor, weight: Tensor) -> Tensor:
    """Mean squared error of scores, whose level on each problem is free; no slow config can be called too slow."""
    errors = scores - losses
    errors = errors - (errors * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True)
    errors = torch.where((losses >= LOST) & (errors > 0), 0.0, errors)
    return (errors**2 * weight).sum() / weight.sum()


def masked(values: Tensor, applies: Tensor, otherwise: float) -> Tensor:
    """The values of candidates that apply."""
    return torch.where(applies, values, otherwise)


@torch.no_grad()
def mean_regret(network: Network, examples: Examples) -> float:
    """How much slower than the best the first choices are, as the geometric mean, minus one."""
    choice = masked(network(examples)[..., 0], examples.applies, torch.inf).argmin(1, keepdim=True)
    return float(torch.expm1(examples.losses.gather(1, choice).mean()))
