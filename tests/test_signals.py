"""Signals that come while something is written, or where Python ignores what their handlers raise."""

import signal
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from diode_lut.process import interrupt_on_signals, signals_held

STOPPING = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Python's own handler for both signals, and afterwards what there was before."""
    before = [signal.signal(number, signal.default_int_handler) for number in STOPPING]
    yield
    for number, handler in zip(STOPPING, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_waits_for_the_end_of_the_block(number: int) -> None:
    """All of the block is done before the signal takes effect, as it would have without the block."""
    done: list[int] = []

    def interrupted() -> None:
        with signals_held():
            signal.raise_signal(number)
            done.append(number)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == [number]
    assert signal.getsignal(number) is signal.default_int_handler


class Finalized:
    """Gets a signal in its ``__del__``, or in what that calls."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        self.interrupted()

    def interrupted(self) -> None:
        signal.raise_signal(self.number)


class Watched:
    """The callback of a weak reference to it gets a signal, and has no name to go by."""

    def __init__(self, number: int) -> None:
        self.reference = weakref.ref(self, lambda _: signal.raise_signal(number))


def forget(kind: type[Finalized | Watched], number: int) -> list[Any]:
    """Make an object and forget it, but not the reference to it."""
    return [vars(kind(number)).get("reference")]


@pytest.mark.parametrize("number", STOPPING)
@pytest.mark.parametrize(("kind", "said"), [(Finalized, []), (Watched, [KeyboardInterrupt])])
def test_a_signal_while_an_object_is_finalized(
    kind: type[Finalized | Watched], said: list[Any], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Python ignores there takes effect at the end of the next block, after a ``__del__`` without a note."""
    ignored: list[Any] = []
    done: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: ignored.append(args.exc_type))

    def interrupted() -> None:
        interrupt_on_signals()
        forget(kind, number)
        done.append("measured")
        with signals_held():
            done.append("written")
        done.append("more")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (ignored, done) == (said, ["measured", "written"])


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    """A shell's background job is not interrupted by Ctrl-C."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    interrupt_on_signals()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
