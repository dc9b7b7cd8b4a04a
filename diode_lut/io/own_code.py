"""This package's code: its digest, and whether it was replaced since it was imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

_CODE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120 (see ``domain/values.py``)

_imported: frozenset[tuple[str, int, int, int]] | None = None
"""The files of this package's code when this process imported it: path, inode, size and time of each."""


@cache
def code_digest() -> str:
    """A digest of this package's code, wherever it lies; takes 10 ms once. OSError if it cannot be read.

    Compiled copies that Python keeps do not count, but they do where they are all there is.
    """
    import hashlib  # not when this package is imported: OpenSSL takes its time
    from pathlib import Path

    digest = hashlib.sha256()
    for name in sorted(file.path for file in _code_files(_CODE)):
        path = Path(name)
        data = path.read_bytes()
        digest.update(f"{path.relative_to(_CODE).as_posix()} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def remember_code() -> None:
    """Remember the code as it is, before more of it is imported; takes less than a millisecond."""
    global _imported
    _imported = _code()


def is_code_as_imported() -> bool:
    """Whether the code is still as it was when it was remembered; if not, it is not known what this process runs.

    Where it was not remembered, or cannot be looked at, it counts as unchanged.
    """
    if _imported is None or _code() == _imported:
        return True
    from diode_lut.io.log import warn_once

    warn_once("diode_lut was replaced while it is in use: start the program again; until then caches do not serve it")
    return False


def _code() -> frozenset[tuple[str, int, int, int]] | None:
    try:
        files = [(file.path, file.stat()) for file in _code_files(_CODE)]
    except OSError:
        return None
    return frozenset((path, found.st_ino, found.st_size, found.st_mtime_ns) for path, found in files)


def _code_files(directory: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    yield from _code_files(entry.path)
            elif ".py" in entry.name:
                yield entry
