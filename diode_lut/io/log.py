"""The logger, and warnings that are logged once."""

from __future__ import annotations

import logging
from functools import lru_cache

from diode_lut.domain.printable import printable

log = logging.getLogger("diode_lut")


@lru_cache(maxsize=1024)
def warn_once(message: str) -> None:
    """Log ``message`` as a warning, the first time in this process."""
    log.warning("%s", printable(message))
