"""What a Dask worker runs: one shard at a time."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from typing import Any

from distributed import Worker, get_worker
from distributed.utils import sync

from diode_lut.collect.setup import Setup, difference, find_setup
from diode_lut.collect.task import Outcome, Shard
from diode_lut.collect.watch import Loss, Watch
from diode_lut.collect.workplace import measure_tasks
from diode_lut.domain.errors import CollectError

REPORT_S = 30.0
"""Seconds in which the scheduler must take a report."""


def measure_shard(shard: Shard, measurer: str, setup: Setup, topic: str, number: int, seconds: float) -> None:
    """Measure the tasks and report each outcome to ``topic`` as ``(number, Outcome)``, until ``seconds`` have passed.

    Ends early, after the task in hand, if the client cancels it or is gone. If a kernel costs the process its life,
    that is reported as ``(number, Loss)`` and the process ends. CollectError if it measures otherwise than ``setup``.
    """
    deadline = time.monotonic() + seconds
    worker = get_worker()
    key = worker.get_current_task()
    _require_setup(setup, worker.address)

    def report(message: Outcome | Loss) -> None:
        # Not worker.log_event: that buffers, and what is buffered dies with the process.
        wire = pickle.dumps((number, message))
        sync(worker.loop, worker.scheduler.log_event, topic=topic, msg=wire, callback_timeout=REPORT_S)

    for outcome in measure_tasks(shard.tasks, measurer, setup, Watch(_ending(report))):
        report(outcome)
        if time.monotonic() >= deadline or _cancelled(worker, key):
            return


def _require_setup(setup: Setup, address: str) -> None:
    """A worker may have joined after the collection began."""
    differs = difference(setup, find_setup(setup.device, setup.method, setup.search_space))
    if differs:
        raise CollectError(f"the dataset's timings and those of worker {address} cannot be mixed: {differs}")


def _ending(report: Callable[[Loss], Any]) -> Callable[[Loss], None]:
    def end(loss: Loss) -> None:
        try:
            report(loss)
        finally:
            os._exit(1)  # nothing gentler is sure to work; the nanny starts a new process

    return end


def _cancelled(worker: Worker, key: Any) -> bool:
    task = worker.state.tasks.get(key)
    return task is None or task.state != "executing"
