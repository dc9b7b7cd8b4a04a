"""Which configs of a table do not compile for its architecture, or need more shared memory than there is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from diode_lut.compilation.pool import each_in_a_process
from diode_lut.compilation.trial import Trial, compile_trial
from diode_lut.errors import HardwareError, SettingError, TableError
from diode_lut.kernels.architecture import architecture
from diode_lut.problem import DTYPES, LAYOUTS
from diode_lut.table import Entry, read_table
from diode_lut.table.fault import Fault
from diode_lut.table.launchable import unlaunchable
from diode_lut.table.position import JsonPath
from diode_lut.table.read import located, read_bytes

Done = tuple[Trial, "Future[int]"]

_SHOWN = 150
"""How many characters of Triton's messages are repeated, from the beginning and from the end: the reason is in one."""


def check_compiling(path: Path, track: Callable[[Iterable[Done], int], Iterable[Done]]) -> list[TableError]:
    """What Triton says about the table's configs, in the order of the file's lines; no device is needed.

    Configs that ``check_file`` reports are left out, as are rows that cannot be read. ``track`` is handed what is done,
    and how much there is, and passes it on. TableError if the file is no table, SettingError where Triton is missing,
    HardwareError if it cannot compile for the architecture.
    """
    data = read_bytes(path)
    table = read_table(path)
    places = _trials(table.numbered, table.hardware.arch)
    if places and find_spec("triton") is None:
        raise SettingError("--compile needs Triton: pip install diode-lut[torch]")
    if places and not re.fullmatch(r"sm_\d+|gfx\w+", table.hardware.arch):
        raise HardwareError(f"{path}: Triton cannot compile for {table.hardware.arch} (allowed: sm_..., gfx...)")
    faults: dict[JsonPath, Fault] = {}
    for trial, done in track(each_in_a_process(compile_trial, places), len(places)):
        reason = _reason(trial, done)
        if reason is not None:
            faults.update((place, Fault(reason, *place)) for place in places[trial])
    return located(path, data, [faults[place] for place in sorted(faults, key=lambda place: (place[1], place[3]))])


def _trials(rows: Mapping[int, Entry], arch: str) -> dict[Trial, list[JsonPath]]:
    """What is to be compiled, and where in the file that is asked for."""
    places: dict[Trial, list[JsonPath]] = defaultdict(list)
    for number, entry in rows.items():
        refused = {fault.path[1] for fault in unlaunchable(entry, arch)}
        for place, config in enumerate(entry.configs):
            if config.kernel.tiled and place not in refused:
                for dtype, layout in _kinds(entry):
                    trial = Trial(arch, config, dtype, layout, entry.align or 16)
                    places[trial].append(("entries", number, "configs", place))
    return places


def _kinds(entry: Entry) -> Iterator[tuple[str, str]]:
    """The types and layouts that a row is for."""
    return product(
        DTYPES if entry.dtype is None else (entry.dtype,), LAYOUTS if entry.layout is None else (entry.layout,)
    )


def _reason(trial: Trial, done: Future[int]) -> str | None:
    """What is wrong with a config, if anything is."""
    error = done.exception()
    kind = f"{trial.config} for {trial.dtype} {trial.layout} align {trial.align}"
    if isinstance(error, BrokenProcessPool):
        return f"{kind} kills the compiler"
    if error is not None:
        return f"{kind} does not compile for {trial.arch}: {type(error).__name__}: {_shortened(str(error))}"
    limit = architecture(trial.arch).shared_memory
    if limit is not None and done.result() > limit:
        return f"{kind}, compiled, needs {done.result()} bytes of shared memory ({trial.arch} has {limit})"
    return None


def _shortened(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= 2 * _SHOWN else f"{line[:_SHOWN]} ... {line[-_SHOWN:]}"
