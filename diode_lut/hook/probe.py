"""The traces ``diode-lut compare`` takes of a program, with names for the GEMMs of Inductor's templates.

Inductor's own names for them tell no sizes. Functions here stand in the place of Inductor's, as ``patches`` lists them.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from diode_lut import probe
from diode_lut.errors import let_pass
from diode_lut.log import warn_once
from diode_lut.probe import CALL, CPP_GEMM, FIRST_CALL, TRITON_GEMM

_MAX_CALLS, _MAX_SECONDS = 500, 20.0
"""The number of calls to trace, besides first ones, and the time for them."""


def begin() -> bool:
    """Have this process tell the time of its compiles. Return whether its run is to be traced."""
    probe.add("compile_s", _compile_s)
    if probe.is_traced():
        probe.add("trace", _TRACE.finish)
    return probe.is_traced()


def _compile_s() -> float | None:
    """Return the seconds this process has spent on compiling, in all threads. None if Dynamo does not tell."""
    try:
        from torch._dynamo.utils import calculate_time_spent

        return float(calculate_time_spent()["total_wall_time"])
    except Exception as error:
        let_pass(error)
        return None


def call_graph(call: Callable[..., Any], graph: Any, inputs: Any) -> Any:
    """Call a compiled graph, and trace the call."""
    with _TRACE.calling(graph):
        return call(graph, inputs)


class _Tracer:
    """A profiler for the first calls."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._calls = 0
        self._until = 0.0
        self._thread = 0
        self._profile: torch.profiler.profile | None = None
        self._file: str | None = None

    def calling(self, graph: Any) -> torch.profiler.record_function:
        """Return the context of a call of the graph."""
        first = id(graph) not in self._numbers
        number = self._numbers.setdefault(id(graph), len(self._numbers))
        try:
            if not self._thread:
                self._thread = threading.get_ident()
                self._until = time.monotonic() + _MAX_SECONDS
                self._profile = torch.profiler.profile(record_shapes=True)
                self._profile.start()
            self._calls += not first
            over = self._calls > _MAX_CALLS or (self._calls > 1 and time.monotonic() > self._until)
            if over and threading.get_ident() == self._thread:
                self.finish()
        except Exception as error:
            let_pass(error)
            self._profile = None
            warn_once(f"this run is not traced: {error!r}")
        return torch.profiler.record_function(f"{FIRST_CALL if first else CALL} {number}")

    def finish(self) -> str | None:
        """Stop and write the trace. Return the name of its file, or None if nothing was traced."""
        directory = probe.directory()
        if self._profile is not None and directory is not None:
            profile, self._profile = self._profile, None
            profile.stop()
            self._file = f"{os.getpid()}.trace.json"
            profile.export_chrome_trace(str(directory / self._file))
        return self._file


_TRACE = _Tracer()
"""The trace of this process."""


def load_pybinding_async(load: Callable[..., Any], cls: Any, *arguments: Any, **named: Any) -> Callable[[], Any]:
    """Load a C++ kernel, whose calls are recorded by name if it is a GEMM. The second argument is its source."""
    loaded: Callable[[], Any] = load(cls, *arguments, **named)
    source = arguments[1] if len(arguments) > 1 else ""
    if cls.__name__ != "CppPythonBindingsCodeCache" or "micro_gemm" not in source:
        return loaded
    found = (re.search(rf"\b{size} = (?:static_cast<int64_t>\()?(\d+)", source) for size in "MNK")
    name = " ".join([CPP_GEMM, *(size[1] if size else "?" for size in found)])

    def load_recorded() -> Callable[..., Any]:
        kernel = loaded()

        def call(*operands: Any) -> Any:
            if not torch.autograd.profiler._is_profiler_enabled:
                return kernel(*operands)
            with torch._C._profiler._RecordFunctionFast(name, operands, {}):
                return kernel(*operands)

        return call

    return load_recorded


def run_kernel(run: Callable[..., Any], kernel: Any, *arguments: Any, **named: Any) -> Any:
    """Run a Triton kernel, and record the call by name if it is a template's GEMM."""
    source = getattr(getattr(kernel, "fn", None), "src", "")
    name = _triton_name(source) if torch.autograd.profiler._is_profiler_enabled else None
    if name is None:
        return run(kernel, *arguments, **named)
    with torch._C._profiler._RecordFunctionFast(name, arguments, {}):
        return run(kernel, *arguments, **named)


@cache
def _triton_name(source: str) -> str | None:
    """Return the name of a Triton template's GEMM, given its source. None for any other kernel."""
    found = [re.search(rf"^ +{size} = (.+)$", source, flags=re.MULTILINE) for size in "MNK"]
    sizes = [size[1] if size[1].isdigit() else "?" for size in found if size]
    return " ".join([TRITON_GEMM, *sizes]) if len(sizes) == len(found) else None
