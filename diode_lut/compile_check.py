"""``check --compile``: Triton compiles all configs of a table, without a GPU, and its errors become faults of rows."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from diode_lut.errors import BROKEN_IMPORT, HardwareError, SettingError, TableError, install_command
from diode_lut.hardware import architecture
from diode_lut.problem import DOMAINS, letters
from diode_lut.table import Entry, located, table_of
from diode_lut.table.faults import Fault
from diode_lut.table.lint import launchable
from diode_lut.templates.config import Config, pad_multiple
from diode_lut.templates.template import Heads

_SHOWN_CHARS = 150  # number of characters shown from both ends of a message of Triton's: one of the ends has the reason


def check_compiling(
    path: Path,
    data: bytes,
    track: Callable[[Iterable[tuple[Trial, Future[int]]], int], Iterable[tuple[Trial, Future[int]]]],
) -> list[TableError]:
    """Return Triton's errors for the table's configs, in the order of the file's lines.

    ``data`` is the contents of the file at ``path``. Configs reported by ``check_file`` and unreadable rows are left
    out. ``track`` gets the results as they come, and their number, and passes them on. TableError if the file is no
    table, SettingError if Triton is missing or broken, HardwareError if Triton cannot compile for the architecture.
    """
    table = table_of(path, data)
    arch = table.hardware.arch
    places: dict[Trial, list[tuple[int, int]]] = defaultdict(list)  # numbers of rows, and of configs in them
    for number, entry in table.numbered.items():
        for place, config in launchable(entry, arch):
            for trial in _trials(config, entry, arch):
                places[trial].append((number, place))
    if places:
        if find_spec("triton") is None:
            raise SettingError(f"--compile needs Triton: {install_command('torch')}")
        try:
            import_module("diode_lut.stand_ins")
        except BROKEN_IMPORT as error:  # no fault of a config
            reason = f"--compile needs Triton, which cannot be imported ({error}): install it again"
            raise SettingError(reason) from error
        if not re.fullmatch(r"sm_\d+|gfx\w+", arch):
            raise HardwareError(f"{path}: Triton cannot compile for {arch} (allowed: sm_..., gfx...)")
    faults: dict[tuple[int, int], Fault] = {}
    limit = architecture(arch).shared_memory
    for trial, done in track(each_in_a_process(compile_trial, places), len(places)):
        failed, fault = done.exception(), ""
        if isinstance(failed, BrokenProcessPool):
            fault = f"{trial} kills the compiler"
        elif failed is not None:
            line = " ".join(str(failed).split())
            shown = line if len(line) <= 2 * _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]} ... {line[-_SHOWN_CHARS:]}"
            fault = f"{trial} does not compile for {arch}: {type(failed).__name__}: {shown}"
        elif limit is not None and done.result() > limit:
            fault = f"{trial}, compiled, needs {done.result()} bytes of shared memory ({arch} has {limit})"
        for row, place in places[trial] if fault else ():
            faults[row, place] = Fault(fault, "entries", row, "configs", place)
    return located(path, data, [faults[place] for place in sorted(faults)])


def _trials(config: Config, entry: Entry, arch: str) -> Iterator[Trial]:
    """Yield the trials of a row's config, by dtype and layout. Attention has the smallest heads of the row.

    A row of any op and dtype stands for the first op of the template.
    """
    kernel = config.kernel
    if not kernel.stand_in:
        return
    ops = [op for op in kernel.ops if entry.op == op or (entry.op is None and entry.dtype in DOMAINS[op].dtypes)]
    domains = [DOMAINS[op] for op in ops or kernel.ops[:1]]
    for dtype, layout in dict.fromkeys(kind for each in domains for kind in product(each.dtypes, each.layouts)):
        if entry.dtype in (None, dtype) and entry.layout in (None, layout):
            align = 16 if config.pad % pad_multiple(dtype) == 0 else entry.align or 16
            yield Trial(arch, config, dtype, layout, align, kernel.heads(entry))


_POINTERS = {
    "float16": ("*fp16",) * 3,
    "bfloat16": ("*bf16",) * 3,
    "float32": ("*fp32",) * 3,
    "tf32": ("*fp32",) * 3,
    "float8_e4m3fn": ("*fp8e4nv", "*fp8e4nv", "*bf16"),
    "float8_e5m2": ("*fp8e5", "*fp8e4nv", "*bf16"),
    "int8": ("*i8", "*i8", "*i32"),
}
"""By dtype: the types of A, B and C. All matrices of attention have the first."""

_SIZES = {16: 4096, 2: 4098}  # by align: M, N and K, larger than any block, with rows on 16-byte boundaries or not
_GAPS = {16: 0, 2: 1}  # by align: number of elements between rows of heads


class Trial(NamedTuple):
    """The compilation of a config for an architecture. Only attention has ``heads``."""

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
    """Return the bytes of shared memory of the compiled kernel. Triton raises any error if it does not compile."""
    return int(compiled(trial).metadata.shared)


def compiled(trial: Trial) -> Any:
    """Return Triton's kernel, with its ``metadata`` and ``asm``, or raise its error. Triton keeps it in its cache."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from diode_lut import stand_ins

    template, known, heads = trial.config.kernel, architecture(trial.arch), trial.heads
    kernel = getattr(stand_ins, template.stand_in)
    constants: dict[str, Any] = {"PRECISION": "tf32" if trial.dtype == "tf32" else "ieee"}
    if heads is None:
        letter_a, letter_b = letters(trial.layout)
        constants |= dict.fromkeys("MNK", _SIZES[trial.align])
        constants |= {"A_ROW_MAJOR": letter_a == "n", "B_ROW_MAJOR": letter_b == "n"}
        pointers = dict(zip("abc", _POINTERS[trial.dtype], strict=True))
    else:
        gap, matrix = _GAPS[trial.align], _POINTERS[trial.dtype][0]
        constants |= {"K": heads.k, "V": heads.v, "STRIDE_K": heads.k + gap, "STRIDE_V": heads.v + gap}
        if kernel is stand_ins.backward:
            pointers = dict.fromkeys(("q", "k", "v", "do", "dq", "dk", "dv"), matrix)
            pointers |= {"sums": "*fp32", "delta": "*fp32"}
        else:
            pointers = dict.fromkeys(("q", "k", "v", "out"), matrix)
        pointers |= {"steps": "*i32", "jumps": "*i32"}
    constants |= template.blocks(trial.config.params, heads)
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(len(pointers))}
    source = ASTSource(kernel, {**pointers, **dict.fromkeys(constants, "constexpr")}, constants, aligned)
    number = int(trial.arch.removeprefix("sm_")) if known.triton == "cuda" else trial.arch
    # Warps, stages, and tunables that are options of Triton's compiler; 0 leaves these to Triton.
    values = template.values(trial.config.params)
    names = (each.name for each in template.parameters if each.option and each.is_known_to(known))
    options = {name: values[name] for name in names if values.get(name)}
    return triton.compile(source, target=GPUTarget(known.triton, number, known.warp_size), options=options)


def _be_quiet() -> None:
    """Close both outputs, to which Triton writes code that it could not compile."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)


_Pool = partial(ProcessPoolExecutor, mp_context=get_context("spawn"), initializer=_be_quiet)

Argument = TypeVar("Argument")
Result = TypeVar("Result")


def each_in_a_process(
    function: Callable[[Argument], Result], items: Iterable[Argument]
) -> Iterator[tuple[Argument, Future[Result]]]:
    """Yield each item with its future, as soon as ``function`` returned or raised.

    The items run on all CPUs. If an item kills its process, the items running then are run again, one at a time, so
    only the item that kills has the exception BrokenProcessPool. Output of the processes is lost.
    """
    broken: list[Argument] = []
    with _Pool(os.cpu_count() or 1) as pool:
        futures: dict[Future[Result], Argument] = {}
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
        with _Pool(1) as pool:  # until it breaks
            while broken:
                item = broken.pop()
                future = pool.submit(function, item)
                killed = isinstance(future.exception(), BrokenProcessPool)
                yield item, future
                if killed:
                    break
