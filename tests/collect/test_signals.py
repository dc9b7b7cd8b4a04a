"""Signals that come while something is written and counted."""

from __future__ import annotations

import signal

import pytest

from diode_lut.collect.watch import signals_held


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_the_block(number: signal.Signals) -> None:
    """All of the block is done before the signal takes effect, as it would have without the block."""
    before = signal.signal(number, signal.default_int_handler)
    done: list[int] = []

    def interrupted() -> None:
        with signals_held():
            signal.raise_signal(number)
            done.append(number)

    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert done == [number]
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
