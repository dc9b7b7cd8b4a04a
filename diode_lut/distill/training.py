"""Training of networks: the teacher's members and the student."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from diode_lut.distill.examples import MAX_LOSS, Examples
from diode_lut.distill.network import Network, masked, mean_regret

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


class Plan(NamedTuple):
    """How to train: the same ``seed`` gives the same network. ``epochs`` is the number of passes over the problems."""

    seed: int = 0
    epochs: int = 100


class Training(NamedTuple):
    """A network and its training examples. A batch has examples of one of the ``lessons``.

    The regret on ``test`` is recorded after each epoch.
    """

    network: Network
    lessons: list[Examples]
    plan: Plan
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
