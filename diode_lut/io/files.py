"""Files: read within limits; written completely or not at all, durably, and never through links to other directories.

Only regular files are read, up to a size, and with a number of JSON values that fits in memory.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedReader, BytesIO, FileIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from diode_lut.domain.errors import let_pass
from diode_lut.io.locks import lock, try_lock
from diode_lut.io.log import warn_once
from diode_lut.io.permissions import PRIVATE, keep_permissions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
