"""Exceptions of signal handlers."""

import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from diode_lut.errors import TableError, let_pass


def one(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError("alarm")


def any_number(*_arguments: Any) -> None:
    one(*_arguments)


class Handlers:
    def method(self, number: int, frame: FrameType | None) -> None:
        one(number, frame)


@pytest.fixture(params=[one, any_number, Handlers().method, partial(one)], ids=["function", "any", "method", "partial"])
def interrupt(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Has a handler run that raises."""
    before = signal.signal(signal.SIGALRM, request.param)
    yield lambda: signal.raise_signal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


def test_what_a_handler_raises_passes(interrupt: Callable[[], None]) -> None:
    """What a handler has raised is raised again, whatever kind of callable it is; it may have become another error."""
    try:
        interrupt()
    except OSError as error:
        interruption: OSError = error
    with pytest.raises(TimeoutError, match="alarm"):
        let_pass(interruption)
    wrapped = TableError("cannot be read")
    wrapped.__cause__ = interruption
    with pytest.raises(TimeoutError, match="alarm"):
        let_pass(wrapped)


def test_other_errors_are_left_alone() -> None:
    """An error that no handler has raised is not raised again."""
    try:
        Path("/nowhere/at all").read_bytes()
    except OSError as error:
        let_pass(error)
    let_pass(TimeoutError())
