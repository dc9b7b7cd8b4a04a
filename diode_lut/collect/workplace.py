"""Where problems are measured: in this process, or by the workers of a cluster."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Protocol

from diode_lut.collect.setup import Setup, find_setup
from diode_lut.collect.stages import MEASURERS
from diode_lut.collect.task import Outcome, Shard, Task
from diode_lut.collect.watch import Loss, Watch
from diode_lut.dataset import Timing
from diode_lut.domain.errors import CollectError, DeviceLostError
from diode_lut.domain.printable import printable


class Workplace(Protocol):
    """Somebody who measures."""

    @property
    def workers(self) -> int:
        """How many measure at the same time."""

    def find_setup(self, device: str | None, method: str | None, search_space: str) -> Setup:
        """The setup of every worker. CollectError if they differ, HardwareError if there is no such device."""

    def measure(self, shards: Sequence[Shard], setup: Setup, deadline: float) -> Iterator[Outcome]:
        """What became of each task, until ``time.monotonic()`` passes ``deadline``."""


def open_workplace(device: str | None, scheduler: str | None) -> AbstractContextManager[Workplace]:
    """The workers of ``scheduler`` if that is given, else workers of our own on this machine.

    ``device`` ``all`` has one worker for each GPU. Otherwise one measures, in a process of its own if that is a GPU
    and ``distributed`` is installed: only then can it be replaced. CollectError if ``distributed`` is needed.
    """
    clustered = find_spec("distributed") is not None
    if (device == "all" or scheduler) and not clustered:
        option = "--scheduler" if scheduler else "--device all"
        raise CollectError(f"{option} needs Dask, which is not installed: pip install diode-lut[cluster]")
    if not clustered or (not scheduler and device != "all" and not _has_gpu(device)):
        return nullcontext(Here())
    from diode_lut.collect import cluster

    return cluster.connect(scheduler) if scheduler else cluster.local_cluster(device)


def _has_gpu(device: str | None) -> bool:
    import torch

    return device != "cpu" and torch.cuda.is_available()


class Here:
    """This process."""

    workers = 1

    def find_setup(self, device: str | None, method: str | None, search_space: str) -> Setup:
        """See Workplace."""
        return find_setup(device, method, search_space)

    def measure(self, shards: Sequence[Shard], setup: Setup, deadline: float) -> Iterator[Outcome]:
        """See Workplace. DeviceLostError if a kernel leaves the device unusable; one that hangs ends the process."""
        watch = Watch(_give_up)
        for shard in shards:
            if time.monotonic() >= deadline:
                return
            for outcome in measure_tasks(shard.tasks, MEASURERS[shard.stage], setup, watch):
                yield outcome
                if time.monotonic() >= deadline:
                    return


def measure_tasks(tasks: Sequence[Task], measurer: str, setup: Setup, watch: Watch) -> Iterator[Outcome]:
    """The outcomes of the measurer that has this name, with what failed before in their records."""
    failed = {task.problem: task.failed for task in tasks}
    for outcome in resolve_name(measurer)(tasks, setup.device, watch, setup.search_space):
        yield _with_failures(outcome, failed[outcome.problem])


def _with_failures(outcome: Outcome, failed: tuple[Timing, ...]) -> Outcome:
    if outcome.record is None:
        return outcome
    configs = {timing.config for timing in failed}
    others = (timing for timing in outcome.record.timings if timing.config not in configs)
    return outcome._replace(record=outcome.record._replace(timings=(*others, *failed)))


def _give_up(loss: Loss) -> None:
    message = (
        f"{loss}, and took this process with it; everything before is in the dataset: run again with a worker that "
        "can be replaced (pip install diode-lut[cluster], then --device all), or leave this problem out"
    )
    if threading.current_thread() is threading.main_thread():
        raise DeviceLostError(message)
    print(f"error: {printable(message)}", file=sys.stderr, flush=True)  # noqa: T201 - nobody is left to raise it to
    os._exit(1)
