"""The user's functions that are registered in this process."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType

from diode_lut.selection.chooser import Chooser

_registered: dict[str, Chooser] = {}
"""By name; in the order in which they are asked."""


def registered() -> tuple[Chooser, ...]:
    """All that are registered at this moment."""
    return tuple(_registered.values())


class Registration(AbstractContextManager["Registration"]):
    """A registered chooser. ``remove`` takes it away again, and so does the end of a ``with`` block."""

    def __init__(self, chooser: Chooser) -> None:
        self.chooser = chooser

    def remove(self) -> None:
        """Ask it no more from the next compile on, unless another one has taken its place already."""
        if _registered.get(self.chooser.name) is self.chooser:
            del _registered[self.chooser.name]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()


def register(chooser: Chooser) -> Registration:
    """Have it asked from the next compile on, in the place of another one of the same name."""
    _registered[chooser.name] = chooser
    return Registration(chooser)
