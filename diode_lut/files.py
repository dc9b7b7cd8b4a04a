"""Advisory locks on files that are written. They end with the process that holds them, however it ends.

Where there are no locks (on Windows, on some network file systems) no file counts as locked.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedReader, BytesIO, FileIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from diode_lut.errors import DiodeLutError, let_pass
from diode_lut.process import warn_once

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


_Read = TypeVar("_Read")

_UNFINISHED_PAUSE_S = 0.02
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
    time.sleep(_UNFINISHED_PAUSE_S)
    after = _state(path)
    return after is not None and (after != before or not after[1])


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


_TOKEN_BYTES = 8
_NAME_LENGTH = 50
"""Characters of a file's name that the name of its temporary file repeats, so that no name becomes too long."""
_DEFAULT_MODE = 0o666
"""The mode of a new file, from which the umask takes bits."""
_PATIENCE_S, _GLANCE_S = 10, 0.1
"""How long another process may take to change a file, or to look at it, before a writer gives up."""


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace the file with ``data``, or create it; if it is to be ``durable``, it is on the disk when this returns.

    An existing file keeps its permissions, ACLs, other extended attributes and, where that is allowed, its owner, and
    users who could not read the old file cannot read the new one. A new file gets the mode of the umask. A symbolic
    link within its directory stays, and its target is replaced. OSError leaves the old file unchanged; it is raised for
    links to other directories and for paths that are no regular file (directories, devices) as well, and, as
    BlockingIOError with the process, if another process goes on writing the file.
    """
    with replacing(path, durable=durable) as replace:
        replace(data)


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Callable[[bytes], None]]:
    """Keep other writers off the file, so that it is still the one that was read here when it is replaced.

    Yields the function that replaces or creates the file, as ``write_atomically`` does. A file that is missing is not
    kept from others.
    """
    with _naming(path):
        target = _target(path)
        held = _held(target, _PATIENCE_S if durable else _GLANCE_S)
    try:
        yield partial(_write, path, target, os.replace, durable)
    finally:
        if held is not None:
            with suppress(OSError):
                held.close()


def _held(target: Path, patience_s: float) -> FileIO | None:
    """The file, locked until it is closed; None if it is missing, or may not be opened, or on Windows."""
    if os.name != "posix":
        return None
    mode = "r+b" if os.access(target, os.W_OK) else "rb"  # NFS locks only what is open for writing
    with suppress(FileNotFoundError, PermissionError):
        return _locked(target, mode, patience_s)
    return None


def _locked(target: Path, mode: str, patience_s: float) -> FileIO:
    """Open and lock the file at the path; wait again if another process replaced it meanwhile."""
    while True:
        file = FileIO(target, mode, opener=lambda name, flags: os.open(name, flags | _NEVER_WAITING, _DEFAULT_MODE))
        try:
            lock(file.fileno(), patience_s)
            if is_at(file, target):
                return file
        except OSError:
            file.close()
            raise
        file.close()


def _write(path: Path, target: Path, put: Callable[[Path, Path], None], durable: bool, data: bytes) -> None:
    """Write a new file beside the target, and ``put`` it there."""
    with _naming(path):
        _remove_stale(target)
        temporary, file = _create_beside(target, PRIVATE if target.exists() else _DEFAULT_MODE)
        try:
            keep_permissions(target, file.fileno())
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
            put(temporary, target)
        finally:
            with suppress(OSError):  # what was synced is there, whatever closing says
                file.close()
            with suppress(OSError):
                temporary.unlink()
        if durable:
            _sync_directory(target.parent)


def require_writable(path: Path) -> None:
    """Before any work is done: OSError if ``write_atomically`` could not write the file, which stays unchanged."""
    with _naming(path), replacing(path):
        temporary, file = _create_beside(_target(path), PRIVATE)
        try:
            file.close()
        finally:
            temporary.unlink()


def open_to_append(path: Path, beginning: bytes = b"") -> FileIO:
    """The file, locked until it is closed; writes go to its end.

    If it is missing it is created, with ``beginning`` if the file system has hard links, and empty otherwise.
    BlockingIOError names the process that has it locked. Links and devices are handled as by ``write_atomically``.
    """
    with _naming(path):
        target = _target(path)
        if beginning and not target.exists():
            _write(path, target, _link, True, beginning)
        file = _locked(target, "a+b", _GLANCE_S)
        _sync_directory(target.parent)
        return file


def _link(new: Path, target: Path) -> None:
    """Give the new file the target's name, unless another process has just created the target."""
    with suppress(OSError):
        os.link(new, target)


def append(file: FileIO, data: bytes) -> None:
    """Write all of ``data`` at the end of the file, to the disk; OSError leaves the file as it was."""
    with _naming(Path(file.name)):
        end = file.seek(0, os.SEEK_END)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) or 0 :]
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                file.truncate(end)
            raise


def is_at(file: FileIO, path: Path) -> bool:
    """Whether the open file is still at ``path``, and was not removed or replaced."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Makes system errors name ``path`` instead of the temporary file."""
    try:
        yield
    except OSError as error:
        let_pass(error)
        raise OSError(error.errno, error.strerror, str(path)) from error


def _target(path: Path) -> Path:
    """The file to write; OSError if a link leads out of its directory, or the path is no regular file."""
    directory = Path(os.path.realpath(path.parent))  # unlike ``resolve``, it raises no RuntimeError
    target = Path(os.path.realpath(path)) if path.is_symlink() else directory / path.name
    with suppress(FileNotFoundError):
        mode = target.lstat().st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file: copy its contents into one, or give another name")
    if target.parent != directory:
        raise OSError(errno.ELOOP, f"a symbolic link out of its directory, to {target}: name that file itself")
    return target


def _create_beside(target: Path, mode: int) -> tuple[Path, BinaryIO]:
    """A new file in the same directory, locked while it is open, so that no other process removes it as stale."""
    while True:
        temporary = target.with_name(f".{target.name[:_NAME_LENGTH]}.{os.urandom(_TOKEN_BYTES).hex()}")
        file = open(temporary, "x+b", opener=partial(os.open, mode=mode))  # noqa: SIM115 (with a mode)
        try:
            if try_lock(file.fileno()) is not False and os.fstat(file.fileno()).st_nlink:
                return temporary, file
        except OSError:
            temporary.unlink()
            file.close()
            raise
        file.close()  # another writer removed it before it was locked


def _remove_stale(target: Path) -> None:
    """Remove the temporary files of killed writers: files that are not locked, where there are locks."""
    ours = re.compile(rf"\.{re.escape(target.name[:_NAME_LENGTH])}\.[0-9a-f]{{{2 * _TOKEN_BYTES}}}")
    with suppress(OSError):
        for name in filter(ours.fullmatch, os.listdir(target.parent)):  # noqa: PTH208 (names are what matters)
            path = target.with_name(name)
            with suppress(OSError), path.open("r+b") as file:
                if try_lock(file.fileno()):
                    path.unlink()


def _sync_directory(directory: Path) -> None:
    """Make the names in the directory survive a power cut, or warn that they may not.

    A directory that may be written but not read cannot be opened: then everything in the system is synced.
    """
    if os.name != "posix":
        return
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        os.sync()
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        let_pass(error)
        warn_once(f"{directory}: cannot be synced ({error.strerror}): a power cut may undo what was written")
    finally:
        with suppress(OSError):
            os.close(descriptor)


def write_figure(figure: Figure, path: Path) -> None:
    """Draw the figure in the format that the file's name ends with, and replace the file."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=120, format=path.suffix.removeprefix("."))
    write_atomically(path, drawn.getvalue())
