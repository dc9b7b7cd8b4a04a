"""Running functions in other processes, which they may kill."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def each_in_a_process(
    function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[tuple[Item, Future[Result]]]:
    """Each item with its future, as soon as ``function`` returned or raised.

    The items run on all CPUs. If one kills its process, the items that were running are run again, one at a time, so
    that only the item that kills has the exception BrokenProcessPool. Output of the processes to stderr is lost.
    """
    broken: list[Item] = []
    with _pool(os.cpu_count() or 1) as pool:
        futures: dict[Future[Result], Item] = {}
        for item in items:
            try:
                futures[pool.submit(function, item)] = item
            except BrokenProcessPool:  # noqa: PERF203 (an earlier item was quick to kill)
                broken.append(item)
        for future in as_completed(futures):
            if isinstance(future.exception(), BrokenProcessPool):
                broken.append(futures[future])
            else:
                yield futures[future], future
    while broken:
        yield from _until_it_breaks(function, broken)


def _until_it_breaks(function: Callable[[Item], Result], items: list[Item]) -> Iterator[tuple[Item, Future[Result]]]:
    """Runs and removes items from the end of the list, until one kills the process."""
    with _pool(1) as pool:
        while items:
            item = items.pop()
            future = pool.submit(function, item)
            broken = isinstance(future.exception(), BrokenProcessPool)
            yield item, future
            if broken:
                return


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_be_quiet)


def _be_quiet() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
