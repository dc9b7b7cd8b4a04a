"""Whether diode_lut can be of use on this machine, as it is set up."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from diode_lut.doctor.checks import Finding, devices, hook, settings, software

__all__ = ["Finding", "examine"]

_CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (software, hook, settings, devices)
"""What is looked at, in this order."""


def examine() -> Iterator[Finding]:
    """Everything that was found, good and bad."""
    for check in _CHECKS:
        yield from check()
