"""The user's functions that are registered in this process."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType

from diode_lut.io.log import warn_once
from diode_lut.selection.chooser import LIMIT_S, Chooser, Function

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


def register_chooser(
    function: Function,
    *,
    name: str,
    digest: str | None = None,
    before_tables: bool = False,
    after_models: bool = False,
    limit_s: float = LIMIT_S,
) -> Registration:
    """Have ``function(problem, hardware)`` asked for configs: after all tables, or before them, or after the models.

    It gets a Problem and a Hardware, and returns a Config, a list of them with the best first, or None where it has
    none. It must return the same for the same arguments in every process, because compiled code is kept: ``digest`` is
    any text that changes when its answers do. Without a digest, Inductor's caches do not hit as long as it is
    registered. An error, a value of another type, or a call that takes more than ``limit_s`` seconds is no match, with
    one warning. A function takes the place of another one of the same name. SettingError if an argument is wrong.
    """
    chooser = Chooser(function, name, digest, before_tables, limit_s, after_models)
    if digest is None:
        remedy = "give register_chooser a digest, any text that changes when the answers do"
        warn_once(f"chooser {name} has no digest, so Inductor's caches never hit ({remedy})")
    _registered[name] = chooser
    return Registration(chooser)
