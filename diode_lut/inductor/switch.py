"""Whether the hook is on, and what its answers depend on.

The hook goes off, for the rest of the process and with one warning, where Inductor is not as this package knows it.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any
from uuid import uuid4

from diode_lut.domain.errors import let_pass
from diode_lut.io.log import warn_once

_MISFITS = (AttributeError, ImportError, TypeError)
"""What Python raises for a name that does not exist, and for a call with the wrong arguments."""

_PASSING = (MemoryError, OSError, RecursionError)
"""Errors that may not happen again in the same place."""

_reasons: list[Exception] = []
"""Why the hook is off; empty as long as it is on."""


def is_off() -> bool:
    """Whether Inductor decides alone."""
    return bool(_reasons)


def turn_off(reason: Exception) -> None:
    """Have Inductor decide alone from now on. What a signal handler has raised is raised again instead."""
    let_pass(reason)
    if not _reasons:
        torch: Any = sys.modules["torch"]
        warn_once(f"diode_lut is off, and Inductor of torch {torch.__version__} decides alone: {reason!r}")
    _reasons.append(reason)
    _keep_uncached()


def cache_identity() -> tuple[Hashable, ...]:
    """What the answers depend on; if that cannot be found out, a new value each time, so that no cache hits."""
    if is_off():
        return ("off",)
    try:
        from diode_lut.inductor.dynamic import compile_range
        from diode_lut.inductor.snapshot import snapshot

        return (*snapshot().identity, compile_range())
    except Exception as error:
        turn_off(error)
        return ("unknown", uuid4().hex)


def leave(matmul: str, error: Exception) -> None:
    """Leave a matmul to Inductor because of an error; and all others, if this package used Inductor wrongly.

    An error that was raised further down, in Inductor or in Triton, may concern this matmul alone. What a signal
    handler has raised is raised again.
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
    """Have the graph that is being compiled in no cache: its key stands for answers that it did not get."""
    try:
        from diode_lut.inductor.snapshot import snapshot

        snapshot().answered = False
    except Exception as error:
        let_pass(error)  # without a snapshot there is no key either


def saving(save: Callable[..., None]) -> Callable[..., None]:
    """A cache's function that saves a graph, which is not called in a compile that did not get its answers."""

    def save_if_answered(*arguments: Any, **named: Any) -> None:
        if _is_answered():
            save(*arguments, **named)

    return save_if_answered


def _is_answered() -> bool:
    try:
        from diode_lut.inductor.snapshot import snapshot

        return snapshot().answered
    except Exception as error:
        let_pass(error)
        return False
