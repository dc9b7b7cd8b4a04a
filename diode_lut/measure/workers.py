"""Measuring on Dask workers: the cluster, the dispatch of shards, and a worker's function, which reports at once."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from queue import Empty, SimpleQueue
from typing import NamedTuple

import dask
import distributed
from distributed import Client, Future, KilledWorker, Nanny, Scheduler, SpecCluster, get_worker
from distributed.utils import silence_logging_cmgr, sync

from diode_lut.dataset import Timing
from diode_lut.errors import CollectError, install_command, printable
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

MAX_CONNECT_S = 10.0  # maximum wait for a scheduler's answer, in seconds
MAX_WAIT_S = 60.0  # Maximum wait for a worker, in seconds. A nanny replaces a worker within a few
MAX_DEATHS = 3  # number of workers that a problem may kill for unknown reasons before it is skipped
TICK_S = 0.5  # seconds without a message after which the list of workers is checked
MAX_REPORT_S = 30.0  # maximum wait for the scheduler to take a worker's report, in seconds

_SCHEDULER_GONE = "the scheduler is gone; what is measured is in the dataset: start one and run again to go on"

_SETTINGS = {
    "distributed.worker.profile.enabled": False,  # profiling disturbs the timings
    "distributed.nanny.pre-spawn-environ": {},  # the default takes threads from a CPU that is measured
}

_OPTIONS = {"host": "127.0.0.1", "dashboard": False}
_WORKER = {**_OPTIONS, "nthreads": 1, "memory_limit": 0, "silence_logs": logging.CRITICAL}
_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"

_log = logging.getLogger(__name__)


@contextmanager
def local_cluster(device: str | None) -> Iterator[Cluster]:
    """Start a worker for each CUDA device of this machine if ``device`` is ``all``, or else a single worker.

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
    workers = {
        index: {"cls": Nanny, "options": {**_WORKER, "env": {**environment, **threads}}}
        for index, environment in enumerate(environments)
    }
    scheduler = {"cls": Scheduler, "options": {**_OPTIONS, "dashboard_address": "127.0.0.1:0"}}
    with dask.config.set(_SETTINGS):
        with _interrupts_blocked():
            cluster = SpecCluster(workers, scheduler, silence_logs=logging.CRITICAL)
        with cluster, Client(cluster) as client:
            yield Cluster(client)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Keep SIGINT from threads and processes started in the block, as a terminal's Ctrl-C reaches all processes."""
    resource_tracker.ensure_running()  # else multiprocessing starts it with the first process, and unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def connect(address: str) -> Iterator[Cluster]:
    """Connect to the workers of the scheduler at ``address``. CollectError if none answers there."""
    try:
        client = Client(address, timeout=MAX_CONNECT_S)
    except (OSError, ValueError) as error:
        raise CollectError(f"{address}: no scheduler answers ({error}): start one with `dask scheduler`") from error
    with silence_logging_cmgr(logging.CRITICAL), client:
        yield Cluster(client)


def wait_for_worker(client: Client) -> None:
    """Return once there is a worker. CollectError if there is none for MAX_WAIT_S seconds."""
    try:
        client.wait_for_workers(1, timeout=MAX_WAIT_S)
    except distributed.TimeoutError as error:  # in Python 3.10 not the builtin
        address = client.scheduler_info()["address"]
        remedy = f"CUDA_VISIBLE_DEVICES=0 dask worker {address} --nthreads 1 --memory-limit 0"
        raise CollectError(f"{address}: this scheduler has no worker: start one for each GPU: {remedy}") from error


class Cluster:
    """The Executor of a scheduler's workers. Dispatch gives them their shards, not the scheduler."""

    def __init__(self, client: Client) -> None:
        self._client = client
        wait_for_worker(client)
        # The scheduler must not repeat a whole shard because its worker died.
        client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", 0))

    @property
    def workers(self) -> int:
        """See Executor. A replaced worker is missing for a moment, so 0 counts as 1."""
        return max(1, len(self._client.nthreads()))

    def find_setup(self, device: str | None, method: str | None, search_space: str) -> Setup:
        """See Executor. Device ``all`` is the device of each worker."""
        asked = None if device == "all" else device
        try:
            setups: dict[str, Setup] = self._client.run(find_setup, asked, method, search_space)
        except ImportError as error:
            raise CollectError(f"a worker cannot measure: {error}: {install_command('torch,cluster')}") from error
        (first, setup), *others = sorted(setups.items())
        for address, other in others:
            differs = difference(setup, other)
            if differs:
                raise CollectError(f"timings of the workers {first} and {address} cannot be mixed: {differs}")
        return setup

    def measure(self, shards: Sequence[Shard], setup: Setup, deadline: float) -> Iterator[Outcome]:
        """See Executor. The tasks of a dead worker go to another."""
        return Dispatch(self._client, shards, setup, deadline).outcomes()


class _Assignment(NamedTuple):
    """A shard being measured by a worker."""

    number: int
    shard: Shard
    future: Future[None]


class Dispatch:
    """A stage on all workers of ``client``'s scheduler. Each worker has at most a single shard."""

    def __init__(self, client: Client, shards: Sequence[Shard], setup: Setup, deadline: float) -> None:
        self._client = client
        self._setup = setup
        self._deadline = deadline
        self._backlog = list(shards)
        self._topic = f"diode-lut-{uuid.uuid4().hex}"
        self._inbox: SimpleQueue[bytes | int] = SimpleQueue()
        self._assignments: dict[str, _Assignment] = {}
        self._families: dict[str, Family | None] = {}
        self._submitted = 0
        self._crashes: dict[int, Crash] = {}
        self._deaths: Counter[Problem] = Counter()
        self._done: set[Problem] = set()

    def outcomes(self) -> Iterator[Outcome]:
        """Yield an outcome for each task. CollectError if the scheduler, or all workers, are gone for good."""
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
            if not self._backlog:
                return
            in_progress = {each.shard.family for each in self._assignments.values()}
            shard = next_shard(self._backlog, self._families.get(address), in_progress)
            self._backlog.remove(shard)
            self._submitted = number = self._submitted + 1
            seconds = self._deadline - time.monotonic()
            arguments = (shard, MEASURERS[shard.stage], self._setup, self._topic, number, seconds)
            future = self._client.submit(measure_shard, *arguments, workers=[address], pure=False)
            self._assignments[address] = _Assignment(number, shard, future)
            self._families[address] = shard.family
            # The scheduler forwards a worker's reports before it says that the worker is done or dead.
            future.add_done_callback(lambda _, number=number: self._inbox.put(number))

    def _receive(self) -> Iterator[Outcome]:
        """Yield the outcome in the next message, if there is one."""
        try:
            message = self._inbox.get(timeout=TICK_S)
        except Empty:  # shards whose worker left before it began them go back to the backlog
            for address in self._assignments.keys() - self._workers():
                yield from self._replace_worker(address)
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
        """Handle a shard that is done, or whose worker is dead, or that no worker can do."""
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

    def _workers(self) -> set[str]:
        """Return the addresses of the present workers."""
        try:
            return set(self._client.nthreads())
        except OSError as error:
            raise CollectError(_SCHEDULER_GONE) from error

    def _replace_worker(self, address: str) -> Iterator[Outcome]:
        """Put a lost worker's unfinished tasks back into the backlog. A problem that kills workers is skipped."""
        assignment = self._assignments.pop(address)
        crash = self._crashes.pop(assignment.number, None)
        _log.warning("worker %s is lost: %s", address, printable(str(crash or "the reason is not known")))
        tasks = tuple(task for task in assignment.shard.tasks if task.problem not in self._done)
        suspect = crash.problem if crash else tasks[0].problem if len(tasks) == 1 else None
        if crash and crash.config:  # it is not tried again on this problem
            failed = Timing(crash.config, None, crash.reason)
            tasks = tuple(
                task._replace(failed=(*task.failed, failed)) if task.problem == crash.problem else task
                for task in tasks
            )
        elif suspect:
            self._deaths[suspect] += 1
            if self._deaths[suspect] == MAX_DEATHS:
                tasks = tuple(task for task in tasks if task.problem != suspect)
                self._done.add(suspect)
                yield Outcome(suspect, "skipped", reason=f"{MAX_DEATHS} workers died of it")
        if tasks:
            shard = Shard(assignment.shard.stage, tasks)
            self._backlog[:0] = [shard] if crash else shard.halves()  # halves find the task that kills


def measure_shard(shard: Shard, measurer: str, setup: Setup, topic: str, number: int, seconds: float) -> None:
    """Measure the tasks on a worker for ``seconds``, and report each outcome to ``topic`` as ``(number, Outcome)``.

    Ends early, after the current task, if the client cancels it or is gone. If a kernel kills or hangs the process, it
    reports ``(number, Crash)`` and the process ends. CollectError if this worker, which may have joined late, has
    another setup.
    """
    deadline = time.monotonic() + seconds
    worker = get_worker()
    key = worker.get_current_task()
    differs = difference(setup, find_setup(setup.device, setup.method, setup.search_space))
    if differs:
        raise CollectError(f"the dataset's timings and those of worker {worker.address} cannot be mixed: {differs}")

    def report(message: Outcome | Crash) -> None:
        # Not worker.log_event: that buffers, and the buffer dies with the process.
        wire = pickle.dumps((number, message))
        sync(worker.loop, worker.scheduler.log_event, topic=topic, msg=wire, callback_timeout=MAX_REPORT_S)

    def end(crash: Crash) -> None:
        try:
            report(crash)
        finally:
            os._exit(1)  # nothing gentler is sure to work; the nanny starts a new process

    for outcome in measure_tasks(shard.tasks, measurer, setup, Watch(end)):
        report(outcome)
        task = worker.state.tasks.get(key)
        if time.monotonic() >= deadline or task is None or task.state != "executing":
            return
