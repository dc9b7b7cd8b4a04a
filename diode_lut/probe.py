"""Report to ``diode-lut compare`` from its processes, at exit: the times of steps, and facts from other parts."""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from diode_lut.files import write_atomically

VARIABLE = "_DIODE_LUT_PROBE"  # the environment variable with the directory
CLOSED, READY, DONE = "closed", "ready", "done"
"""Files in it: the first has the number of the process that compares, and while it is there, no graph is called. The
program makes the second before it calls its first graph, and the third when it has nothing left but to exit."""

RECORDING = "_DIODE_LUT_KERNELS"  # variable with the directory of generated kernels, if a program's are recorded

FIRST_CALL, CALL = "diode_lut: first call of graph", "diode_lut: call of graph"
"""How names begin, in a trace, of a graph's first call, with its tuning, and of later calls, before its number."""

CPP_GEMM, TRITON_GEMM = "C++ GEMM", "Triton GEMM"  # beginnings of names in a trace, before M, N and K
GENERATED_KERNEL = "generated kernel "  # beginning of names in a trace, before the problem and what is fused
_MAX_STEPS = 1_000_000  # maximum number of timed steps
CONTEXT_BYTES = 1 << 30  # memory that a program takes on a GPU besides PyTorch's

_marks: list[int] = []
_parts: dict[str, Callable[[], Any]] = {}


def directory() -> Path | None:
    """Return the directory of ``compare``, or None in other processes."""
    value = os.environ.get(VARIABLE, "")
    return Path(value) if value else None


def await_turn() -> None:
    """Wait until ``compare`` lets this program call its graphs. Meanwhile other programs compile, or run alone."""
    target = directory()
    if target is None:
        return
    with suppress(OSError, ValueError):  # it is this program's turn, or nobody gives turns any more
        comparing = int((target / CLOSED).read_bytes())
        (target / READY).touch()
        add("done", (target / DONE).touch)  # before what takes long at the end
        while (target / CLOSED).exists():
            os.kill(comparing, 0)
            time.sleep(0.005)


def mark_step() -> None:
    """Note the time when the GPU is ready. Without ``compare``, do nothing."""
    if directory() is None or len(_marks) >= _MAX_STEPS:
        return
    write_at_exit()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    _marks.append(time.perf_counter_ns())


def forget_steps() -> None:
    """Time only steps from now on."""
    _marks.clear()


def add(name: str, value: Callable[[], Any]) -> None:
    """Add ``value()`` to the report as ``name``. It is called at exit."""
    _parts[name] = value
    write_at_exit()


def replaced_libraries(path: str | None = None, maps: str = "") -> list[str]:
    """Return CUDA's libraries that come from directories of ``LD_LIBRARY_PATH``, by ``/proc/self/maps`` or ``maps``."""
    path = os.environ.get("LD_LIBRARY_PATH", "") if path is None else path
    directories = {os.path.realpath(each) for each in path.split(":") if each}
    with suppress(OSError):
        maps = maps or Path("/proc/self/maps").read_text(errors="replace")
    loaded = dict.fromkeys(line.split(maxsplit=5)[-1] for line in maps.splitlines() if _CUDA_LIBRARY.search(line))
    return [
        name
        for name in loaded
        if os.path.realpath(Path(name).parent) in directories and not _PACKAGES.intersection(Path(name).parts)
    ]


def copies_on_host() -> int:
    """Return how many programs like this process the host's memory, and this container's, have room for. OSError."""
    import resource  # there is none on Windows

    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = 1024 * int(lines["MemAvailable"].split()[0])
    with suppress(OSError, ValueError):  # there is no limit
        limit, used = (int(Path("/sys/fs/cgroup", f"memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, limit - used)
    return (free + peak) // peak


_PACKAGES = frozenset(("site-packages", "dist-packages"))
_CUDA_LIBRARY = re.compile(r"/lib(?:cudnn|cublas|nvrtc|cudart)[\w-]*\.so[\d.]*$")


@cache
def write_at_exit() -> None:
    """Have this process report when it ends, also if multiprocessing has started it."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _write, (os.getpid(),), exitpriority=0)
    atexit.register(_write, os.getpid())


@cache  # a spawned process may end in both ways
def _write(process: int) -> None:
    target = directory()
    if target is None or process != os.getpid():
        return  # a forked process was not timed
    steps = [(end - begin) / 1e9 for begin, end in pairwise(_marks)]
    said = {"steps_s": steps, **{name: value() for name, value in _parts.items()}}
    write_atomically(target / f"{process}.json", json.dumps(said).encode())
