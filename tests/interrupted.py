"""A signal at a certain point of the package's code, and a handler that raises."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


def _raise(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError


@contextmanager
def alarm_in(module: str, call: int = 1) -> Iterator[list[str]]:
    """Within the block an alarm goes off as soon as ``call`` calls of functions of a module have begun.

    ``module`` is the end of its file's path. What comes out lists the functions that were called till then.
    """
    called: list[str] = []

    def trace(frame: FrameType, event: str, _argument: Any) -> None:
        inside = frame.f_code.co_filename.endswith(f"diode_lut/{module}")
        if event == "call" and inside and len(called) < call:
            called.append(frame.f_code.co_name)
            if len(called) == call:
                signal.raise_signal(signal.SIGALRM)

    before, tracing = signal.signal(signal.SIGALRM, _raise), sys.gettrace()
    sys.settrace(trace)
    try:
        yield called
    finally:
        sys.settrace(tracing)
        signal.signal(signal.SIGALRM, before)
