"""Counts steps, so that a test can bound work without a clock."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(function: Callable[..., object], *arguments: object) -> int:
    """How many lines of Python a call runs."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*arguments)
    finally:
        sys.settrace(before)
    return count
