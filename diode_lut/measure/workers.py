"""Measuring in processes of our own, one for each GPU. One that a kernel kills or hangs is replaced."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from diode_lut.dataset import Timing
from diode_lut.errors import CollectError, printable
from diode_lut.measure import MEASURERS
from diode_lut.measure.tasks import (
    Crash,
    Family,
    Outcome,
    Setup,
    Shard,
    Watch,
    difference,
    find_setup,
    measure_tasks,
    next_shard,
)
from diode_lut.problem import Problem

MAX_DEATHS = 3  # number of workers that a problem may kill for unknown reasons before it is skipped
TICK_S = 0.5  # seconds between two looks at the deadline
PATIENCE_S = 5.0  # seconds for a worker to end by itself

_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"

_log = logging.getLogger(__name__)


@contextmanager
def local_workers(device: str | None) -> Iterator[Workers]:
    """Yield a worker for each CUDA device of this machine if ``device`` is ``all``, or else a single worker.

    Each has the user's number of Inductor's compile threads, but at most an even share of the CPUs: it starts as many
    processes, and more of them than CPUs would only import PyTorch at the same time.
    """
    import torch

    environments: list[dict[str, str]] = [{}]
    if torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = visible.split(",") if visible else [str(index) for index in range(torch.cuda.device_count())]
        environments = [{"CUDA_VISIBLE_DEVICES": each} for each in (devices if device == "all" else devices[:1])]
    share = max(1, len(os.sched_getaffinity(0)) // len(environments))
    threads = {_THREADS: str(min(int(os.environ.get(_THREADS, share)), share))}
    workers = Workers([{**environment, **threads} for environment in environments])
    try:
        yield workers
    finally:
        workers.close()


class Worker:
    """A process with these environment variables that measures a shard at a time. It is started when it is needed."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._process: Any = None
        self.pipe: Connection
        self.shard: Shard | None = None
        self.family: Family | None = None
        self.crash: Crash | None = None

    def send(self, message: Any) -> None:
        """Send a question for the setup, or a shard to measure."""
        if self._process is None:
            context = get_context("spawn")
            self.pipe, other = context.Pipe()
            before = {name: os.environ.get(name) for name in self._environment}
            # As a terminal's Ctrl-C reaches all processes. Unless it runs already, multiprocessing starts its tracker
            # with the first process, and unblocks signals.
            resource_tracker.ensure_running()
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            os.environ.update(self._environment)
            try:
                self._process = context.Process(target=serve, args=(other, MEASURERS))
                self._process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                for name, value in before.items():
                    if value is None:
                        del os.environ[name]
                    else:
                        os.environ[name] = value
            other.close()
        self.pipe.send(message)

    def receive(self) -> Any:
        """Return the next message. EOFError if the process has ended, and the error if it sends one."""
        message = self.pipe.recv()
        if isinstance(message, Exception):
            raise message
        return message

    def end(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self.pipe.close()
            if self.shard is not None:
                self._process.terminate()
            self._process.join(PATIENCE_S)
            self._process.kill()
            self._process.join()
        self._process = self.shard = self.family = self.crash = None


class Workers:
    """The Executor of these processes, one for each environment."""

    def __init__(self, environments: Sequence[Mapping[str, str]]) -> None:
        self._workers = [Worker(environment) for environment in environments]

    @property
    def workers(self) -> int:
        """See Executor."""
        return len(self._workers)

    def close(self) -> None:
        """End all processes. They end themselves if ours ends without this."""
        for worker in self._workers:
            worker.end()

    def find_setup(self, device: str | None, method: str | None, search_space: str) -> Setup:
        """See Executor. Device ``all`` is the device of each worker."""
        for worker in self._workers:
            worker.send((None if device == "all" else device, method, search_space))
        setup, *others = [self._setup_of(worker) for worker in self._workers]
        for number, other in enumerate(others, 1):
            differs = difference(setup, other)
            if differs:
                raise CollectError(f"timings of devices 0 and {number} cannot be mixed: {differs}")
        return setup

    def _setup_of(self, worker: Worker) -> Setup:
        try:
            setup: Setup = worker.receive()
        except EOFError as error:
            raise CollectError("a process that is to measure has ended at once: see its messages above") from error
        return setup

    def measure(self, shards: Sequence[Shard], setup: Setup, deadline: float) -> Iterator[Outcome]:
        """See Executor. The tasks of a dead worker go to another."""
        backlog, done, deaths = list(shards), set[Problem](), Counter[Problem]()
        try:
            while backlog or any(worker.shard for worker in self._workers):
                if time.monotonic() >= deadline:
                    backlog.clear()
                for worker in self._workers:
                    if worker.shard is None and backlog:
                        in_progress = {each.shard.family for each in self._workers if each.shard}
                        shard = next_shard(backlog, worker.family, in_progress)
                        backlog.remove(shard)
                        worker.shard, worker.family = shard, shard.family
                        with suppress(ConnectionError):  # it has died since its last shard, and is replaced below
                            worker.send((shard, setup, deadline - time.monotonic()))
                ready = wait([worker.pipe for worker in self._workers if worker.shard], TICK_S)
                for worker in [each for each in self._workers if each.shard and each.pipe in ready]:
                    try:
                        message = worker.receive()
                    except (EOFError, ConnectionError):
                        yield from self._replace(worker, backlog, done, deaths)
                        continue
                    if message is None:
                        worker.shard = None
                    elif isinstance(message, Crash):
                        worker.crash = message
                    elif message.problem not in done:
                        done.add(message.problem)
                        yield message
        finally:  # if the caller ends early, a worker ends with the problem in hand
            for worker in self._workers:
                if worker.shard is not None:
                    worker.end()

    def _replace(
        self, worker: Worker, backlog: list[Shard], done: set[Problem], deaths: Counter[Problem]
    ) -> Iterator[Outcome]:
        """Put a dead worker's unfinished tasks back into the backlog. A problem that kills workers is skipped."""
        crash, shard = worker.crash, worker.shard
        assert shard is not None
        _log.warning("a process is lost: %s", printable(str(crash or "the reason is not known")))
        worker.shard = None
        worker.end()
        tasks = tuple(task for task in shard.tasks if task.problem not in done)
        suspect = crash.problem if crash else tasks[0].problem if len(tasks) == 1 else None
        if crash and crash.config:  # it is not tried again on this problem
            failed = Timing(crash.config, None, crash.reason)
            tasks = tuple(
                task._replace(failed=(*task.failed, failed)) if task.problem == crash.problem else task
                for task in tasks
            )
        elif suspect:
            deaths[suspect] += 1
            if deaths[suspect] == MAX_DEATHS:
                tasks = tuple(task for task in tasks if task.problem != suspect)
                done.add(suspect)
                yield Outcome(suspect, "skipped", reason=f"{MAX_DEATHS} processes died of it")
        if tasks:
            left = Shard(shard.stage, tasks)
            backlog[:0] = [left] if crash else left.halves()  # halves find the task that kills


def serve(pipe: Connection, measurers: Mapping[str, str]) -> None:
    """Answer questions of our own process until it ends: with a Setup, or with each Outcome, then None.

    If a kernel kills or hangs the process, it sends a Crash and ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end(crash: Crash) -> None:
        try:
            pipe.send(crash)
        finally:
            os._exit(1)  # nothing gentler is sure to work

    with suppress(EOFError, ConnectionError):
        while True:
            question = pipe.recv()
            try:
                if isinstance(question[0], Shard):
                    shard, setup, seconds = question
                    deadline = time.monotonic() + seconds
                    for outcome in measure_tasks(shard.tasks, measurers[shard.stage], setup, Watch(end)):
                        pipe.send(outcome)
                        if time.monotonic() >= deadline:
                            break
                    pipe.send(None)
                else:
                    pipe.send(find_setup(*question))
            except (EOFError, ConnectionError):
                raise
            except Exception as error:
                pipe.send(error)
