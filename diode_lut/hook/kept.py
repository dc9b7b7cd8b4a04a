"""Dynamo's cache of packages, ``torch._dynamo.config.caching_precompile``, whose keys are a function's name and line.

Nothing that an answer depends on is in these keys. So each graph that goes into a package is marked with the identity
of the snapshot by which its kernels were chosen, and a package is served only where all marks are the present identity.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import orjson

from diode_lut.errors import let_pass
from diode_lut.hook.switch import Unanswered, cache_identity, is_answered, is_off, lacks_answers_for_another, turn_off
from diode_lut.process import log, warn_once
from diode_lut.receipts import recorder
from diode_lut.receipts.read import decode_receipt
from diode_lut.receipts.receipt import Receipt, receipt_bytes
from diode_lut.receipts.receipt_file import write_after_graph

_MARK = "_diode_lut"


def mark_what_is_kept(precompile_context: Any) -> None:
    """Mark what Dynamo keeps for packages, given ``torch._dynamo.precompile_context``."""
    try:
        context = precompile_context.PrecompileContext
        context.record_artifact = staticmethod(_marking(context.record_artifact))
    except Exception as error:
        turn_off(error)


def check_what_is_served(package: Any) -> None:
    """Serve no package that was made with other settings or tables, given ``torch._dynamo.package``."""
    try:
        cache = package.DynamoCache
        cache.read, cache.load = _reading(cache.read), _checking(cache.load)
    except Exception as error:
        turn_off(error)


def _marking(record: Callable[[Any], None]) -> Callable[[Any], None]:
    def record_artifact(artifact: Any) -> None:
        """Called within the compile that has made the artifact, or after it has been read, with its mark."""
        vars(artifact).setdefault(_MARK, repr(cache_identity()) if is_answered() else None)
        record(artifact)

    return record_artifact


def _reading(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def read_entry(path: str) -> Any:
        entry = read(path)
        for artifact in entry.backends.values():
            vars(artifact).setdefault(_MARK, None)  # made by a process without the hook
        return entry

    return read_entry


def _checking(load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def load_entry(function: Any) -> Any:
        entry = load(function)
        if entry is None or all(_is_current(artifact) for artifact in entry.backends.values()):
            return entry
        log.info("%s is compiled again: its package was made with other settings or tables", function)
        return None

    return load_entry


def _is_current(artifact: Any) -> bool:
    return getattr(artifact, _MARK, None) == repr(cache_identity())


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
        from diode_lut.hook.snapshot import trace_graph  # imports Inductor's caches, one of which imports this module

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
        from diode_lut.hook.snapshot import trace_graph  # imports Inductor's caches, one of which imports this module

        trace_graph(counts, receipt, cached=cached)
        recorder.told(recorder.Counts(**counts), devices, cached=cached)
