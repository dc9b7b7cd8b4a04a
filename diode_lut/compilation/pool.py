"""Work in other processes, which may be killed by it."""

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
    """Each item with the future of what ``function`` makes of it, as soon as that is done.

    The items are spread over all CPUs. Where one takes its process down, those under way are done again, one at a
    time: it is alone in having the exception BrokenProcessPool. What the processes write to stderr is lost.
    """
    broken: list[Item] = []
    with _pool(os.cpu_count() or 1) as pool:
        futures: dict[Future[Result], Item] = {}
        for item in items:
            try:
                futures[pool.submit(function, item)] = item
            except BrokenProcessPool:  # noqa: PERF203 (an earlier item was quick)
                broken.append(item)
        for future in as_completed(futures):
            if isinstance(future.exception(), BrokenProcessPool):
                broken.append(futures[future])
            else:
                yield futures[future], future
    while broken:
        yield from _until_it_breaks(function, broken)


def _until_it_breaks(function: Callable[[Item], Result], items: list[Item]) -> Iterator[tuple[Item, Future[Result]]]:
    """The first of the items, which it takes away, up to one that takes the process down."""
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
