"""Measuring on Dask workers: what the client hands out and collects, and what a worker runs.

A worker reports each outcome as soon as it has it, so that its death costs no more than the task in progress.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import distributed
from distributed import Client, Future, KilledWorker, Worker, get_worker
from distributed.utils import sync

from diode_lut.collect.setup import MEASURERS, Setup, difference, find_setup, measure_tasks
from diode_lut.collect.tasks import Backlog, Crash, Family, Outcome, Shard, Task, Watch
from diode_lut.dataset import Timing
from diode_lut.domain.errors import CollectError
from diode_lut.domain.printable import printable
from diode_lut.domain.problem import Problem

MAX_DEATHS = 3
"""Workers that a problem may kill for unknown reasons before it is skipped."""

TICK_S = 0.5
"""Seconds without a message after which the list of workers is checked."""

MAX_WAIT_S = 60.0
"""Longest wait for a worker, in seconds; a nanny replaces a worker within a few."""

MAX_REPORT_S = 30.0
"""Longest wait for the scheduler to take a worker's report, in seconds."""

_SCHEDULER_GONE = "the scheduler is gone; what is measured is in the dataset: start one and run again to go on"

_log = logging.getLogger(__name__)


def wait_for_worker(client: Client) -> None:
    """Returns once there is a worker. CollectError if there is none for MAX_WAIT_S seconds."""
    try:
        client.wait_for_workers(1, timeout=MAX_WAIT_S)
    except distributed.TimeoutError as error:  # in Python 3.10 not the builtin
        address = client.scheduler_info()["address"]
        remedy = f"CUDA_VISIBLE_DEVICES=0 dask worker {address} --nthreads 1 --memory-limit 0"
        raise CollectError(f"{address}: this scheduler has no worker: start one for each GPU: {remedy}") from error


class _Assignment(NamedTuple):
    """A shard that a worker is measuring."""

    number: int
    shard: Shard
    future: Future[None]


class Dispatch:
    """One stage on all workers of ``client``'s scheduler. Every worker has at most one shard."""

    def __init__(self, client: Client, shards: Sequence[Shard], setup: Setup, deadline: float) -> None:
        self._client = client
        self._setup = setup
        self._deadline = deadline
        self._backlog = Backlog(shards)
        self._topic = f"diode-lut-{uuid.uuid4().hex}"
        self._inbox: SimpleQueue[bytes | int] = SimpleQueue()
        self._assignments: dict[str, _Assignment] = {}
        self._families: dict[str, Family | None] = {}
        self._submitted = 0
        self._crashes: dict[int, Crash] = {}
        self._deaths: Counter[Problem] = Counter()
        self._done: set[Problem] = set()

    def outcomes(self) -> Iterator[Outcome]:
        """One outcome for each task. CollectError if the scheduler, or all workers, are gone for good."""
        self._client.subscribe_topic(self._topic, lambda event: self._inbox.put(event[1]))
        try:
            while self._backlog or self._assignments:
                self._assign_shards()
                yield from self._receive()
        finally:
            self._client.cancel([each.future for each in self._assignments.values()])
            self._client.unsubscribe_topic(self._topic)

    def _assign_shards(self) -> None:
        if time.monotonic() >= self._deadline:
            self._backlog.clear()
            return
        if not self._assignments:
            wait_for_worker(self._client)
        for address in self._workers() - self._assignments.keys():
            if self._backlog:
                in_progress = {each.shard.family for each in self._assignments.values()}
                self._submit(address, self._backlog.take(self._families.get(address), in_progress))

    def _submit(self, address: str, shard: Shard) -> None:
        self._submitted = number = self._submitted + 1
        seconds = self._deadline - time.monotonic()
        arguments = (shard, MEASURERS[shard.stage], self._setup, self._topic, number, seconds)
        future = self._client.submit(measure_shard, *arguments, workers=[address], pure=False)
        self._assignments[address] = _Assignment(number, shard, future)
        self._families[address] = shard.family
        # The scheduler forwards a worker's reports before it says that the worker is done or dead.
        future.add_done_callback(lambda _: self._inbox.put(number))

    def _receive(self) -> Iterator[Outcome]:
        """The outcome in the next message, if it has one."""
        try:
            message = self._inbox.get(timeout=TICK_S)
        except Empty:
            yield from self._reassign_lost()
            return
        if isinstance(message, int):
            yield from self._end_shard(message)
            return
        number, report = pickle.loads(message)  # noqa: S301 - from our own worker
        if isinstance(report, Crash):
            self._crashes[number] = report
        elif report.problem not in self._done:
            self._done.add(report.problem)
            yield report

    def _end_shard(self, number: int) -> Iterator[Outcome]:
        """A shard is done, or its worker is dead, or no worker can do it."""
        address = next((address for address, each in self._assignments.items() if each.number == number), None)
        if address is None:
            return
        future = self._assignments[address].future
        if future.status == "finished":
            del self._assignments[address]
        elif future.status == "error" and isinstance(error := future.exception(), KilledWorker):
            yield from self._replace_worker(address)
        elif future.status == "error":
            raise error
        else:
            raise CollectError(_SCHEDULER_GONE)

    def _reassign_lost(self) -> Iterator[Outcome]:
        """Shards whose worker left before it began them go back to the backlog."""
        for address in self._assignments.keys() - self._workers():
            yield from self._replace_worker(address)

    def _workers(self) -> set[str]:
        """The addresses of the workers that are there now."""
        try:
            return set(self._client.nthreads())
        except OSError as error:
            raise CollectError(_SCHEDULER_GONE) from error

    def _replace_worker(self, address: str) -> Iterator[Outcome]:
        """The tasks that a lost worker did not do go back to the backlog; a problem that kills workers is skipped."""
        assignment = self._assignments.pop(address)
        crash = self._crashes.pop(assignment.number, None)
        _log.warning("worker %s is lost: %s", address, printable(str(crash or "the reason is not known")))
        tasks = tuple(task for task in assignment.shard.tasks if task.problem not in self._done)
        suspect = crash.problem if crash else tasks[0].problem if len(tasks) == 1 else None
        if crash and crash.config:
            tasks = tuple(_without_config(crash, task) for task in tasks)
        elif suspect:
            self._deaths[suspect] += 1
            if self._deaths[suspect] == MAX_DEATHS:
                tasks = tuple(task for task in tasks if task.problem != suspect)
                self._done.add(suspect)
                yield Outcome(suspect, "skipped", reason=f"{MAX_DEATHS} workers died of it")
        if tasks:
            shard = Shard(assignment.shard.stage, tasks)
            self._backlog.put_back([shard] if crash else shard.halves())  # halves find the task that kills


def _without_config(crash: Crash, task: Task) -> Task:
    """The task, which no longer tries the config of the crash if that was on its problem."""
    if task.problem != crash.problem or crash.config is None:
        return task
    return task._replace(failed=(*task.failed, Timing(crash.config, None, crash.reason)))


def measure_shard(shard: Shard, measurer: str, setup: Setup, topic: str, number: int, seconds: float) -> None:
    """On a worker: measure the tasks and report each outcome to ``topic`` as ``(number, Outcome)``, for ``seconds``.

    Ends early, after the current task, if the client cancels it or is gone. If a kernel kills or hangs the process,
    that is reported as ``(number, Crash)`` and the process ends. CollectError if the worker's setup is not ``setup``.
    """
    deadline = time.monotonic() + seconds
    worker = get_worker()
    key = worker.get_current_task()
    _require_setup(setup, worker.address)

    def report(message: Outcome | Crash) -> None:
        # Not worker.log_event: that buffers, and the buffer dies with the process.
        wire = pickle.dumps((number, message))
        sync(worker.loop, worker.scheduler.log_event, topic=topic, msg=wire, callback_timeout=MAX_REPORT_S)

    for outcome in measure_tasks(shard.tasks, measurer, setup, Watch(_report_and_exit(report))):
        report(outcome)
        if time.monotonic() >= deadline or _is_cancelled(worker, key):
            return


def _require_setup(setup: Setup, address: str) -> None:
    """CollectError if this worker, which may have joined late, has another setup."""
    differs = difference(setup, find_setup(setup.device, setup.method, setup.search_space))
    if differs:
        raise CollectError(f"the dataset's timings and those of worker {address} cannot be mixed: {differs}")


def _report_and_exit(report: Callable[[Crash], Any]) -> Callable[[Crash], None]:
    def end(crash: Crash) -> None:
        try:
            report(crash)
        finally:
            os._exit(1)  # nothing gentler is sure to work; the nanny starts a new process

    return end


def _is_cancelled(worker: Worker, key: Any) -> bool:
    task = worker.state.tasks.get(key)
    return task is None or task.state != "executing"
