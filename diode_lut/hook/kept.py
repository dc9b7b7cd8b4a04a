"""Decisions stay with their graphs: in Inductor's caches, and in Dynamo's cache of packages.

Functions here stand in the place of Inductor's and Dynamo's, as ``patches`` lists them. Each gets the original first.

A graph in Inductor's caches has its counts and its receipt as attributes, for the process that loads it. The keys of
Dynamo's packages (``torch._dynamo.config.caching_precompile``) are a function's name and line. Tables and settings are
not in them. So each graph of a package is marked with the identity of its snapshot, and a package is served only if all
marks are the present identity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from diode_lut.errors import let_pass
from diode_lut.hook.snapshot import trace_graph
from diode_lut.hook.switch import Unanswered, cache_identity, is_answered, is_off, lacks_answers_for_another
from diode_lut.log import log, warn_once
from diode_lut.receipts import Receipt, decode_receipt, receipt_bytes, recorder
from diode_lut.receipts.receipt_file import write_after_graph

_KEPT = "_diode_lut"
"""The attribute of a graph with its counts and its receipt."""
_MARK = "_diode_lut"
"""The attribute of a package's graph with the identity of the snapshot; None if it was not answered."""
_UNANSWERED = "_diode_lut_unanswered"
"""The attribute of a graph whose kernels are not those its key stands for."""


def codegen_and_compile(compile_graph: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Compile a graph, and keep with it the decisions about it."""
    with recorder.collecting() as collected:
        graph = compile_graph(*arguments, **named)
    try:
        _keep(graph, collected)
        write_after_graph(recorder.own_receipt)
    except Exception as error:
        _warn(error)
    return graph


def cache_hit_post_compile(load: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Load a graph from a cache, and record the decisions about it."""
    loaded = load(*arguments, **named)
    try:
        graph, *_ = loaded
        if graph is not None and not is_off():
            _tell(graph, cached=True)
            write_after_graph(recorder.own_receipt)
    except Exception as error:
        _warn(error)
    return loaded


def postprocess(postprocess_output: Callable[..., None], scheme: Any, output: Any) -> None:
    """Receive a graph from another process, which has compiled it, and record the decisions about it."""
    postprocess_output(scheme, output)
    try:
        _tell(output.graph, cached=False)
        write_after_graph(recorder.own_receipt)
    except Exception as error:
        _warn(error)


def _keep(graph: Any, collected: recorder.Collected) -> None:
    if not hasattr(graph, "__dict__"):
        return  # AOTInductor's are paths
    if collected.devices:
        counts, receipt = collected.counts.as_dict(), receipt_bytes(Receipt(1, devices=collected.devices))
        vars(graph)[_KEPT] = counts, receipt
        trace_graph(counts, receipt, cached=False)
    if lacks_answers_for_another():
        vars(graph)[_UNANSWERED] = Unanswered()


def _tell(graph: Any, *, cached: bool) -> None:
    kept = getattr(graph, _KEPT, None)
    if kept is not None:
        counts, receipt = kept
        devices = decode_receipt(orjson.loads(receipt), "a compiled graph").devices
        trace_graph(counts, receipt, cached=cached)
        recorder.told(recorder.Counts(**counts), devices, cached=cached)


def _warn(error: Exception) -> None:
    """Warn about gaps in receipts and statistics. The compile goes on."""
    let_pass(error)
    warn_once(f"what was decided for a graph is not recorded: {error!r}")


def record_artifact(record: Callable[..., None], cls: Any, artifact: Any) -> None:
    """Mark a graph for a package. This is called in the compile that made it, or after it was read with its mark."""
    vars(artifact).setdefault(_MARK, repr(cache_identity()) if is_answered() else None)
    record(cls, artifact)


def read_package(read: Callable[[str], Any], path: str) -> Any:
    """Read a package. Its graphs have a mark unless a process without the hook made them."""
    entry = read(path)
    for artifact in entry.backends.values():
        vars(artifact).setdefault(_MARK, None)
    return entry


def load_package(load: Callable[[Any], Any], function: Any) -> Any:
    """Load the package of a function, or none if it was made with other settings or tables."""
    entry = load(function)
    if entry is None or all(_is_current(artifact) for artifact in entry.backends.values()):
        return entry
    log.info("%s is compiled again: its package was made with other settings or tables", function)
    return None


def _is_current(artifact: Any) -> bool:
    return getattr(artifact, _MARK, None) == repr(cache_identity())
