"""From problems to a dataset: an executor measures, and the records are appended to the file here."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from diode_lut.collect.executor import Executor, open_executor
from diode_lut.collect.setup import METHODS, Setup, final_tasks
from diode_lut.collect.tasks import Outcome, Task, make_shards
from diode_lut.collect.watch import signals_held
from diode_lut.dataset import Dataset, DatasetWriter, Record, read_dataset
from diode_lut.domain.errors import CollectError
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import ATEN
from diode_lut.table import Table


class Pass(NamedTuple):
    """All problems at one stage: ``outcomes`` yields at most ``total`` outcomes, each once its record is on the disk.

    ``dataset`` is the file that is written. Its ``lost`` are the damaged places that the last reading found.
    """

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
    scheduler: str | None = None,
    budget_s: float = math.inf,
    table: Table | None = None,
) -> Generator[Pass]:
    """Measure what the dataset at ``path`` does not hold yet; each pass must be exhausted before the next.

    ``device`` is ``cpu``, ``cuda`` or ``all`` (see open_executor); by default CUDA where there is any. ``method`` is
    one of METHODS; by default ``sweep`` on CUDA. ``scheduler`` is the address of a Dask scheduler whose workers
    measure. After ``budget_s`` seconds no problem is begun. Problems that cannot be measured are skipped. With a
    ``table``, only its answers and ``aten`` are timed, at the stage ``final``; problems that it misses are left out.

    HardwareError without such a device, DatasetError if the file holds timings of other hardware or other software,
    CollectError if measuring cannot start or go on, or the disk is full, DeviceLostError if a kernel made the device
    unusable and no worker can be replaced.
    """
    deadline = time.monotonic() + budget_s
    with open_executor(device, scheduler) as executor:
        setup = executor.find_setup(device, method, search_space)
        if table is not None:
            _require_fit(table, setup)
        with DatasetWriter(path, setup.header) as writer:
            dataset = read_dataset(path)
            for stage in METHODS[setup.method] if table is None else ("final",):
                tasks = _tasks(stage, problems, dataset) if table is None else _answers(table, problems)
                with closing(_outcomes(stage, tasks, writer, dataset, executor, setup, deadline)) as outcomes:
                    yield Pass(stage, len(tasks), outcomes, dataset)


def _tasks(stage: str, problems: Sequence[Problem], dataset: Dataset) -> list[Task]:
    if stage != "final":
        return [Task(problem) for problem in dict.fromkeys(problem.alone for problem in problems)]
    return final_tasks(_records(dataset, "sweep"), problems, dataset.header.hardware.sm_count)


def _require_fit(table: Table, setup: Setup) -> None:
    if "final" not in METHODS[setup.method]:
        raise CollectError(
            f"method {setup.method} has no stage final, which times a table's answers: use --method sweep, on CUDA"
        )
    if not table.hardware.same_arch(setup.header.hardware):
        raise CollectError(f"{table.path}: it is for {table.hardware}, this is {setup.header.hardware}")


def _answers(table: Table, problems: Sequence[Problem]) -> list[Task]:
    """For each problem that the table covers, the first config of its row, and aten."""
    entries = ((problem, table.lookup(problem)) for problem in problems)
    return [Task(problem, tuple(dict.fromkeys((ATEN, entry.best.config)))) for problem, entry in entries if entry]


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
    missing = [task for task in tasks if task.problem not in present]
    for outcome in executor.measure(make_shards(stage, missing, executor.workers), setup, deadline):
        with signals_held():
            if outcome.record is not None:
                _append(writer, outcome.record)
            yield outcome


def _records(dataset: Dataset, stage: str) -> Iterator[Record]:
    return (record for record in dataset if record.stage == stage)


def _append(writer: DatasetWriter, record: Record) -> None:
    try:
        writer.append(record)
    except OSError as error:
        raise CollectError(
            f"{writer.path}: cannot be written: {error.strerror}; its records are unharmed: mend that and run again"
        ) from error
