"""Compiling the configs of tables with Triton, without a GPU, in processes that a kernel may kill."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, TypeVar

from diode_lut.compilation.trial import Trial, compile_trial
from diode_lut.domain.errors import BROKEN_IMPORT, HardwareError, SettingError, TableError, install_command
from diode_lut.domain.ops import DOMAINS
from diode_lut.kernels.architecture import architecture
from diode_lut.kernels.config import Config
from diode_lut.kernels.padding import pad_multiple
from diode_lut.table import Entry
from diode_lut.table.check import launchable
from diode_lut.table.position import Fault
from diode_lut.table.read import located, table_of


class ConfigPlace(NamedTuple):
    """A config of a table, by the number of its row and its number in the row."""

    row: int
    config: int

    def fault(self, reason: str) -> Fault:
        """What is wrong with the config."""
        return Fault(reason, "entries", self.row, "configs", self.config)


Done = tuple[Trial, "Future[int]"]

_SHOWN_CHARS = 150
"""Characters of a message of Triton's shown from its beginning and from its end: one of the two has the reason."""


def check_compiling(
    path: Path, data: bytes, track: Callable[[Iterable[Done], int], Iterable[Done]]
) -> list[TableError]:
    """Triton's errors for the table's configs, in the order of the file's lines; no device is needed.

    ``data`` are the contents of the file at ``path``. Configs that ``check_file`` reports are left out, as are rows
    that cannot be read. ``track`` gets the results as they come, and their number, and passes them on. TableError if
    the file is no table, SettingError if Triton is missing, HardwareError if Triton cannot compile for the
    architecture.
    """
    table = table_of(path, data)
    places = _trials(table.numbered, table.hardware.arch)
    if places and find_spec("triton") is None:
        raise SettingError(f"--compile needs Triton: {install_command('torch')}")
    if places:
        _require_working_triton()
    if places and not re.fullmatch(r"sm_\d+|gfx\w+", table.hardware.arch):
        raise HardwareError(f"{path}: Triton cannot compile for {table.hardware.arch} (allowed: sm_..., gfx...)")
    faults: dict[ConfigPlace, Fault] = {}
    for trial, done in track(each_in_a_process(compile_trial, places), len(places)):
        reason = _reason(trial, done)
        if reason is not None:
            faults.update((place, place.fault(reason)) for place in places[trial])
    return located(path, data, [faults[place] for place in sorted(faults)])


def _require_working_triton() -> None:
    """SettingError if Triton cannot be imported: that is no fault of a config."""
    try:
        import_module("diode_lut.compilation.kernels")
    except BROKEN_IMPORT as error:
        raise SettingError(f"--compile needs Triton, which cannot be imported ({error}): install it again") from error


def _trials(rows: Mapping[int, Entry], arch: str) -> dict[Trial, list[ConfigPlace]]:
    """The trials of a table, each with the places in the file that need it."""
    places: dict[Trial, list[ConfigPlace]] = defaultdict(list)
    for number, entry in rows.items():
        for place, config in launchable(entry, arch):
            for trial in _of_config(config, entry, arch):
                places[trial].append(ConfigPlace(number, place))
    return places


def _of_config(config: Config, entry: Entry, arch: str) -> Iterator[Trial]:
    """The trials of a row's config, by dtype and layout; attention has the smallest heads that the row covers."""
    kernel = config.kernel
    if not kernel.stand_in:
        return
    for dtype, layout in _kinds(entry, kernel.ops):
        align = 16 if config.pad % pad_multiple(dtype) == 0 else entry.align or 16
        yield Trial(arch, config, dtype, layout, align, kernel.heads(entry))


def _kinds(entry: Entry, ops: Sequence[str]) -> list[tuple[str, str]]:
    """The dtypes and layouts that a row covers, of a template for these ops; for any op and dtype, of the first."""
    fitting = [DOMAINS[op] for op in ops if entry.op == op or (entry.op is None and entry.dtype in DOMAINS[op].dtypes)]
    domains = fitting or [DOMAINS[ops[0]]]
    return [
        (dtype, layout)
        for dtype, layout in dict.fromkeys(kind for each in domains for kind in product(each.dtypes, each.layouts))
        if entry.dtype in (None, dtype) and entry.layout in (None, layout)
    ]


def _reason(trial: Trial, done: Future[int]) -> str | None:
    """Why a config is wrong; None if it is good."""
    error = done.exception()
    if isinstance(error, BrokenProcessPool):
        return f"{trial} kills the compiler"
    if error is not None:
        return f"{trial} does not compile for {trial.arch}: {type(error).__name__}: {_shortened(str(error))}"
    limit = architecture(trial.arch).shared_memory
    if limit is not None and done.result() > limit:
        return f"{trial}, compiled, needs {done.result()} bytes of shared memory ({trial.arch} has {limit})"
    return None


def _shortened(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= 2 * _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]} ... {line[-_SHOWN_CHARS:]}"


Item = TypeVar("Item")
Result = TypeVar("Result")


def each_in_a_process(
    function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[tuple[Item, Future[Result]]]:
    """Each item with its future, as soon as ``function`` returned or raised.

    The items run on all CPUs. If one kills its process, the items that were running are run again, one at a time, so
    that only the item that kills has the exception BrokenProcessPool. What the processes print is lost.
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
    """Triton writes what it could not compile to both."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
