"""Permissions of files: kept when a file is replaced, and checked before a file is used that the user did not name.

Trusted are the user, root, and the owner of this program, who could have changed the program instead.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

PRIVATE = 0o600
"""The mode with which a replacement of a file is created."""

_NONE = (errno.ENODATA, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_LABELS = ("user.", "security.selinux")
"""Prefixes of attributes that do not affect permissions. The system's other attributes belong to one inode."""


def keep_permissions(existing: Path, descriptor: int) -> None:
    """Give the new, empty, PRIVATE file the owner, group, attributes and mode of the existing one, if there is one.

    What the system does not allow is left out; so are permissions that would then give other users access.
    """
    try:
        status = existing.stat()
    except FileNotFoundError:
        return
    mode = stat.S_IMODE(status.st_mode)
    group_is_same = _give(descriptor, status)
    if not group_is_same:
        mode &= 0o700 | (mode >> 3 & mode & 0o7) * 0o11  # a member of the old group may now be one of the others
    if not _copy_attributes(existing, descriptor, group_is_same):
        mode &= 0o700
    os.fchmod(descriptor, mode)


def _give(descriptor: int, status: os.stat_result) -> bool:
    """Set owner and group where that is allowed, and say whether the file has the group."""
    new = os.fstat(descriptor)
    if (status.st_uid, status.st_gid) != (new.st_uid, new.st_gid):
        try:
            os.fchown(descriptor, status.st_uid, status.st_gid)
        except PermissionError:
            with suppress(PermissionError):
                os.fchown(descriptor, -1, status.st_gid)
    return os.fstat(descriptor).st_gid == status.st_gid


def _copy_attributes(existing: Path, descriptor: int, group_is_same: bool) -> bool:
    """Copy the attributes, and say whether the new file has just the access control lists of the existing one."""
    if sys.platform != "linux":
        return True
    for name in filter(_is_acl, _names(descriptor)):  # inherited from the directory
        with suppress(OSError):
            os.removexattr(descriptor, name)
    names = _names(existing)
    for name in names:
        if name.startswith(_LABELS):
            with suppress(OSError):
                os.setxattr(descriptor, name, os.getxattr(existing, name))
    try:
        for name in filter(_is_acl, names):
            if not group_is_same:
                return False
            os.setxattr(descriptor, name, os.getxattr(existing, name))
    except OSError:
        return False
    return True


def _is_acl(name: str) -> bool:
    return name.startswith("system.") and "acl" in name


def _names(file: Path | int) -> list[str]:
    """The names of the extended attributes; none if the file system does not support them."""
    assert sys.platform == "linux"
    try:
        return os.listxattr(file)
    except OSError as error:
        if error.errno in _NONE:
            return []
        raise


if sys.platform != "win32":
    import grp
    import pwd


def distrust(path: Path) -> str:
    """Why a file must not be used that was found, not named; empty if it may be used.

    The file and its directory must belong to a trusted user, and no other user may write them; a directory may be
    sticky. A group counts as its owner if it has no other members. A symbolic link counts as its target. On Windows,
    which has other permissions, everything is trusted. OSError if there is no such file.
    """
    if sys.platform == "win32":
        return ""
    real = Path(os.path.realpath(path, strict=True))  # unlike ``resolve``, it raises no RuntimeError
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
    """Whether the file's group is root's, or has no member but the owner, as many systems have for each user."""
    if sys.platform == "win32" or status.st_gid == 0:
        return True
    try:
        owner, group = pwd.getpwuid(status.st_uid).pw_name, grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return group.gr_name == owner and set(group.gr_mem) <= {owner}
