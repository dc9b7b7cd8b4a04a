"""Training a network: the same for the teacher's members and for the student."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from diode_lut.distill.examples import LOST, Examples, Space
from diode_lut.model.features import Floats
from diode_lut.model.network import Weights

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

_SQUARES = 10.0
"""How much squared errors of scores count against the regret of the choice."""

_AT_ONCE = 512
"""So many problems are answered at a time."""


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

    def __init__(self, scale: Scale, space: Space, seed: int) -> None:
        super().__init__()
        self.scale = scale
        self._configs, self._numbers = (space.configs - scale.mean[1]) / scale.deviation[1], space.numbers
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._draw(*HIDDEN)

    def _draw(self, first: int, second: int) -> None:
        """The weights to begin with."""
        self.learned = nn.Parameter(_FIRST_LEARNED * torch.randn(int(self._numbers.max()) + 1, LEARNED))
        of_problem, of_config, of_joint = map(len, self.scale.mean)
        inputs = [of_problem, of_config + LEARNED, of_joint]
        whole = nn.Linear(sum(inputs), first)
        self.parts = nn.ParameterList(part.detach().clone() for part in torch.split(whole.weight, inputs, dim=1))
        self.first_bias = nn.Parameter(whole.bias.detach().clone())
        self.second, self.last = nn.Linear(first, second), nn.Linear(second, 1)

    def forward(self, examples: Examples) -> Tensor:
        """Scores, problems x candidates, of examples that the scale was applied to."""
        _, second = self.layers(examples)
        scores: Tensor = self.last(second)[..., 0]
        return scores

    def layers(self, examples: Examples) -> tuple[Tensor, Tensor]:
        """What the first and the second layer make of them, each problems x candidates x neurons."""
        of_problem, of_config, of_joint = self.parts
        plain, batched = torch.cat((self._configs, self.learned[self._numbers]), dim=2) @ of_config.T
        first = examples.joint @ of_joint.T + torch.where(examples.family[:, None, None] == 1, batched, plain)
        first = torch.relu(first + (examples.features @ of_problem.T + self.first_bias)[:, None])
        return first, torch.relu(self.second(first))

    def weights(self, doubt: Tensor, doubt_bias: Tensor) -> Weights:
        """What inference needs, with the scaling of features worked in; ``doubt`` is what to make of both layers."""
        scale = self.scale.widened(LEARNED)
        scaled = [part / deviation for part, deviation in zip(self.parts, scale.deviation, strict=True)]
        shift = sum(part @ mean for part, mean in zip(scaled, scale.mean, strict=True))
        arrays = (
            self.learned.T,
            *scaled,
            (self.first_bias - shift)[:, None],
            *(self.second.weight, self.second.bias[:, None], self.last.weight, self.last.bias[:, None]),
            *(doubt[None], doubt_bias[None]),
        )
        return Weights(*(_array(each) for each in arrays))


def _array(tensor: Tensor) -> Floats:
    return tensor.detach().numpy().copy()


class Training(NamedTuple):
    """A network and what it is to learn from: ``lessons`` are taken in batches of their own."""

    network: Network
    lessons: list[Examples]
    plan: Plan


class Epoch(NamedTuple):
    """What became of the network in one pass: mean loss in training, and mean regret of its choices in the test."""

    loss: float
    regret: float


def train(trainings: Sequence[Training], test: Examples | None) -> list[list[Epoch]]:
    """Train networks, as many at a time as torch has threads; what happened to each, epoch by epoch.

    Each is trained in one thread, which is faster, and makes the same of it whatever the number of threads.
    """
    threads, ended = torch.get_num_threads(), Event()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            try:
                return list(pool.map(lambda training: _train(training, test, ended), trainings))
            finally:
                ended.set()  # what is being trained after an error, or Ctrl-C, is not waited for
    finally:
        torch.set_num_threads(threads)


def _train(training: Training, test: Examples | None, ended: Event) -> list[Epoch]:
    network, lessons, plan = training
    generator = torch.Generator().manual_seed(plan.seed)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=_WEIGHT_DECAY)
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
    return [batches[place] for place in torch.randperm(len(batches), generator=generator).tolist()]


def _loss(network: Network, examples: Examples) -> Tensor:
    scores: Tensor = network(examples)
    weight = (torch.exp(-examples.losses / _TOP) + _REST) * examples.applies
    choice = torch.softmax(masked(-scores / _TEMPERATURE, examples.applies, -torch.inf), dim=1)
    return _SQUARES * _squares(scores, examples.losses, weight) + (choice * examples.losses).sum(1).mean()


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
def answers(network: Network, examples: Examples) -> Tensor:
    """Scores of all problems, problems x candidates; those of what does not apply are infinite."""
    parts = [network(examples.take(rows)) for rows in _parts(examples)]
    return masked(torch.cat(parts), examples.applies, torch.inf)


@torch.no_grad()
def layers_of(network: Network, examples: Examples, choices: Tensor) -> Tensor:
    """What both layers make of one choice on each problem, problems x neurons."""
    parts = []
    for rows in _parts(examples):
        layers = network.layers(examples.take(rows))
        parts.append(torch.cat([layer[torch.arange(len(rows)), choices[rows]] for layer in layers], dim=1))
    return torch.cat(parts)


def _parts(examples: Examples) -> Sequence[Tensor]:
    return torch.split(torch.arange(examples.size), _AT_ONCE)


def losses_of(network: Network, examples: Examples) -> Tensor:
    """The loss of the first choice on each problem."""
    choice = answers(network, examples).argmin(1, keepdim=True)
    return examples.losses.gather(1, choice)[:, 0]


def mean_regret(network: Network, examples: Examples) -> float:
    """How much slower than the best the first choices are, as the geometric mean, minus one."""
    return float(torch.expm1(losses_of(network, examples).mean()))
