"""Training a network: the same for the teacher's members and for the student."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from diode_lut.distill.examples import LOST, Examples
from diode_lut.distill.network import Network, masked, mean_regret

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


class Plan(NamedTuple):
    """How to train: the same ``seed`` gives the same network; ``epochs`` are passes over the problems."""

    seed: int = 0
    epochs: int = 100


class Training(NamedTuple):
    """A network and what it is to learn from: ``lessons`` are taken in batches of their own. What its choices are worth
    on a ``test`` is noted after each pass.
    """

    network: Network
    lessons: list[Examples]
    plan: Plan
    test: Examples | None = None


class Epoch(NamedTuple):
    """What became of the network in one pass: mean loss in training, and mean regret of its choices in the test, NaN
    without one.
    """

    loss: float
    regret: float


@contextmanager
def one_thread() -> Iterator[int]:
    """In here torch has one thread, as sums of many come out otherwise with more; gives how many it had before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def train(trainings: Sequence[Training], at_once: int) -> list[list[Epoch]]:
    """Train networks, so many at a time; what happened to each, epoch by epoch.

    Each is trained in one thread, which is faster, and makes the same of it whatever the number of threads.
    """
    ended = Event()
    with ThreadPoolExecutor(at_once, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            return list(pool.map(lambda training: _train(training, ended), trainings))
        finally:
            ended.set()  # what is being trained after an error, or Ctrl-C, is not waited for


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
