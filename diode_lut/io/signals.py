"""Signals that come while something is written, or while Python runs code whose exceptions it ignores.

What a handler raises is ignored in a ``__del__``, in the callback of a weak reference, and in what C code calls.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_STOPPING = (signal.SIGINT, signal.SIGTERM)


class _Interrupt:
    """Raises KeyboardInterrupt, but not in a ``__del__``, where it would only be a note; remembers that it came."""

    def __init__(self) -> None:
        self.called = False

    def __call__(self, _number: int, frame: FrameType | None) -> None:
        self.called = True
        while frame is not None and frame.f_code.co_name != "__del__":
            frame = frame.f_back
        if frame is None:
            raise KeyboardInterrupt


def interrupt_on_signals() -> None:
    """From now on SIGINT, unless it is ignored as in a shell's background job, and SIGTERM raise KeyboardInterrupt.

    Where Python ignores it, it is raised at the end of the next ``signals_held``.
    """
    handler = _Interrupt()
    for number in _STOPPING:
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


@contextmanager
def signals_held() -> Iterator[None]:
    """SIGINT and SIGTERM take effect at the end of the block, so that what is written is whole, and counted as well.

    Only the main thread gets signals; in other threads nothing is held.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    before = {number: signal.signal(number, lambda number, _: waiting.append(number)) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if waiting:
            signal.raise_signal(waiting[0])
        if any(isinstance(handler, _Interrupt) and handler.called for handler in before.values()):
            raise KeyboardInterrupt
