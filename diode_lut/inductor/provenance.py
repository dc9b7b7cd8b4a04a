"""What was decided for a graph, kept with it: a process that gets the graph from a cache has the same to tell.

It is a receipt of this one graph, as plain values, because graphs are pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import orjson

from diode_lut.domain.errors import let_pass
from diode_lut.inductor.switch import Unanswered, is_off, lacks_answers_for_another
from diode_lut.inductor.trace import trace_graph
from diode_lut.io.log import warn_once
from diode_lut.receipt.read import decode_receipt
from diode_lut.receipt.receipt import Receipt
from diode_lut.receipt.write import receipt_bytes
from diode_lut.runtime import recorder
from diode_lut.runtime.receipt_file import write_after_graph

_KEPT = "_diode_lut"
"""The attribute of a graph that has its counts and its receipt."""
_UNANSWERED = "_diode_lut_unanswered"
"""The attribute of a graph whose kernels are not what its key stands for."""


def keep_with_graphs(compile_fx: Any) -> None:
    """Keep with each graph what is decided for it, given ``torch._inductor.compile_fx``."""
    scheme = compile_fx._InProcessFxCompile
    scheme.codegen_and_compile = _keeping(scheme.codegen_and_compile)


def tell_of_cached_graphs(codecache: Any) -> None:
    """Record what was decided for each graph that comes from a cache, given ``torch._inductor.codecache``."""
    cache = codecache.FxGraphCache
    cache.cache_hit_post_compile = staticmethod(_telling(cache.cache_hit_post_compile))


def tell_of_received_graphs(compile_fx_ext: Any) -> None:
    """Record what another process decided for a graph of this one, given ``torch._inductor.compile_fx_ext``."""
    scheme = compile_fx_ext._OutOfProcessFxCompile
    scheme._postprocess = _receiving(scheme._postprocess)


WRAPPERS = {
    "torch._inductor.compile_fx": keep_with_graphs,
    "torch._inductor.codecache": tell_of_cached_graphs,
    "torch._inductor.compile_fx_ext": tell_of_received_graphs,
}
"""What is to be called with a module of Inductor's once it is imported."""


def _keeping(compile_graph: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(compile_graph)
    def codegen_and_compile(*args: Any, **kwargs: Any) -> Any:
        with recorder.collecting() as collected:
            graph = compile_graph(*args, **kwargs)
        try:
            _keep(graph, collected)
            write_after_graph(recorder.own_receipt)
        except Exception as error:
            _warn(error)
        return graph

    return codegen_and_compile


def _warn(error: Exception) -> None:
    """The compile goes on: only receipts and statistics lack something."""
    let_pass(error)
    warn_once(f"what was decided for a graph is not recorded: {error!r}")


def _keep(graph: Any, collected: recorder.Collected) -> None:
    if not hasattr(graph, "__dict__"):
        return  # AOTInductor's are paths
    if collected.devices:
        counts, receipt = collected.counts.as_dict(), receipt_bytes(Receipt(1, devices=collected.devices))
        vars(graph)[_KEPT] = counts, receipt
        trace_graph(counts, receipt, cached=False)
    if lacks_answers_for_another():
        vars(graph)[_UNANSWERED] = Unanswered()


def _telling(load: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(load)
    def cache_hit_post_compile(*args: Any, **kwargs: Any) -> Any:
        loaded = load(*args, **kwargs)
        try:
            graph, *_ = loaded
            if graph is not None and not is_off():
                _tell(graph, cached=True)
                write_after_graph(recorder.own_receipt)
        except Exception as error:
            _warn(error)
        return loaded

    return cache_hit_post_compile


def _receiving(postprocess: Callable[..., None]) -> Callable[..., None]:
    @wraps(postprocess)
    def _postprocess(scheme: Any, output: Any) -> None:
        postprocess(scheme, output)
        try:
            _tell(output.graph, cached=False)
            write_after_graph(recorder.own_receipt)
        except Exception as error:
            _warn(error)

    return _postprocess


def _tell(graph: Any, *, cached: bool) -> None:
    kept = getattr(graph, _KEPT, None)
    if kept is not None:
        counts, receipt = kept
        devices = decode_receipt(orjson.loads(receipt), "a compiled graph").devices
        trace_graph(counts, receipt, cached=cached)
        recorder.told(recorder.Counts(**counts), devices, cached=cached)
