"""Clusters of Dask workers: one of our own on this machine, or whatever a scheduler has."""

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
from diode_lut.collect.task import Outcome, Shard
from diode_lut.domain.errors import CollectError

CONNECT_S = 10.0
"""Seconds in which a scheduler must answer."""

_SETTINGS = {
    "distributed.worker.profile.enabled": False,  # would disturb the timings
    "distributed.nanny.pre-spawn-environ": {},  # would take threads from a CPU that is measured
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
        with _interrupts_held_back():
            cluster = SpecCluster(workers, scheduler, silence_logs=logging.CRITICAL)
        with cluster, Client(cluster) as client:
            yield Cluster(client)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Ctrl-C in a terminal reaches all processes, but is for this one alone.

    Whatever thread or process is made meanwhile never sees it, nor do their own.
    """
    resource_tracker.ensure_running()  # multiprocessing starts it with the first process, and then lets signals in
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def connect(address: str) -> Iterator[Cluster]:
    """The workers of the scheduler at ``address``; CollectError if none answers there."""
    try:
        client = Client(address, timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        raise CollectError(f"{address}: no scheduler answers ({error}): start one with `dask scheduler`") from error
    with silence_logging_cmgr(logging.CRITICAL), client:
        yield Cluster(client)


class Cluster:
    """The workers of one scheduler. Which have what in hand is decided here, not by the scheduler."""

    def __init__(self, client: Client) -> None:
        self._client = client
        wait_for_worker(client)
        # A shard must not be done again as a whole because its worker died.
        client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", 0))

    @property
    def workers(self) -> int:
        """See Workplace. One that is being replaced is missing, and there is always another to come."""
        return max(1, len(self._client.nthreads()))

    def find_setup(self, device: str | None, method: str | None, search_space: str) -> Setup:
        """See Workplace. Device ``all`` is whatever the workers have."""
        asked = None if device == "all" else device
        try:
            setups: dict[str, Setup] = self._client.run(find_setup, asked, method, search_space)
        except ImportError as error:
            raise CollectError(f"a worker cannot measure: {error}: pip install diode-lut[torch,cluster]") from error
        (first, setup), *others = sorted(setups.items())
        for address, other in others:
            differs = difference(setup, other)
            if differs:
                raise CollectError(f"timings of the workers {first} and {address} cannot be mixed: {differs}")
        return setup

    def measure(self, shards: Sequence[Shard], setup: Setup, deadline: float) -> Iterator[Outcome]:
        """See Workplace. What a worker that died had in hand is done by another."""
        return Dispatch(self._client, shards, setup, deadline).outcomes()


def _environments(device: str | None) -> list[dict[str, str]]:
    """What each worker's environment says about the device that is its own."""
    import torch

    if not torch.cuda.is_available():
        return [{}]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(index) for index in range(torch.cuda.device_count())]
    return [{"CUDA_VISIBLE_DEVICES": each} for each in (devices if device == "all" else devices[:1])]


def _compile_threads(workers: int) -> dict[str, str]:
    """Inductor's compile threads, evenly shared unless the user has said how many."""
    name = "TORCHINDUCTOR_COMPILE_THREADS"
    return {name: os.environ.get(name, str(max(1, len(os.sched_getaffinity(0)) // workers)))}
