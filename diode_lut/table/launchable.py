"""Configs of a row that can never be launched on the table's architecture, whichever of its problems is asked for."""

from __future__ import annotations

from collections.abc import Iterator

from diode_lut.architecture import (
    GEMM_TEMPLATES,
    SHARED_MEMORY,
    accumulator_registers,
    registers,
    runs_on,
    shared_memory,
)
from diode_lut.problem import ITEMSIZES, Config
from diode_lut.table.entry import Entry
from diode_lut.table.fault import Fault


def unlaunchable(entry: Entry, arch: str) -> Iterator[Fault]:
    """What keeps configs of the row from being launched: the hook passes over these configs."""
    for number, config in enumerate(entry.configs):
        for fault in _faults(config, entry, arch):
            yield fault.inside("configs", number)


def _faults(config: Config, entry: Entry, arch: str) -> Iterator[Fault]:
    known = runs_on(arch)
    if config.template not in known:
        yield Fault(f"{config.template} does not run on {arch} (what does: {', '.join(known)})", "template")
    elif config.template == "decompose_k":
        yield from _of_split(config, entry)
    elif config.template in GEMM_TEMPLATES:
        yield from _of_registers(config)
        yield from _of_shared_memory(config, entry, arch)
        if config.template == "triton_mm_persistent_tma":
            yield from _of_tma(config, entry)


def _of_split(config: Config, entry: Entry) -> Iterator[Fault]:
    (split,) = config.params
    if entry.k is not None and entry.k[1] // split * split < entry.k[0]:
        sizes = str(entry.k[0]) if entry.k[0] == entry.k[1] else f"{entry.k[0]} to {entry.k[1]}"
        yield Fault(f"{split} divides no k of the row ({sizes})", "k_split")


def _of_registers(config: Config) -> Iterator[Fault]:
    block_m, block_n, *_, num_warps = config.params
    needed, limit = accumulator_registers(config), registers(config)
    if needed >= limit:
        reason = f"{num_warps} do not go with a block of {block_m}x{block_n}: {needed} registers a thread"
        yield Fault(f"{reason} (allowed: {limit - 1})", "num_warps")


def _of_shared_memory(config: Config, entry: Entry, arch: str) -> Iterator[Fault]:
    limit = SHARED_MEMORY.get(arch)
    itemsize = min(ITEMSIZES.values()) if entry.dtype is None else ITEMSIZES[entry.dtype]
    needed = shared_memory(config, entry.op or "mm", itemsize)
    if limit is not None and needed > limit:
        yield Fault(f"{config} needs {needed} bytes of shared memory ({arch} has {limit})")


def _of_tma(config: Config, entry: Entry) -> Iterator[Fault]:
    if config.params[-1] == 2:
        yield Fault("Inductor makes no kernels with TMA and 2 warps", "num_warps")
    if entry.align == 2:
        yield Fault(f"{config.template} needs an align of 16", "template")
