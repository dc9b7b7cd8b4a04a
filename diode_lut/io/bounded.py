"""Reading what others wrote: files only, no more of them than a limit, and no more values than memory has room for."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

_NEVER_WAITING = getattr(os, "O_NONBLOCK", 0)


def open_regular(path: Path) -> BufferedReader:
    """The file, to be read; OSError if it cannot be, or is a directory, a pipe, a socket or a device.

    Those could keep a reader waiting, or never end.
    """
    _require_regular(path.stat().st_mode, path)  # opening a device can already do something
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NEVER_WAITING))  # noqa: SIM115
    try:
        _require_regular(os.fstat(file.fileno()).st_mode, path)
    except OSError:
        file.close()
        raise
    return file


def _require_regular(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file: write what it gives into one", str(path))


def read_at_most(path: Path, limit: int) -> bytes:
    """The file's bytes; OSError if it cannot be read, or has more than ``limit`` of them, of which none is kept."""
    with open_regular(path) as file:
        data = file.read(min(os.fstat(file.fileno()).st_size, limit) + 1)
        while (more := file.read(1 << 20)) and len(data) <= limit:  # a file that grows
            data += more
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"too large (allowed: {_in_words(limit)})", str(path))
    return data


def has_more_values(text: bytes, most: int) -> bool:
    """Whether JSON in the text may be more than ``most`` values, each of which takes up to 250 bytes when parsed.

    Commas and brackets are counted, also those in strings.
    """
    return len(text) > most and text.count(b",") + text.count(b"[") + text.count(b"{") >= most


def _in_words(size: int) -> str:
    return f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB"
