"""Names for the GEMMs of Inductor's templates in traces that ``diode-lut compare`` takes; Inductor's tell no sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from diode_lut.io.log import warn_once
from diode_lut.runtime.probe import CPP_GEMM, TRITON_GEMM


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
