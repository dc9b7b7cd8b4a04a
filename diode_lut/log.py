"""The package's logger, and warnings that are logged once. ``import diode_lut`` does not import this module."""

from __future__ import annotations

import logging
from functools import lru_cache

from diode_lut.errors import printable


class _Unasked(logging.Logger):
    """Show warnings only, however much the program shows of its own, until a level is set for this logger itself."""

    def getEffectiveLevel(self) -> int:  # noqa: N802 (logging's name)
        return self.level or max(super().getEffectiveLevel(), logging.WARNING)


log = logging.getLogger("diode_lut")
log.__class__ = _Unasked


@lru_cache(maxsize=1024)
def warn_once(message: str) -> None:
    """Log ``message`` as a warning, the first time in this process."""
    log.warning("%s", printable(message))
