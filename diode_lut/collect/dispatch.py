"""Handing shards to workers and taking in what they report, whatever happens to them."""

from __future__ import annotations

import logging
import pickle
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple

import distributed
from distributed import Client, Future, KilledWorker

from diode_lut.collect.setup import Setup
from diode_lut.collect.shards import Backlog, halves
from diode_lut.collect.stages import MEASURERS
from diode_lut.collect.task import Family, Outcome, Shard, Task
from diode_lut.collect.watch import Loss
from diode_lut.collect.worker import measure_shard
from diode_lut.dataset import Timing
from diode_lut.domain.errors import CollectError
from diode_lut.domain.printable import printable
from diode_lut.domain.problem import Problem

MOST_DEATHS = 3
"""A problem that kills so many workers, for reasons unknown, is skipped."""

TICK_S = 0.5
"""Seconds after which we look for workers that came or went, if there are no news."""

PATIENCE_S = 60.0
"""Seconds without any worker after which we give up; a nanny replaces a worker in a few."""

_SCHEDULER_GONE = "the scheduler is gone; what is measured is in the dataset: start one and run again to go on"

_log = logging.getLogger(__name__)


def wait_for_worker(client: Client) -> None:
    """Returns once there is a worker. CollectError if there is none for PATIENCE_S seconds."""
    try:
        client.wait_for_workers(1, timeout=PATIENCE_S)
    except distributed.TimeoutError as error:  # in Python 3.10 not the builtin
        address = client.scheduler_info()["address"]
        remedy = f"CUDA_VISIBLE_DEVICES=0 dask worker {address} --nthreads 1 --memory-limit 0"
        raise CollectError(f"{address}: this scheduler has no worker: start one for each GPU: {remedy}") from error


class _Hand(NamedTuple):
    """A shard that a worker has in hand."""

    number: int
    shard: Shard
    future: Future[None]


class Dispatch:
    """One stage on all workers of ``client``'s scheduler. Every worker has at most one shard in hand."""

    def __init__(self, client: Client, shards: Sequence[Shard], setup: Setup, deadline: float) -> None:
        self._client = client
        self._setup = setup
        self._deadline = deadline
        self._backlog = Backlog(shards)
        self._topic = f"diode-lut-{uuid.uuid4().hex}"
        self._inbox: SimpleQueue[bytes | int] = SimpleQueue()
        self._hands: dict[str, _Hand] = {}
        self._families: dict[str, Family] = {}
        self._submitted = 0
        self._losses: dict[int, Loss] = {}
        self._deaths: Counter[Problem] = Counter()
        self._done: set[Problem] = set()

    def outcomes(self) -> Iterator[Outcome]:
        """What became of each task, once each. CollectError if the scheduler or all workers are gone for good."""
        self._client.subscribe_topic(self._topic, lambda event: self._inbox.put(event[1]))
        try:
            while self._backlog or self._hands:
                self._hand_out()
                yield from self._take_in()
        finally:
            self._client.cancel([hand.future for hand in self._hands.values()])
            self._client.unsubscribe_topic(self._topic)

    def _hand_out(self) -> None:
        if time.monotonic() >= self._deadline:
            self._backlog.clear()
            return
        if not self._hands:
            wait_for_worker(self._client)
        for address in self._workers() - self._hands.keys():
            if self._backlog:
                in_hand = {hand.shard.family for hand in self._hands.values()}
                self._submit(address, self._backlog.take(self._families.get(address), in_hand))

    def _submit(self, address: str, shard: Shard) -> None:
        self._submitted = number = self._submitted + 1
        seconds = self._deadline - time.monotonic()
        arguments = (shard, MEASURERS[shard.stage], self._setup, self._topic, number, seconds)
        future = self._client.submit(measure_shard, *arguments, workers=[address], pure=False)
        self._hands[address] = _Hand(number, shard, future)
        self._families[address] = shard.family
        # The scheduler sends what a worker reported before it sends what became of the worker.
        future.add_done_callback(lambda _: self._inbox.put(number))

    def _take_in(self) -> Iterator[Outcome]:
        """What the next message brings."""
        try:
            message = self._inbox.get(timeout=TICK_S)
        except Empty:
            yield from self._without_worker()
            return
        if isinstance(message, int):
            yield from self._ended(message)
            return
        number, news = pickle.loads(message)  # noqa: S301 - from our own worker
        if isinstance(news, Loss):
            self._losses[number] = news
        elif news.problem not in self._done:
            self._done.add(news.problem)
            yield news

    def _ended(self, number: int) -> Iterator[Outcome]:
        """A shard is done, or its worker is dead, or it cannot be done by any."""
        address = next((address for address, hand in self._hands.items() if hand.number == number), None)
        if address is None:
            return
        future = self._hands[address].future
        if future.status == "finished":
            del self._hands[address]
        elif future.status == "error" and isinstance(error := future.exception(), KilledWorker):
            yield from self._died(address)
        elif future.status == "error":
            raise error
        else:
            raise CollectError(_SCHEDULER_GONE)

    def _without_worker(self) -> Iterator[Outcome]:
        """Shards whose worker went away before it had begun them."""
        for address in self._hands.keys() - self._workers():
            yield from self._died(address)

    def _workers(self) -> set[str]:
        """The addresses of those that are there now."""
        try:
            return set(self._client.nthreads())
        except OSError as error:
            raise CollectError(_SCHEDULER_GONE) from error

    def _died(self, address: str) -> Iterator[Outcome]:
        """Puts back what a lost worker had in hand and did not do."""
        hand = self._hands.pop(address)
        loss = self._losses.pop(hand.number, None)
        _log.warning("worker %s is lost: %s", address, printable(str(loss or "why is not known")))
        tasks = tuple(task for task in hand.shard.tasks if task.problem not in self._done)
        suspect = loss.problem if loss else tasks[0].problem if len(tasks) == 1 else None
        if loss and loss.config:
            tasks = tuple(_after(loss, task) for task in tasks)
        elif suspect:
            self._deaths[suspect] += 1
            if self._deaths[suspect] == MOST_DEATHS:
                tasks = tuple(task for task in tasks if task.problem != suspect)
                self._done.add(suspect)
                yield Outcome(suspect, "skipped", reason=f"{MOST_DEATHS} workers died of it")
        if tasks:
            shard = Shard(hand.shard.stage, tasks)
            self._backlog.put_back([shard] if loss else halves(shard))  # halves: to find the one that kills


def _after(loss: Loss, task: Task) -> Task:
    if task.problem != loss.problem or loss.config is None:
        return task
    return task._replace(failed=(*task.failed, Timing(loss.config, None, loss.reason)))
