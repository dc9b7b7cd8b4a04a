"""Files that another program is writing in place, as ``jq ... > file`` does: a reader may see only a part of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from diode_lut.domain.errors import DiodeLutError

_Read = TypeVar("_Read")

_PAUSE_S = 0.02
_TRIES = 12
"""An empty file is waited for a quarter of a second: jq takes that long to read a large table before it writes."""


def read_finished(
    path: Path, read: Callable[[Path], _Read], damaged: Callable[[_Read], bool] = lambda _: False
) -> _Read:
    """What ``read`` makes of the file; if that is ``damaged`` or an error, it is read again while it is being written.

    A file that does not change within 20 ms is what it is, unless it is empty.
    """
    for _ in range(_TRIES):
        before = _state(path)
        try:
            found = read(path)
        except DiodeLutError:
            if not _changes(path, before):
                raise
        else:
            if not damaged(found) or not _changes(path, before):
                return found
    return read(path)


def _state(path: Path) -> tuple[int, int] | None:
    """When the file was written, in nanoseconds, and its size in bytes; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _changes(path: Path, before: tuple[int, int] | None) -> bool:
    """Whether the file is another one after a pause, or still empty."""
    if before is None:
        return False
    time.sleep(_PAUSE_S)
    after = _state(path)
    return after is not None and (after != before or not after[1])
