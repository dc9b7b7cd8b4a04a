"""Exceptions that a signal handler raises, such as an alarm's TimeoutError: they are the program's own.

Python runs a handler between any two instructions, also within a ``try`` that catches other errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from traceback import walk_tb
from types import FrameType


def let_pass(error: BaseException) -> None:
    """Raise again what a signal handler, or a debugger, has raised, if ``error`` is that or was caused by it.

    To be called wherever Exception or OSError is caught that others may have raised.
    """
    for each in _causes(error):
        if any(_interrupts(frame) for frame, _ in walk_tb(each.__traceback__)):
            raise each


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised for, and so on."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _interrupts(frame: FrameType) -> bool:
    """Whether the function of this frame got the frame that called it as an argument, as a signal handler does."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + 1]  # the last is *args, if there are any
    given = [frame.f_locals.get(name) for name in names]
    below = frame.f_back
    return below is not None and any(
        value is below or (isinstance(value, tuple) and any(each is below for each in value)) for value in given
    )
