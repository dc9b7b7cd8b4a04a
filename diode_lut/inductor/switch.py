"""The hook's switch: it goes off, for good and with one warning, where Inductor is not as this package knows it."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

from diode_lut.domain.interruption import let_pass
from diode_lut.io.log import warn_once

_MOVED_ON = (AttributeError, ImportError, TypeError)
"""What Python raises for a name that is not there, and for a call that does not fit."""

_reasons: list[Exception] = []
"""Why it is off; empty as long as it is on."""


def is_off() -> bool:
    """Whether Inductor decides alone."""
    return bool(_reasons)


def turn_off(reason: Exception) -> None:
    """Have Inductor decide alone from now on; what a signal handler has raised is raised again instead."""
    let_pass(reason)
    if not _reasons:
        torch: Any = sys.modules["torch"]
        warn_once(f"diode_lut is off, and Inductor of torch {torch.__version__} decides alone: {reason!r}")
    _reasons.append(reason)


def leave(product: str, error: Exception) -> None:
    """Leave a product to Inductor because of an error; and all others, if this package itself asked for the impossible.

    An error from deeper down, in Inductor or in Triton, may concern this product alone. What a signal handler has
    raised is raised again.
    """
    let_pass(error)
    *_, innermost = traceback.extract_tb(error.__traceback__)
    if isinstance(error, _MOVED_ON) and Path(innermost.filename).parent == Path(__file__).parent:
        turn_off(error)
    else:
        warn_once(f"{product} is left to Inductor: {type(error).__name__}: {error}")
