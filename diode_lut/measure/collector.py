"""From problems to a dataset: an executor measures, and records are appended here.

The executor is this process, or a process of our own for each GPU. One that a kernel kills or hangs is replaced.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from diode_lut.build.measurements import doubt
from diode_lut.dataset import SOFTWARE, Dataset, DatasetWriter, Record, Timing, read_dataset
from diode_lut.errors import CollectError, DeviceLostError, install_command, printable
from diode_lut.hardware import slug
from diode_lut.measure import MEASURERS, METHODS
from diode_lut.measure.problems import RecordedKernel
from diode_lut.measure.tasks import (
    Crash,
    Family,
    Outcome,
    Setup,
    Shard,
    Task,
    Watch,
    finalists,
    find_setup,
    make_shards,
    measure_tasks,
    next_shard,
)
from diode_lut.problem import FUSED, GENERATED, SPLIT, Problem
from diode_lut.process import signals_held
from diode_lut.table import Table
from diode_lut.templates.config import baseline

MAX_DEATHS = 3  # number of workers that a problem may kill for unknown reasons before it is skipped
TICK_S = 0.5  # seconds between two looks at the deadline
PATIENCE_S = 5.0  # seconds for a worker to end by itself

_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"

_log = logging.getLogger(__name__)


class Executor(Protocol):
    """Runs the measurements of shards."""

    @property
    def workers(self) -> int:
        """Number of shards measured at the same time, at least 1."""

    def find_setup(self, device: str | None, method: str | None, search_space: str) -> Setup:
        """Return the setup of all workers. CollectError if they differ, HardwareError if there is no such device."""

    def measure(self, shards: Sequence[Shard], setup: Setup, deadline: float) -> Iterator[Outcome]:
        """Yield the outcome of each task, until ``time.monotonic()`` passes ``deadline``."""


@contextmanager
def open_executor(device: str | None) -> Iterator[Executor]:
    """Yield a process that can be replaced for a GPU, or for each GPU if ``device`` is ``all``, or else this process.

    On a CPU this process measures, unless ``device`` is ``all``. Each process has the user's number of Inductor's
    compile threads, but at most an even share of the CPUs: it starts as many processes, and more of them than CPUs
    would only import PyTorch at the same time.
    """
    import torch

    if device != "all" and (device == "cpu" or not torch.cuda.is_available()):
        yield InProcess()
        return
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


class InProcess:
    """Measures in this process."""

    workers = 1

    def find_setup(self, device: str | None, method: str | None, search_space: str) -> Setup:
        return find_setup(device, method, search_space)

    def measure(self, shards: Sequence[Shard], setup: Setup, deadline: float) -> Iterator[Outcome]:
        """See Executor. DeviceLostError if a kernel leaves the device unusable. A hanging kernel ends the process."""
        watch = Watch(_give_up)
        for shard in shards:
            if time.monotonic() >= deadline:
                return
            for outcome in measure_tasks(shard.tasks, MEASURERS[shard.stage], setup, watch):
                yield outcome
                if time.monotonic() >= deadline:
                    return


def _give_up(crash: Crash) -> None:
    message = (
        f"{crash}, and took this process with it; everything before is in the dataset: run again with --device all, "
        "where a process can be replaced, or leave this problem out"
    )
    if threading.current_thread() is threading.main_thread():
        raise DeviceLostError(message)
    print(f"error: {printable(message)}", file=sys.stderr, flush=True)  # noqa: T201 - no caller is left to raise it to
    os._exit(1)


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
        return len(self._workers)

    def close(self) -> None:
        """End all processes. They end themselves if ours ends without this."""
        for worker in self._workers:
            worker.end()

    def find_setup(self, device: str | None, method: str | None, search_space: str) -> Setup:
        """See Executor. Device ``all`` is the device of each worker."""
        try:
            for worker in self._workers:
                worker.send((None if device == "all" else device, method, search_space))
            setup, *others = (worker.receive() for worker in self._workers)
        except (EOFError, ConnectionError) as error:
            raise CollectError("a process that is to measure has ended at once: see its messages above") from error
        for number, other in enumerate(others, 1):
            for name in ("hardware", *SOFTWARE):
                mine, its = getattr(setup.header, name), getattr(other.header, name)
                if mine != its:
                    raise CollectError(f"timings of devices 0 and {number} cannot be mixed: {name} {mine} and {its}")
        assert isinstance(setup, Setup)
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
            more = {crash.problem: (Timing(crash.config, None, crash.reason),)}
            tasks = tuple(task._replace(failed=task.failed + more.get(task.problem, ())) for task in tasks)
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


class Pass(NamedTuple):
    """All problems at a stage: ``outcomes`` yields at most ``total`` outcomes, each once its record is on the disk."""

    stage: str
    total: int
    outcomes: Iterator[Outcome]
    dataset: Dataset


def collect(
    problems: Sequence[Problem],
    path: Path,
    *,
    device: str | None = None,
    method: str | None = None,
    search_space: str = "default",
    budget_s: float = math.inf,
    table: Table | None = None,
    executor: Executor | None = None,
    kernels: Sequence[RecordedKernel] = (),
) -> Generator[Pass]:
    """Measure problems not yet in the dataset at ``path``. Each pass must be exhausted before the next.

    If ``path`` is a directory, the dataset is the file in it named after the hardware and the software. ``device`` is
    ``cpu``, ``cuda`` or ``all`` (see open_executor), by default CUDA if there is any. ``method`` is a key of METHODS,
    by default ``sweep`` on CUDA. After ``budget_s`` seconds no problem is begun. Problems that cannot be measured are
    skipped. With a ``table``, only its answers and the baseline are timed, at the last stage, without problems that it
    misses. Method ``autotune`` times Inductor's other choices as well. ``kernels`` are measured at stage ``final``.
    ``executor`` is already open, and stays open.

    HardwareError if there is no such device, DatasetError if the file holds timings of other hardware or software,
    CollectError if measuring cannot start or go on, or the disk is full, DeviceLostError if a kernel made the device
    unusable and no worker can be replaced.
    """
    deadline = time.monotonic() + budget_s
    with nullcontext(executor) if executor else open_executor(device) as measuring:
        setup = measuring.find_setup(device, method, search_space)
        if table is not None and not table.hardware.same_arch(setup.header.hardware):
            raise CollectError(f"{table.path}: it is for {table.hardware}, this is {setup.header.hardware}")
        hardware, file = setup.header.hardware, path
        if path.is_dir():  # the name is the same for all timings that a file may hold
            software = (f"{name} {getattr(setup.header, name)}" for name in SOFTWARE if getattr(setup.header, name))
            words = [hardware.name, hardware.arch, str(hardware.sm_count), *software]
            file = path / f"{slug(' '.join(words))}.msgpack"
        with DatasetWriter(file, setup.header) as writer:
            dataset = read_dataset(file)
            for stage in METHODS[setup.method] if table is None else METHODS[setup.method][-1:]:
                if table is not None:
                    asked = [(problem, None) for problem in problems] + [(each.problem, each) for each in kernels]
                    found = ((problem, table.lookup(problem), kernel) for problem, kernel in asked)
                    tasks = [
                        Task(problem, tuple(dict.fromkeys((baseline(problem.op), entry.best.config))), kernel=kernel)
                        for problem, entry, kernel in found
                        if entry is not None
                    ]
                elif stage == "final":
                    tasks = finalists(_records(dataset, "sweep"), problems, dataset.header.hardware)
                else:
                    tasks = [Task(problem) for problem in dict.fromkeys(problem.alone for problem in problems)]
                if stage == METHODS[setup.method][-1] and table is None:
                    tasks += [Task(kernel.problem, kernel=kernel) for kernel in kernels]
                with closing(_outcomes(stage, tasks, writer, dataset, measuring, setup, deadline)) as outcomes:
                    yield Pass(stage, len(tasks), outcomes, dataset)


def _outcomes(
    stage: str,
    tasks: list[Task],
    writer: DatasetWriter,
    dataset: Dataset,
    executor: Executor,
    setup: Setup,
    deadline: float,
) -> Generator[Outcome]:
    present = {record.problem for record in _records(dataset, stage)}
    yield from (Outcome(task.problem, "present") for task in tasks if task.problem in present)
    missing = []
    for task in tasks:
        if task.problem.op == SPLIT:
            yield Outcome(task.problem, "skipped", reason="nothing measures splits of reductions")
        elif task.problem.op in FUSED and find_spec("quack") is None:
            reason = f"{task.problem.op} needs QuACK: {install_command('quack')}"
            yield Outcome(task.problem, "skipped", reason=reason)
        elif task.problem.op in GENERATED and (task.kernel is None or stage == "autotune"):
            reason = "its code is a program's, and is measured on a GPU: run the program with `diode-lut tune`"
            yield Outcome(task.problem, "skipped", reason=reason)
        elif task.problem not in present:
            missing.append(task)
    for outcome in executor.measure(make_shards(stage, missing, executor.workers), setup, deadline):
        with signals_held():
            reason = doubt(outcome.record, dataset.header.hardware) if outcome.record is not None else ""
            if reason:
                yield Outcome(outcome.problem, "skipped", reason=reason)
                continue
            if outcome.record is not None:
                try:
                    writer.append(outcome.record)
                except OSError as error:
                    reason = f"cannot be written: {error.strerror}; its records are unharmed: mend that and run again"
                    raise CollectError(f"{writer.path}: {reason}") from error
            yield outcome


def _records(dataset: Dataset, stage: str) -> Iterator[Record]:
    return (record for record in dataset if record.stage == stage)
