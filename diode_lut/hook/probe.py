"""Names for the GEMMs of Inductor's templates in traces that ``diode-lut compare`` takes; Inductor's tell no sizes."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import torch

from diode_lut import probe
from diode_lut.errors import let_pass
from diode_lut.probe import CALL, CPP_GEMM, FIRST_CALL, TRITON_GEMM
from diode_lut.process import warn_once, when_imported


def name_cpp_gemms(codecache: Any) -> None:
    """Record the calls of C++ GEMMs by name, given ``torch._inductor.codecache``."""
    try:
        cache = codecache.CppPythonBindingsCodeCache
        original = cache.load_pybinding_async.__func__
    except AttributeError as error:
        warn_once(f"C++ GEMMs are not traced: {error!r}")
        return

    def load(cls: Any, *arguments: Any, **keywords: Any) -> Callable[[], Any]:
        loaded: Callable[[], Any] = original(cls, *arguments, **keywords)
        name = _gemm_name(arguments) if cls is cache else None
        return loaded if name is None else lambda: _recorded(loaded(), name)

    cache.load_pybinding_async = classmethod(load)


def _gemm_name(arguments: Sequence[Any]) -> str | None:
    """The name of a C++ GEMM, given the types of its arguments and its source; None for any other kernel."""
    source = arguments[1] if len(arguments) > 1 else ""
    if "micro_gemm" not in source:
        return None
    found = (re.search(rf"\b{size} = (?:static_cast<int64_t>\()?(\d+)", source) for size in "MNK")
    return " ".join([CPP_GEMM, *(size[1] if size else "?" for size in found)])


def _recorded(kernel: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        if not torch.autograd.profiler._is_profiler_enabled:
            return kernel(*arguments)
        with torch._C._profiler._RecordFunctionFast(name, arguments, {}):
            return kernel(*arguments)

    return call


def name_triton_gemms(heuristics: Any) -> None:
    """Record the calls of Triton templates by name, given ``torch._inductor.runtime.triton_heuristics``."""
    try:
        original = heuristics.CachingAutotuner.run
    except AttributeError as error:
        warn_once(f"Triton GEMMs are not traced: {error!r}")
        return

    def run(kernel: Any, *arguments: Any, **keywords: Any) -> Any:
        source = getattr(getattr(kernel, "fn", None), "src", "")
        name = _triton_name(source) if torch.autograd.profiler._is_profiler_enabled else None
        if name is None:
            return original(kernel, *arguments, **keywords)
        with torch._C._profiler._RecordFunctionFast(name, arguments, {}):
            return original(kernel, *arguments, **keywords)

    heuristics.CachingAutotuner.run = run


@cache
def _triton_name(source: str) -> str | None:
    """The name of a Triton template's GEMM, given its source; None for any other kernel."""
    found = [re.search(rf"^ +{size} = (.+)$", source, flags=re.MULTILINE) for size in "MNK"]
    sizes = [size[1] if size[1].isdigit() else "?" for size in found if size]
    return " ".join([TRITON_GEMM, *sizes]) if len(sizes) == len(found) else None


_MAX_CALLS, _MAX_SECONDS = 500, 20.0
"""How many calls that are not first ones are traced, and for how long."""


def begin(_config: ModuleType) -> None:
    """Called right after ``torch._inductor.config`` is imported, if ``compare`` has started the program."""
    probe.add("compile_s", _compile_s)
    if probe.is_traced():
        when_imported("torch._inductor.output_code", f"{__name__}:trace_graphs")
        when_imported("torch._inductor.codecache", "diode_lut.hook.probe:name_cpp_gemms")
        when_imported("torch._inductor.runtime.triton_heuristics", "diode_lut.hook.probe:name_triton_gemms")


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
