"""Advisory locks on files that are written. They end with the process that holds them, however it ends.

Where there are no locks (on Windows, on some network file systems) no file counts as locked.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_TRIES, _PAUSE_S = 20, 0.005
_TRIES_FOR_DIRECTORY = 400
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def lock(descriptor: int) -> None:
    """Lock the open file until it is closed; BlockingIOError names the process that has it locked."""
    _take(descriptor, shared=False)


def require_unlocked(path: Path) -> None:
    """BlockingIOError if there is such a file and a process has it locked."""
    with suppress(FileNotFoundError, PermissionError):
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # opening a pipe would block
        try:
            _take(descriptor, shared=True)
        finally:
            os.close(descriptor)


def _take(descriptor: int, *, shared: bool) -> None:
    """Try for a while, because a process that looks for stale temporary files locks each for an instant."""
    if not _take_within(descriptor, _TRIES, shared=shared):
        raise BlockingIOError(errno.EAGAIN, f"being written by {_holder(descriptor)}: wait for it, or stop it")


def _take_within(descriptor: int, tries: int, *, shared: bool) -> bool:
    for _ in range(tries):
        if try_lock(descriptor, shared=shared):
            return True
        time.sleep(_PAUSE_S)
    return False


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock the open file, if it is free, and say whether it was; ``shared`` with others that lock it shared."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


@contextmanager
def alone_in(path: Path) -> Iterator[bool]:
    """Only one process at a time runs such a block for a directory; the others wait, but no longer than two seconds.

    The value says whether this process is alone. It is not if it has waited in vain: anybody who may read a directory
    can lock it. If the directory cannot be opened, for example because it may be written but not read, or if there are
    no locks, no process waits, and each counts as alone.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        yield True
        return
    try:
        try:
            alone = _take_within(descriptor, _TRIES_FOR_DIRECTORY, shared=False)
        except OSError:  # no locks there
            alone = True
        yield alone
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    """The process that has the file locked, as Linux lists it: ``1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF``."""
    inode = str(os.fstat(descriptor).st_ino)
    with suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[4].isdecimal() and fields[5].rpartition(":")[2] == inode:
                return f"process {fields[4]}"
    return "another process"
