"""Reading and writing files: within limits, whole or not at all, and one writer at a time where there are locks."""

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
from diode_lut.log import warn_once

if TYPE_CHECKING:
    from matplotlib.figure import Figure

if sys.platform != "win32":
    import fcntl
    import grp
    import pwd

_PACKAGE = Path(__file__).resolve().parent


def _directory(name: str) -> Path:
    """Return a directory inside the installed package, or next to it in a checkout."""
    installed = _PACKAGE / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


tables_directory, schemas_directory, documents_directory = (
    partial(_directory, name) for name in ("tables", "schemas", "docs")
)


def own_directory() -> Path | None:
    """Return the directory of the user's own configuration, ``$XDG_CONFIG_HOME/diode_lut``. None without a home."""
    config = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(config):  # noqa: PTH117 (these raise nothing)
        config = os.path.expanduser("~/.config")  # noqa: PTH111
    return Path(config, "diode_lut") if os.path.isabs(config) else None  # noqa: PTH117


def own_tables_directory() -> Path | None:
    """Return the directory of the user's own tables, which need no name: ``$XDG_CONFIG_HOME/diode_lut/tables``."""
    directory = own_directory()
    return None if directory is None else directory / "tables"


def timings_of(table: Path) -> Path:
    """Return the directory, beside a table, in which ``tune`` keeps its timings."""
    return table.with_suffix(".timings")


_Read = TypeVar("_Read")

_NEVER_WAITING = getattr(os, "O_NONBLOCK", 0)

_UNFINISHED_PAUSE_S, _TRIES = 0.02, 12  # an empty file is waited for a quarter of a second, as long as jq may take


def open_regular(path: Path) -> BufferedReader:
    """Open the file for reading. OSError if it cannot be read, or could block its reader, as a pipe or a device."""
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
    """Read the file. OSError if it cannot be read, or has more than ``limit`` bytes."""
    with open_regular(path) as file:
        data = file.read(min(os.fstat(file.fileno()).st_size, limit) + 1)
        while (more := file.read(1 << 20)) and len(data) <= limit:  # a file that grows
            data += more
    if len(data) > limit:
        allowed = f"{limit >> 20} MiB" if limit >> 20 else f"{limit >> 10} KiB"
        raise OSError(errno.EFBIG, f"too large (allowed: {allowed})", str(path))
    return data


def has_more_values(text: bytes, most: int) -> bool:
    """Return whether a JSON text may hold more than ``most`` values, by its commas and brackets, also in strings."""
    return len(text) > most and text.count(b",") + text.count(b"[") + text.count(b"{") >= most


def read_finished(
    path: Path, read: Callable[[Path], _Read], damaged: Callable[[_Read], bool] = lambda _: False
) -> _Read:
    """Return the result of ``read``, once more if it fails or is ``damaged`` while the file is being written."""
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
    """Return when the file was written, in nanoseconds, and its size in bytes. None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _changes(path: Path, before: tuple[int, int] | None) -> bool:
    """Return whether the file is another after a pause, or still empty."""
    if before is None:
        return False
    time.sleep(_UNFINISHED_PAUSE_S)
    after = _state(path)
    return after is not None and (after != before or not after[1])


def distrust(path: Path) -> str:
    """Return why a file must not be used though it was found, not named. Empty if it may be used.

    The file and its directory must belong to a trusted user, and no other user may write them. A directory may be
    sticky. A group counts as its owner if it has no other members. A symbolic link counts as its target. On Windows,
    with its other permissions, everything is trusted. OSError if there is no such file.
    """
    if sys.platform == "win32":
        return ""
    real = Path(os.path.realpath(path, strict=True))  # unlike ``resolve``, it raises no RuntimeError
    for each in (real, real.parent):
        status = each.stat()
        if status.st_uid not in (0, os.geteuid(), Path(__file__).stat().st_uid):
            return f"{each} belongs to user {status.st_uid} (allowed: you, root, and who owns this program: chown it)"
        sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        by_group = bool(status.st_mode & stat.S_IWGRP) and status.st_gid != 0  # root's group is trusted
        if by_group:
            with suppress(KeyError):  # many systems have a group for each user alone
                owner, group = pwd.getpwuid(status.st_uid).pw_name, grp.getgrgid(status.st_gid)
                by_group = group.gr_name != owner or not set(group.gr_mem) <= {owner}
        if not sticky and (by_group or status.st_mode & stat.S_IWOTH):
            return f"{each} can be written by others (chmod go-w)"
    return ""


_PAUSE_S = 0.005
_ALONE_S, _PATIENCE_S, _GLANCE_S = 2.0, 10.0, 0.1  # for a directory, a change of a file, a look at it
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)  # NFS answers EBADF for files only read


def try_lock(descriptor: int) -> bool | None:
    """Lock the open file until it is closed, if it is free. Return whether it was, or None if there are no locks."""
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


def _is_locked_within(descriptor: int, patience_s: float) -> bool:
    for _ in range(round(patience_s / _PAUSE_S)):
        if try_lock(descriptor) is not False:
            return True
        time.sleep(_PAUSE_S)
    return False


@contextmanager
def alone_in(path: Path) -> Iterator[bool]:
    """Let one process at a time run such a block for a directory.

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
            alone = _is_locked_within(descriptor, _ALONE_S)
        except OSError:  # no locks there
            alone = True
        yield alone
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace the file with ``data``, or create it. If it is to be ``durable``, it is on the disk when this returns.

    An existing file keeps its mode, group, ACLs and the user's extended attributes, and if the system allows it its
    owner. A new file gets the mode of the umask. A symbolic link within its directory stays, and its target is
    replaced. OSError leaves the old file unchanged. It is raised as well for links to other directories, for paths that
    are no regular file (directories, devices), and if the group, an ACL or an attribute cannot be kept.
    BlockingIOError names the process that goes on writing the file.
    """
    with replacing(path, durable=durable) as replace:
        replace(data)


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Callable[[bytes], None]]:
    """Yield the function to write the file as ``write_atomically`` does. Other writers of an existing file wait."""
    held = None
    with _naming(path):
        target = _target(path)
        with suppress(FileNotFoundError, PermissionError):
            if os.name == "posix":
                mode = "r+b" if os.access(target, os.W_OK) else "rb"  # NFS locks only files that are open for writing
                held = _locked(target, mode, _PATIENCE_S if durable else _GLANCE_S)
    try:
        yield partial(_write, path, target, os.replace, durable)
    finally:
        if held is not None:
            with suppress(OSError):
                held.close()


def require_writable(path: Path) -> None:
    """Raise OSError, before any work is done, if ``write_atomically`` could not write the file. It stays unchanged."""
    with _naming(path), replacing(path):
        temporary, file = _create_beside(_target(path), _PRIVATE)
        try:
            file.close()
        finally:
            temporary.unlink()


def open_to_append(path: Path, beginning: bytes = b"") -> FileIO:
    """Open the file, locked until it is closed. Writes go to its end.

    If it is missing it is created, with ``beginning`` if the file system has hard links, and empty otherwise.
    BlockingIOError names the process with the lock. Links and devices are handled as by ``write_atomically``.
    """

    def link(new: Path, target: Path) -> None:
        with suppress(OSError):  # another process may just have created the target
            os.link(new, target)

    with _naming(path):
        target = _target(path)
        if beginning and not target.exists():
            _write(path, target, link, True, beginning)
        file = _locked(target, "a+b", _GLANCE_S)
        _sync_directory(target.parent)
        return file


def append(file: FileIO, data: bytes) -> None:
    """Write all of ``data`` at the end of the file, to the disk. OSError leaves the file as it was."""
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
    """Return whether the open file is still at ``path``, and was not removed or replaced."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def write_figure(figure: Figure, path: Path) -> None:
    """Draw the figure in the format of the file's suffix, and replace the file."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=120, format=path.suffix.removeprefix("."))
    write_atomically(path, drawn.getvalue())


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Make system errors name ``path`` instead of the temporary file."""
    try:
        yield
    except OSError as error:
        let_pass(error)
        raise OSError(error.errno, error.strerror, str(path)) from error


def _target(path: Path) -> Path:
    """Return the file to write. OSError if a link leads out of its directory, or the path is no regular file."""
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


def _locked(target: Path, mode: str, patience_s: float) -> FileIO:
    """Open and lock the file at the path. Wait again if another process replaced it meanwhile."""
    while True:
        file = FileIO(target, mode, opener=lambda name, flags: os.open(name, flags | _NEVER_WAITING, _DEFAULT_MODE))
        try:
            if not _is_locked_within(file.fileno(), patience_s):
                holder = _holder(file.fileno())
                raise BlockingIOError(errno.EAGAIN, f"being written by {holder}: wait for it, or stop it")
            if is_at(file, target):
                return file
        except OSError:
            file.close()
            raise
        file.close()


def _holder(descriptor: int) -> str:
    """Return who has the file locked, as Linux lists it: ``1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF``."""
    inode = str(os.fstat(descriptor).st_ino)
    with suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[4].isdecimal() and fields[5].rpartition(":")[2] == inode:
                return f"process {fields[4]}"
    return "another process"


_PRIVATE, _DEFAULT_MODE = 0o600, 0o666  # of the beginning of a replacement, and of a new file, less the umask
_TOKEN_BYTES = 8
_NAME_LENGTH = 50  # characters of a file's name in the name of its temporary file, for no name to become too long


def _write(path: Path, target: Path, put: Callable[[Path, Path], None], durable: bool, data: bytes) -> None:
    """Write a new file beside the target, and ``put`` it there."""
    with _naming(path):
        # Temporary files of killed writers have no lock, if there are locks
        ours = re.compile(rf"\.{re.escape(target.name[:_NAME_LENGTH])}\.[0-9a-f]{{{2 * _TOKEN_BYTES}}}")
        with suppress(OSError):
            for name in filter(ours.fullmatch, os.listdir(target.parent)):  # noqa: PTH208 (names are what matters)
                path_of_killed = target.with_name(name)
                with suppress(OSError), path_of_killed.open("r+b") as stale:
                    if try_lock(stale.fileno()):
                        path_of_killed.unlink()
        temporary, file = _create_beside(target, _PRIVATE if target.exists() else _DEFAULT_MODE)
        try:
            _keep_permissions(target, file.fileno())
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
            put(temporary, target)
        finally:
            with suppress(OSError):  # synced data is there, whatever closing says
                file.close()
            with suppress(OSError):
                temporary.unlink()
        if durable:
            _sync_directory(target.parent)


def _create_beside(target: Path, mode: int) -> tuple[Path, BinaryIO]:
    """Create a file in the same directory, locked while it is open: no other process removes it as stale."""
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


def _keep_permissions(existing: Path, descriptor: int) -> None:
    """Give the new file the permissions of the existing file. OSError if all but the owner cannot be kept."""
    try:
        status = existing.stat()
    except FileNotFoundError:
        return
    try:
        with suppress(PermissionError):
            os.fchown(descriptor, status.st_uid, -1)
        if os.fstat(descriptor).st_gid != status.st_gid:
            os.fchown(descriptor, -1, status.st_gid)
        if sys.platform == "linux":
            for name in _attributes(descriptor):  # inherited from the directory
                os.removexattr(descriptor, name)
            for name in _attributes(existing):
                os.setxattr(descriptor, name, os.getxattr(existing, name))
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
    except OSError as error:
        let_pass(error)
        reason = f"its group, ACL and attributes cannot be kept ({error.strerror}): write it as its owner, or remove it"
        raise OSError(error.errno, reason) from error


def _attributes(file: Path | int) -> list[str]:
    """Return the names of ACLs and of the user's attributes. The system's other attributes belong to one inode."""
    assert sys.platform == "linux"
    try:
        names = os.listxattr(file)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            return []
        raise
    return [name for name in names if name.startswith("user.") or (name.startswith("system.") and "acl" in name)]


def _sync_directory(directory: Path) -> None:
    """Make the names in the directory survive a power cut, or warn."""
    if os.name != "posix":
        return
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        let_pass(error)
        warn_once(f"{directory}: cannot be synced ({error.strerror}): a power cut may undo what was written")
