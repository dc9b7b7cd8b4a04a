"""Executors of Dask workers: a cluster of our own on this machine, or the workers of a running scheduler."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker

import dask
from distributed import Client, Nanny, Scheduler, SpecCluster
from distributed.utils import silence_logging_cmgr

from diode_lut.collect.dispatch import Dispatch, wait_for_worker
from diode_lut.collect.setup import Setup, difference, find_setup
from diode_lut.collect.tasks import Outcome, Shard
from diode_lut.domain.errors import CollectError, install_command

MAX_CONNECT_S = 10.0
"""Longest wait for a scheduler's answer, in seconds."""

_SETTINGS = {
    "distributed.worker.profile.enabled": False,  # profiling disturbs the timings
    "distributed.nanny.pre-spawn-environ": {},  # the default takes threads from a CPU that is measured
}

_OPTIONS = {"host": "127.0.0.1", "dashboard": False}
_WORKER = {**_OPTIONS, "nthreads": 1, "memory_limit": 0, "silence_logs": logging.CRITICAL}


@contextmanager
def local_cluster(device: str | None) -> Iterator[Cluster]:
    """A worker for each CUDA device of this machine if ``device`` is ``all``, else a single one."""
    environments = _environments(device)
    workers = {
        index: {"cls": Nanny, "options": {**_WORKER, "env": {**environment, **_compile_threads(len(environments))}}}
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
    """Threads and processes that start in this block, and those that they start, never get SIGINT.

    Ctrl-C in a terminal reaches all processes, but only this one is meant to handle it.
    """
    resource_tracker.ensure_running()  # else multiprocessing starts it with the first process, and unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def connect(address: str) -> Iterator[Cluster]:
    """The workers of the scheduler at ``address``; CollectError if none answers there."""
    try:
        client = Client(address, timeout=MAX_CONNECT_S)
    except (OSError, ValueError) as error:
        raise CollectError(f"{address}: no scheduler answers ({error}): start one with `dask scheduler`") from error
    with silence_logging_cmgr(logging.CRITICAL), client:
        yield Cluster(client)


class Cluster:
    """The Executor of one scheduler's workers. Dispatch decides which worker measures what, not the scheduler."""

    def __init__(self, client: Client) -> None:
        self._client = client
        wait_for_worker(client)
        # The scheduler must not repeat a whole shard because its worker died.
        client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", 0))

    @property
    def workers(self) -> int:
        """See Executor. A worker that is being replaced is missing for a moment, so 0 counts as 1."""
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
        """See Executor. Another worker does what a dead worker left."""
        return Dispatch(self._client, shards, setup, deadline).outcomes()


def _environments(device: str | None) -> list[dict[str, str]]:
    """The environment variables that give each worker its device."""
    import torch

    if not torch.cuda.is_available():
        return [{}]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(index) for index in range(torch.cuda.device_count())]
    return [{"CUDA_VISIBLE_DEVICES": each} for each in (devices if device == "all" else devices[:1])]


def _compile_threads(workers: int) -> dict[str, str]:
    """The number of Inductor's compile threads for each worker: the user's, but at most an even share of the CPUs.

    Each worker starts as many processes. More of them than CPUs would only import PyTorch at the same time.
    """
    name = "TORCHINDUCTOR_COMPILE_THREADS"
    share = max(1, len(os.sched_getaffinity(0)) // workers)
    return {name: str(min(int(os.environ.get(name, share)), share))}
