"""Reading what others wrote: never more of it than a limit, and never more values than memory has room for."""

from __future__ import annotations

import errno
from pathlib import Path


def read_at_most(path: Path, limit: int) -> bytes:
    """The file's bytes; OSError if it cannot be read, or has more than ``limit`` of them, of which none is kept."""
    with path.open("rb") as file:
        data = file.read(min(path.stat().st_size, limit) + 1)
        while (more := file.read(1 << 20)) and len(data) <= limit:  # a pipe, or a file that grows
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
