"""From problems to a dataset: an executor, this process or others, measures, and records are appended here."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol

from diode_lut.build.measurements import doubt
from diode_lut.dataset import SOFTWARE, Dataset, DatasetWriter, Record, read_dataset
from diode_lut.errors import CollectError, DeviceLostError, install_command, printable
from diode_lut.hardware import slug
from diode_lut.measure import MEASURERS, METHODS
from diode_lut.measure.problems import RecordedKernel
from diode_lut.measure.search_space import finalists
from diode_lut.measure.tasks import Crash, Outcome, Setup, Shard, Task, Watch, find_setup, make_shards, measure_tasks
from diode_lut.problem import FUSED, GENERATED, SPLIT, Problem
from diode_lut.process import signals_held
from diode_lut.table import Table
from diode_lut.templates.config import baseline


class Executor(Protocol):
    """Runs the measurements of shards."""

    @property
    def workers(self) -> int:
        """Number of shards measured at the same time, at least 1."""

    def find_setup(self, device: str | None, method: str | None, search_space: str) -> Setup:
        """Return the setup of all workers. CollectError if they differ, HardwareError if there is no such device."""

    def measure(self, shards: Sequence[Shard], setup: Setup, deadline: float) -> Iterator[Outcome]:
        """Yield the outcome of each task, until ``time.monotonic()`` passes ``deadline``."""


def open_executor(device: str | None) -> AbstractContextManager[Executor]:
    """Return processes that can be replaced, for a GPU or for each GPU if ``device`` is ``all``, or else this process.

    On a CPU this process measures, unless ``device`` is ``all``.
    """
    import torch

    if device != "all" and (device == "cpu" or not torch.cuda.is_available()):
        return nullcontext(InProcess())
    from diode_lut.measure.workers import local_workers

    return local_workers(device)


class InProcess:
    """Measures in this process."""

    workers = 1

    def find_setup(self, device: str | None, method: str | None, search_space: str) -> Setup:
        """See Executor."""
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
    by default ``sweep`` on CUDA. After ``budget_s`` seconds no problem is begun.
    Problems that cannot be measured are skipped. With a ``table``, only its
    answers and the baseline are timed, at the last stage, without problems that it misses. Method ``autotune`` times
    Inductor's other choices as well. ``kernels`` are measured at stage ``final``. ``executor`` is already open, and
    stays open.

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
