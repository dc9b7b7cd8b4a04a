"""What a process tells ``diode-lut compare`` about itself: the times of its steps, and what other parts add.

It is written at exit, as JSON, to the directory that ``compare`` names in the environment. Elsewhere nothing is done.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from diode_lut.files import write_atomically

VARIABLE = "_DIODE_LUT_PROBE"
"""The variable with the directory; for runs that are traced, TRACED is put before it."""
TRACED = "trace:"

FIRST_CALL, CALL = "diode_lut: first call of graph", "diode_lut: call of graph"
"""The beginnings of the names in a trace of a graph's first call, in which kernels may still be tuned, and of its later
ones; the graph's number follows."""

CPP_GEMM, TRITON_GEMM = "C++ GEMM", "Triton GEMM"
"""The beginnings of the names in a trace of GEMMs by Inductor's templates; M, N and K follow, ``?`` where they are
dynamic."""

_MAX_STEPS = 1_000_000
"""How many steps of a process are timed."""

_marks: list[int] = []
_parts: dict[str, Callable[[], Any]] = {}


def directory() -> Path | None:
    """Where ``compare`` reads; None in processes that it has not started."""
    value = os.environ.get(VARIABLE, "").removeprefix(TRACED)
    return Path(value) if value else None


def is_traced() -> bool:
    """Whether ``compare`` wants a profiler's trace of this run."""
    return os.environ.get(VARIABLE, "").startswith(TRACED)


def mark_step() -> None:
    """Note when a step ends, once the GPU is ready; do nothing in processes that ``compare`` has not started."""
    if directory() is None or len(_marks) >= _MAX_STEPS:
        return
    write_at_exit()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    _marks.append(time.perf_counter_ns())


def add(name: str, value: Callable[[], Any]) -> None:
    """Have ``value()`` written as well, as ``name``; it is called at exit."""
    _parts[name] = value
    write_at_exit()


@cache
def write_at_exit() -> None:
    """Have this process write what it knows when it ends, also where multiprocessing has started it."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _write, (os.getpid(),), exitpriority=0)
    atexit.register(_write, os.getpid())


@cache  # a spawned process may end in both ways
def _write(process: int) -> None:
    target = directory()
    if target is None or process != os.getpid():
        return  # a forked process is not the one that was timed
    steps = [(end - begin) / 1e9 for begin, end in pairwise(_marks)]
    said = {"steps_s": steps, **{name: value() for name, value in _parts.items()}}
    write_atomically(target / f"{process}.json", json.dumps(said).encode())
