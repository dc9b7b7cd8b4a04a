"""What ``diode-lut compare`` measures in Inductor: the time of compiling, and a trace of the calls of compiled graphs.

The profiler starts with the first call of a graph and stops after some calls or seconds, so that traces stay small.
"""

from __future__ import annotations

import os
import threading
import time
from types import ModuleType
from typing import Any

import torch

from diode_lut.domain.errors import let_pass
from diode_lut.io.log import warn_once
from diode_lut.runtime import probe
from diode_lut.runtime.post_import import when_imported
from diode_lut.runtime.probe import CALL, FIRST_CALL

_MAX_CALLS, _MAX_SECONDS = 500, 20.0
"""How many calls that are not first ones are traced, and for how long."""


def begin(_config: ModuleType) -> None:
    """Called right after ``torch._inductor.config`` is imported, if ``compare`` has started the program."""
    probe.add("compile_s", _compile_s)
    if probe.is_traced():
        when_imported("torch._inductor.output_code", f"{__name__}:trace_graphs")
        when_imported("torch._inductor.codecache", "diode_lut.inductor.probed_gemms:name_cpp_gemms")
        when_imported("torch._inductor.runtime.triton_heuristics", "diode_lut.inductor.probed_gemms:name_triton_gemms")


def _compile_s() -> float | None:
    """Seconds that this process has spent on compiling, of all threads; None if Dynamo does not say it."""
    try:
        from torch._dynamo.utils import calculate_time_spent

        return float(calculate_time_spent()["total_wall_time"])
    except Exception as error:
        let_pass(error)
        return None


def trace_graphs(output_code: Any) -> None:
    """Trace the calls of compiled graphs, given ``torch._inductor.output_code``."""
    try:
        original = output_code.CompiledFxGraph.__call__
    except AttributeError as error:
        warn_once(f"this run is not traced: {error!r}")
        return
    trace = _Trace()

    def call(graph: Any, inputs: Any) -> Any:
        with trace.calling(graph):
            return original(graph, inputs)

    output_code.CompiledFxGraph.__call__ = call
    probe.add("trace", trace.finish)


class _Trace:
    """A profiler that traces for a while."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._calls = 0
        self._until = 0.0
        self._thread = 0
        self._profile: torch.profiler.profile | None = None
        self._file: str | None = None

    def calling(self, graph: Any) -> torch.profiler.record_function:
        """To be entered for a call of the graph."""
        first = id(graph) not in self._numbers
        number = self._numbers.setdefault(id(graph), len(self._numbers))
        try:
            self._start_or_stop(first)
        except Exception as error:
            let_pass(error)
            self._profile = None
            warn_once(f"this run is not traced: {error!r}")
        return torch.profiler.record_function(f"{FIRST_CALL if first else CALL} {number}")

    def _start_or_stop(self, first: bool) -> None:
        if not self._thread:
            self._thread = threading.get_ident()
            self._until = time.monotonic() + _MAX_SECONDS
            self._profile = torch.profiler.profile(record_shapes=True)
            self._profile.start()
        self._calls += not first
        over = self._calls > _MAX_CALLS or (self._calls > 1 and time.monotonic() > self._until)
        if over and threading.get_ident() == self._thread:
            self.finish()

    def finish(self) -> str | None:
        """Stop and write the trace; the name of its file, None if nothing was traced."""
        directory = probe.directory()
        if self._profile is not None and directory is not None:
            profile, self._profile = self._profile, None
            profile.stop()
            self._file = f"{os.getpid()}.trace.json"
            profile.export_chrome_trace(str(directory / self._file))
        return self._file
