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

_PAUSE_S = 0.005
_PATIENCE_S = 2.0
"""How long a process waits to be alone in a directory."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)
"""NFS answers EBADF for a file that is not open for writing."""


def lock(descriptor: int, patience_s: float) -> None:
    """Lock the open file until it is closed; BlockingIOError names the process that keeps it locked for that long."""
    if not _locked_within(descriptor, patience_s):
        raise BlockingIOError(errno.EAGAIN, f"being written by {_holder(descriptor)}: wait for it, or stop it")


def _locked_within(descriptor: int, patience_s: float) -> bool:
    for _ in range(round(patience_s / _PAUSE_S)):
        if try_lock(descriptor) is not False:
            return True
        time.sleep(_PAUSE_S)
    return False


def try_lock(descriptor: int) -> bool | None:
    """Lock the open file, if it is free, and say whether it was; None where there are no locks."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


@contextmanager
def alone_in(path: Path) -> Iterator[bool]:
    """Only one process at a time runs such a block for a directory; the others wait, but not for ever.

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
            alone = _locked_within(descriptor, _PATIENCE_S)
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
