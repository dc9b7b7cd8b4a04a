"""Checks whether diode_lut works on this machine with its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from diode_lut.doctor.checks import Finding, devices, hook, settings, software

__all__ = ["Finding", "examine"]

_CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (software, hook, settings, devices)
"""The checks, in the order in which they are run."""


def examine() -> Iterator[Finding]:
    """All findings, good and bad."""
    for check in _CHECKS:
        yield from check()
