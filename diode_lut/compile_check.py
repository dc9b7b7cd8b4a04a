"""Compiling the configs of tables, to find those that do not compile."""

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
from typing import Any, NamedTuple, TypeVar

from diode_lut.errors import BROKEN_IMPORT, HardwareError, SettingError, TableError, install_command
from diode_lut.problem import DOMAINS, letters
from diode_lut.table import Entry
from diode_lut.table.faults import Fault
from diode_lut.table.lint import launchable
from diode_lut.table.read import located, table_of
from diode_lut.templates.architecture import architecture
from diode_lut.templates.config import Config, pad_multiple
from diode_lut.templates.template import Heads

__all__ = ["check_compiling"]


_POINTERS = {
    "float16": ("*fp16",) * 3,
    "bfloat16": ("*bf16",) * 3,
    "float32": ("*fp32",) * 3,
    "tf32": ("*fp32",) * 3,
    "float8_e4m3fn": ("*fp8e4nv", "*fp8e4nv", "*bf16"),
    "float8_e5m2": ("*fp8e5", "*fp8e4nv", "*bf16"),
    "int8": ("*i8", "*i8", "*i32"),
}
"""By dtype: the types of A, B and C, or of attention's queries, keys and everything else."""

_SIZES = {16: 4096, 2: 4098}
"""By align: the size of M, N and K, larger than any block, with rows on 16-byte boundaries or not."""

_GAPS = {16: 0, 2: 1}
"""By align: elements between rows of heads."""


class Trial(NamedTuple):
    """Everything that decides how a config compiles: its template has tiles, or is of attention, which has ``heads``.

    ``arch`` is a Hardware's.
    """

    arch: str
    config: Config
    dtype: str
    layout: str
    align: int
    heads: Heads | None = None

    def __str__(self) -> str:
        if self.heads is None:
            return f"{self.config} for {self.dtype} {self.layout} align {self.align}"
        heads = f"heads of {self.heads.k} and {self.heads.v} elements"
        return f"{self.config} for {self.dtype} align {self.align} and {heads}"


def compile_trial(trial: Trial) -> int:
    """Bytes of shared memory that the compiled kernel needs; any error of Triton's if it does not compile."""
    return int(compiled(trial).metadata.shared)


def compiled(trial: Trial) -> Any:
    """The kernel that Triton makes, with its ``metadata`` and ``asm``; any error of Triton's if it does not compile.

    Triton keeps compiled kernels in its cache on disk (``TRITON_CACHE_DIR``), so that each is compiled once.
    """
    import triton
    from triton.compiler import ASTSource

    kernel, pointers, constants = _gemm(trial) if trial.heads is None else _attention(trial, trial.heads)
    constants["PRECISION"] = "tf32" if trial.dtype == "tf32" else "ieee"
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(len(pointers))}
    source = ASTSource(kernel, {**pointers, **dict.fromkeys(constants, "constexpr")}, constants, aligned)
    return triton.compile(source, target=_target(trial.arch), options=_options(trial))


_Source = tuple[Any, dict[str, str], dict[str, Any]]
"""A kernel, its pointers with their types, and its constants."""


def _gemm(trial: Trial) -> _Source:
    from diode_lut import stand_ins as kernels

    letter_a, letter_b = letters(trial.layout)
    constants = {
        **dict.fromkeys("MNK", _SIZES[trial.align]),
        "A_ROW_MAJOR": letter_a == "n",
        "B_ROW_MAJOR": letter_b == "n",
        **_blocks(trial),
    }
    kernel = getattr(kernels, trial.config.kernel.stand_in)
    return kernel, dict(zip("abc", _POINTERS[trial.dtype], strict=True)), constants


def _attention(trial: Trial, heads: Heads) -> _Source:
    from diode_lut import stand_ins as attention

    gap = _GAPS[trial.align]
    constants = {"K": heads.k, "V": heads.v, "STRIDE_K": heads.k + gap, "STRIDE_V": heads.v + gap, **_blocks(trial)}
    kernel = getattr(attention, trial.config.kernel.stand_in)
    gradients = kernel is attention.backward
    rows = ("q", "k", "v", "do", "dq", "dk", "dv") if gradients else ("q", "k", "v", "out")
    numbers = {"sums": "*fp32", "delta": "*fp32"} if gradients else {}
    pointers = {**dict.fromkeys(rows, _POINTERS[trial.dtype][0]), **numbers, "steps": "*i32", "jumps": "*i32"}
    return kernel, pointers, constants


def _blocks(trial: Trial) -> dict[str, int]:
    return trial.config.kernel.blocks(trial.config.params, trial.heads)


def _options(trial: Trial) -> dict[str, int]:
    """Warps, stages, and the tunables that Triton takes as options of its compiler; 0 leaves these to Triton."""
    kernel, known = trial.config.kernel, architecture(trial.arch)
    values = kernel.values(trial.config.params)
    options = (each.name for each in kernel.parameters if each.option and each.is_known_to(known))
    return {name: values[name] for name in options if values.get(name)}


def _target(name: str) -> object:
    from triton.backends.compiler import GPUTarget

    known = architecture(name)
    return GPUTarget(known.triton, int(name.removeprefix("sm_")) if known.triton == "cuda" else name, known.warp_size)


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
        import_module("diode_lut.stand_ins")
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
