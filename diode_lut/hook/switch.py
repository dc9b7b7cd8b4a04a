"""Whether the hook is on, and the identity of its answers in the keys of caches.

The hook goes off, for the rest of the process and with one warning, if Inductor is not as this package knows it.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any
from uuid import uuid4

from diode_lut.errors import let_pass
from diode_lut.log import warn_once
from diode_lut.settings import config

_MISFITS = (AttributeError, ImportError, TypeError)  # of a missing name, and of a call with the wrong arguments
_PASSING = (MemoryError, OSError, RecursionError)  # errors that may not happen again in the same place
_KEY = "_fx_graph_cache_key"  # the attribute of a graph with its key
OFF = ("off",)  # the identity of Inductor's own choices
off_because: list[Exception] = []  # the errors for which Inductor decides alone. Empty while the hook is on


def turn_off(reason: Exception) -> None:
    """Have Inductor decide alone from now on. Raise an error from a signal handler again instead."""
    let_pass(reason)
    if not off_because:
        torch: Any = sys.modules["torch"]
        warn_once(f"diode_lut is off, and Inductor of torch {torch.__version__} decides alone: {reason!r}")
    off_because.append(reason)
    _keep_uncached()


def cache_identity() -> tuple[Hashable, ...]:
    """Return everything on which answers depend.

    If it cannot be read, return a new value each time, so that no cache hits, and turn the hook off, unless the error
    may not happen again.
    """
    if off_because:
        return OFF
    try:
        from diode_lut.hook.snapshot import compile_range, snapshot

        return (*snapshot().identity, compile_range())
    except _PASSING as error:
        let_pass(error)
        warn_once(f"a graph is kept in no cache: {error!r}")
        _keep_uncached()
    except Exception as error:
        turn_off(error)
    return ("unknown", uuid4().hex)


def cache_fault() -> str:
    """Return why Inductor's key of an empty graph does not follow a setting of ours, or an empty text."""
    import torch

    def key() -> str:
        from torch._inductor.codecache import compiled_fx_graph_hash

        no_arguments: Any = {}
        found, _ = compiled_fx_graph_hash(torch.fx.symbolic_trace(torch.nn.Identity()), [], no_arguments, [])
        return found

    try:
        with config.patch(policy="pick"):
            before = key()
            with config.patch(policy="verify"):
                other = key()
            again = key()
    except Exception as error:
        let_pass(error)
        return f"the keys of Inductor's caches cannot be computed: {error!r}"
    return "" if before == again != other else "the keys of Inductor's caches do not follow the answers"


def leave(matmul: str, error: Exception) -> None:
    """Leave a matmul to Inductor because of an error. Leave all others too, if this package used Inductor wrongly.

    An error from further down, in Inductor or in Triton, may concern this matmul alone. Raise an error from a signal
    handler again.
    """
    let_pass(error)
    *_, innermost = traceback.extract_tb(error.__traceback__)
    if isinstance(error, _MISFITS) and Path(innermost.filename).parent == Path(__file__).parent:
        turn_off(error)
    else:
        warn_once(f"{matmul} is left to Inductor: {type(error).__name__}: {error}")
        if isinstance(error, _PASSING):
            _keep_uncached()


def _keep_uncached() -> None:
    """Keep the present graph from other compiles: it did not get all the answers for which its key stands."""
    try:
        from diode_lut.hook.snapshot import snapshot

        snapshot().answered = False
    except Exception as error:
        let_pass(error)  # without a snapshot there is no key either


def save(save_graph: Callable[..., None], key: str, graph: Any, *arguments: Any, **named: Any) -> None:
    """Save a graph, or AOTAutograd's part of it, under a key.

    If the compile did not get all its answers, change the key, so that no other compile finds the graph. It is still
    saved, because users of ``torch._inductor.standalone_compile`` must be able to save their artifact.
    """
    if not is_answered():
        key += uuid4().hex
        if hasattr(graph, _KEY):
            setattr(graph, _KEY, key)  # where AOTAutograd finds it
    save_graph(key, graph, *arguments, **named)


def is_answered() -> bool:
    """Return whether the present graph has the answers for which its key stands."""
    try:
        from diode_lut.hook.snapshot import snapshot

        now = snapshot()
        return now.answered and ("identity" not in vars(now) if off_because else now.is_identified)
    except Exception as error:
        let_pass(error)
        return False


class Unanswered:
    """Tell the process that saves a graph, when it unpickles this, that the graph did not get all its answers."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _keep_uncached, ()


def follow(identity: tuple[Hashable, ...]) -> None:
    """Answer as the process that hands over its snapshot for a graph, and has ``identity`` in the graph's key.

    If this process would answer otherwise, as after a table was replaced, keep the graph from other compiles.
    """
    if identity == OFF:
        if not off_because:
            turn_off(RuntimeError("it is off in the process that this one compiles for"))
    elif cache_identity() != identity:
        if not off_because:
            warn_once(
                "graphs are in no cache for others: tables, or diode_lut, have changed since the program read them"
            )
        _keep_uncached()
