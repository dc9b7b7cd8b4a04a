"""What runs the measurements: this process, or the workers of a Dask cluster."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Protocol

from diode_lut.collect.setup import MEASURERS, Setup, find_setup, measure_tasks
from diode_lut.collect.tasks import Outcome, Shard
from diode_lut.collect.watch import Loss, Watch
from diode_lut.domain.errors import CollectError, DeviceLostError
from diode_lut.domain.printable import printable


class Executor(Protocol):
    """Runs the measurements of shards."""

    @property
    def workers(self) -> int:
        """How many shards are measured at the same time, at least 1."""

    def find_setup(self, device: str | None, method: str | None, search_space: str) -> Setup:
        """The setup of every worker. CollectError if they differ, HardwareError if there is no such device."""

    def measure(self, shards: Sequence[Shard], setup: Setup, deadline: float) -> Iterator[Outcome]:
        """The outcome of each task, until ``time.monotonic()`` passes ``deadline``."""


def open_executor(device: str | None, scheduler: str | None) -> AbstractContextManager[Executor]:
    """The workers of ``scheduler`` if that is given, else workers of our own on this machine.

    ``device`` ``all`` starts one worker for each GPU. Otherwise there is one: a process of its own if it measures on a
    GPU and ``distributed`` is installed, because only another process can be replaced; else this process. CollectError
    if ``distributed`` is needed and not installed.
    """
    clustered = find_spec("distributed") is not None
    if (device == "all" or scheduler) and not clustered:
        option = "--scheduler" if scheduler else "--device all"
        raise CollectError(f"{option} needs Dask, which is not installed: pip install diode-lut[cluster]")
    if not clustered or (not scheduler and device != "all" and not _has_gpu(device)):
        return nullcontext(InProcess())
    from diode_lut.collect import cluster

    return cluster.connect(scheduler) if scheduler else cluster.local_cluster(device)


def _has_gpu(device: str | None) -> bool:
    import torch

    return device != "cpu" and torch.cuda.is_available()


class InProcess:
    """Measures in this process."""

    workers = 1

    def find_setup(self, device: str | None, method: str | None, search_space: str) -> Setup:
        """See Executor."""
        return find_setup(device, method, search_space)

    def measure(self, shards: Sequence[Shard], setup: Setup, deadline: float) -> Iterator[Outcome]:
        """See Executor. DeviceLostError if a kernel leaves the device unusable; one that hangs ends the process."""
        watch = Watch(_give_up)
        for shard in shards:
            if time.monotonic() >= deadline:
                return
            for outcome in measure_tasks(shard.tasks, MEASURERS[shard.stage], setup, watch):
                yield outcome
                if time.monotonic() >= deadline:
                    return


def _give_up(loss: Loss) -> None:
    message = (
        f"{loss}, and took this process with it; everything before is in the dataset: run again with a worker that "
        "can be replaced (pip install diode-lut[cluster], then --device all), or leave this problem out"
    )
    if threading.current_thread() is threading.main_thread():
        raise DeviceLostError(message)
    print(f"error: {printable(message)}", file=sys.stderr, flush=True)  # noqa: T201 - no caller is left to raise it to
    os._exit(1)
