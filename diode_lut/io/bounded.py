"""Reading files with limits: regular files only, up to a size, and a number of JSON values that fits in memory."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

_NEVER_WAITING = getattr(os, "O_NONBLOCK", 0)


def open_regular(path: Path) -> BufferedReader:
    """The file, to be read; OSError if it cannot be, or is a directory, a pipe, a socket or a device.

    These could block a reader, or never end.
    """
    _require_regular(path.stat().st_mode, path)  # opening a device may have an effect
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
        raise OSError(errno.EINVAL, "not a regular file: copy its contents into one", str(path))


def read_at_most(path: Path, limit: int) -> bytes:
    """The file's bytes; OSError if it cannot be read, or has more than ``limit`` bytes."""
    with open_regular(path) as file:
        return read_rest(file, path, limit)


def read_rest(file: BufferedReader, path: Path, limit: int) -> bytes:
    """What an open file still holds; OSError, which names ``path``, if that is more than ``limit`` bytes."""
    data = file.read(min(os.fstat(file.fileno()).st_size, limit) + 1)
    while (more := file.read(1 << 20)) and len(data) <= limit:  # a file that grows
        data += more
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"too large (allowed: {_size_text(limit)})", str(path))
    return data


def has_more_values(text: bytes, most: int) -> bool:
    """Whether a JSON text may hold more than ``most`` values, each of which takes up to 250 bytes when parsed.

    Commas and brackets are counted, including those in strings.
    """
    return len(text) > most and text.count(b",") + text.count(b"[") + text.count(b"{") >= most


def _size_text(size: int) -> str:
    return f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB"
