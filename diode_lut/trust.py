"""Which files may be used although nobody named them: those that only people can have written who are trusted anyway.

That is the user, root, and whoever owns this program: they could have changed it instead.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

if sys.platform != "win32":
    import grp
    import pwd


def distrust(path: Path) -> str:
    """Why a file that was found, not named, is not used, in words; empty if there is nothing against it.

    It and its directory must belong to somebody trusted, and nobody else may write them; a directory may be sticky. A
    group counts as its owner if nobody else is in it. A symbolic link counts as what it leads to. On Windows, which
    has other permissions, everything is trusted. OSError if there is no such file.
    """
    if sys.platform == "win32":
        return ""
    real = path.resolve(strict=True)
    return _fault(real, real.stat()) or _fault(real.parent, real.parent.stat())


def _fault(path: Path, status: os.stat_result) -> str:
    if status.st_uid not in (0, os.geteuid(), Path(__file__).stat().st_uid):
        return f"{path} belongs to user {status.st_uid} (allowed: you, root, and who owns this program: chown it)"
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return ""
    by_group = status.st_mode & stat.S_IWGRP and not _alone(status)
    if by_group or status.st_mode & stat.S_IWOTH:
        return f"{path} can be written by others (chmod go-w)"
    return ""


def _alone(status: os.stat_result) -> bool:
    """Whether the file's group is root's, or its owner's own, as many systems give one to each user."""
    if sys.platform == "win32" or status.st_gid == 0:
        return True
    try:
        owner, group = pwd.getpwuid(status.st_uid).pw_name, grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return group.gr_name == owner and set(group.gr_mem) <= {owner}
