"""Files are replaced as a whole or not at all."""

import errno
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from diode_lut.files import append, open_to_append, replacing, require_writable, try_lock, write_atomically

LOCKS = pytest.mark.skipif(sys.platform == "win32", reason="there are no locks")
if sys.platform != "win32":
    import fcntl

    FLOCK = fcntl.flock


def test_a_new_file_has_the_usual_mode(tmp_path: Path) -> None:
    """A file that was not there is created with the permissions that ``open`` would give it."""
    write_atomically(tmp_path / "new", b"data")
    (tmp_path / "other").write_bytes(b"")
    assert (tmp_path / "new").read_bytes() == b"data"
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_an_existing_file_keeps_its_mode(tmp_path: Path) -> None:
    """The content is replaced, the permissions are not, and nothing else stays in the directory."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write_atomically(path, b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o640)
    assert list(tmp_path.iterdir()) == [path]


def test_readers_of_the_old_file_keep_it(tmp_path: Path) -> None:
    """A file that is open while it is replaced is read to its end unchanged."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with path.open("rb") as file:
        write_atomically(path, b"new")
        assert file.read() == b"old"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """Writing through a symbolic link replaces the file that it points to."""
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("file")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_failure_leaves_everything_as_it_was(tmp_path: Path) -> None:
    """If the file cannot be replaced, it is as before and no temporary file is left."""
    (tmp_path / "directory").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "directory", b"new")
    assert os.listdir(tmp_path) == ["directory"]  # noqa: PTH208 (names are what matters)


@pytest.mark.parametrize("parent", ["gone", "file"])
def test_an_error_names_the_file_that_was_wanted(tmp_path: Path, parent: str) -> None:
    """The system's error is about the path that was given, not about a temporary file that the user does not know."""
    (tmp_path / "file").touch()
    path = tmp_path / parent / "table.json"
    with pytest.raises((FileNotFoundError, NotADirectoryError), match=f" directory: '{path}'$"):
        write_atomically(path, b"new")


def test_permissions_are_those_of_the_umask(tmp_path: Path) -> None:
    """A new file is as private as the umask says; one that was private is so again before anything is written."""
    before = os.umask(0o077)
    try:
        write_atomically(tmp_path / "new", b"data")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root may give files away")
def test_an_existing_file_keeps_its_owner(tmp_path: Path) -> None:
    """A file that root replaces still belongs to whom it belonged to."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    os.chown(path, 1234, 2345)
    path.chmod(0o640)
    write_atomically(path, b"new")
    status = path.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (1234, 2345, 0o640)


@pytest.mark.parametrize(
    "write", [lambda path: write_atomically(path, b"new"), open_to_append], ids=["write", "append"]
)
def test_a_link_out_of_the_directory_is_refused(tmp_path: Path, write: Callable[[Path], object]) -> None:
    """What somebody else put there as a link leads nowhere: the message names where it would have led."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "elsewhere").write_bytes(b"old")
    link = tmp_path / "inside" / "link"
    link.symlink_to("../elsewhere")
    with pytest.raises(OSError, match=f"symbolic link out of its directory, to {tmp_path / 'elsewhere'}: name"):
        write(link)
    assert (tmp_path / "elsewhere").read_bytes() == b"old"
    (tmp_path / "way").symlink_to("inside")
    write_atomically(tmp_path / "way" / "file", b"new")
    assert (tmp_path / "inside" / "file").read_bytes() == b"new"


@pytest.mark.parametrize(
    "write", [lambda path: write_atomically(path, b"new"), open_to_append], ids=["write", "append"]
)
def test_links_that_lead_to_each_other_are_refused(tmp_path: Path, write: Callable[[Path], object]) -> None:
    """A circle of links is an OSError, as everything that keeps a file from being written."""
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    with pytest.raises(OSError, match="one"):
        write(tmp_path / "one")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in the file system")
def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    """A device or a pipe that stands where the file should be stays what it is."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        write_atomically(tmp_path / "pipe", b"new")
    assert (tmp_path / "pipe").is_fifo()


def test_what_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    """Nothing is left of the attempt, and a file that is there already stays as it is."""
    (tmp_path / "old").write_bytes(b"old")
    for name in ("old", "new"):
        require_writable(tmp_path / name)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("old", b"old")]
    (tmp_path / "out").symlink_to("/proc/x")
    for name in ("out", "nodir/x", "."):
        with pytest.raises(OSError, match=r"out|nodir|directory"):
            require_writable(tmp_path / name)


def test_what_others_are_writing_stays(tmp_path: Path) -> None:
    """Of the temporary files of one name, those go whose writer is gone; other files are not touched."""
    names = [".file.0123456789abcdef", ".file.fedcba9876543210", ".file.backup", ".other.0123456789abcdef"]
    for name in names:
        (tmp_path / name).touch()
    with (tmp_path / names[1]).open("rb") as held:
        assert try_lock(held.fileno())
        write_atomically(tmp_path / "file", b"new")
    assert {path.name for path in tmp_path.iterdir()} == {"file", *names[1:]}


def nfs4(descriptor: int, operation: int) -> None:
    """As NFSv4 locks: what is locked alone must be open for writing, and what is shared for reading."""
    mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    if mode == (os.O_WRONLY if operation & fcntl.LOCK_SH else os.O_RDONLY):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    FLOCK(descriptor, operation)


def no_locks(descriptor: int, operation: int) -> None:
    """As NFS without its lock daemon."""
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@LOCKS
@pytest.mark.parametrize("flock", [nfs4, no_locks])
def test_network_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flock: Callable[..., None]) -> None:
    """Everything can be written where locks need a file that is open for writing, and where there are none."""
    monkeypatch.setattr(fcntl, "flock", flock)
    path = tmp_path / "file"
    for data in (b"old", b"new"):
        require_writable(path)
        write_atomically(path, data)
        path.chmod(0o444)
    with open_to_append(tmp_path / "timings") as file:
        append(file, b"record")
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"file": b"new", "timings": b"record"}


@LOCKS
def test_locks_of_nfs_keep_others_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None) -> None:
    """A file that is appended to is not replaced there either."""
    monkeypatch.setattr(fcntl, "flock", nfs4)
    with open_to_append(tmp_path / "file"), pytest.raises(BlockingIOError, match="being written by process"):
        write_atomically(tmp_path / "file", b"new")


@LOCKS
def test_without_locks_nothing_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody can tell whether a temporary file has a writer, it stays."""
    monkeypatch.setattr(fcntl, "flock", no_locks)
    other = tmp_path / ".file.0123456789abcdef"
    other.touch()
    write_atomically(tmp_path / "file", b"new")
    assert other.exists()


@LOCKS
def test_a_lock_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system error when the temporary file is locked is the writer's, and the temporary file is gone."""

    def broken(descriptor: int, operation: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", broken)
    with pytest.raises(OSError, match="Input/output error"):
        write_atomically(tmp_path / "file", b"new")
    assert not list(tmp_path.iterdir())


@LOCKS
def test_what_is_read_to_be_replaced_stays_until_then(tmp_path: Path, impatient: None) -> None:
    """A file that is being changed is not replaced by anybody else, nor is that which takes its place."""
    path = tmp_path / "file"
    path.write_bytes(b"0")
    with replacing(path) as save:
        with pytest.raises(BlockingIOError, match=f"being written by process {os.getpid()}"):
            write_atomically(path, b"lost")
        save(path.read_bytes() + b"1")
    with replacing(path), pytest.raises(BlockingIOError):
        require_writable(path)
    assert path.read_bytes() == b"01"


@LOCKS
def test_who_waits_gets_the_new_file(tmp_path: Path) -> None:
    """Threads that each add to what they find lose nothing of the others."""
    path = tmp_path / "file"
    path.touch()

    def add(letter: bytes) -> None:
        for _ in range(10):
            with replacing(path) as save:
                save(path.read_bytes() + letter)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add, (b"a", b"b", b"c", b"d")))
    assert sorted(path.read_bytes()) == sorted(b"abcd" * 10)


@pytest.mark.parametrize("name", ["x" * 250 + ".json", "\N{SNOWMAN}" * 83 + ".json"])
def test_long_names(tmp_path: Path, name: str) -> None:
    """Every name that the system allows can be written, and what a killed writer left of it is removed."""
    write_atomically(tmp_path / name, b"old")
    (tmp_path / f".{name[:50]}.0123456789abcdef").touch()
    write_atomically(tmp_path / name, b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


def test_a_directory_that_cannot_be_synced_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is written, and one warning says that a power cut may undo it."""

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", fsync)
    for data in (b"old", b"new"):
        write_atomically(tmp_path / "file", data)
    assert (tmp_path / "file").read_bytes() == b"new"
    assert caplog.messages == [
        f"{tmp_path}: cannot be synced (Invalid argument): a power cut may undo what was written"
    ]


@pytest.mark.parametrize("existing", [True, False])
def test_whichever_call_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool) -> None:
    """An error means that the file is the old one, no error that it is the new one; nothing else is left."""
    path, failed = tmp_path / "file", 0
    for number in count():
        if existing:
            path.write_bytes(b"old")
        calls = count()

        def failing(real: Callable[..., Any], calls: Iterator[int] = calls, number: int = number) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                if next(calls) == number:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return real(*arguments, **options)

            return call

        with monkeypatch.context() as patch:
            for name in ("open", "stat", "lstat", "fstat", "fchmod", "fsync", "listdir", "replace", "close"):
                patch.setattr(os, name, failing(getattr(os, name)))
            try:
                write_atomically(path, b"new")
                expected = b"new"
            except OSError:
                expected, failed = b"old" if existing else b"", failed + 1
        assert [each.read_bytes() for each in tmp_path.iterdir()] == ([expected] if expected else [])
        path.unlink(missing_ok=True)
        if next(calls) <= number:
            break
    assert failed > 8


def test_many_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Processes and threads that write the same file all succeed, and the last one's data is there, whole."""
    path = tmp_path / "file"
    code = (
        "import sys; from pathlib import Path; from diode_lut.files import write_atomically\n"
        "for _ in range(60): write_atomically(Path(sys.argv[1]), sys.argv[2].encode() * 10_000)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), letter]) for letter in "abc"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            seen.add(path.read_bytes())
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert seen | {path.read_bytes()} <= {letter * 10_000 for letter in (b"a", b"b", b"c")}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="sizes of files cannot be limited")
def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """Where nothing more can be written, replacing and appending fail, and the files are as before."""
    code = (
        "import resource, sys; from pathlib import Path; from diode_lut.files import *\n"
        "replaced, extended = (Path(name) for name in sys.argv[1:])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "with open_to_append(extended) as file:\n"
        "    append(file, b'x' * 900)\n"
        "    for change in (lambda: write_atomically(replaced, b'y' * 1001), lambda: append(file, b'y' * 200)):\n"
        "        try: change()\n"
        "        except OSError as error: print(error.strerror)\n"
        "    append(file, b'z' * 100)"
    )
    (tmp_path / "replaced").write_bytes(b"old")
    command = [sys.executable, "-c", code, str(tmp_path / "replaced"), str(tmp_path / "extended")]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert answer == "File too large\nFile too large\n"
    assert (tmp_path / "replaced").read_bytes() == b"old"
    assert (tmp_path / "extended").read_bytes() == b"x" * 900 + b"z" * 100
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(os.name != "posix", reason="directories cannot be made read-only")
def test_a_directory_that_may_not_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    """Somebody who may not write the directory gets an error that names the file, and nothing has changed."""
    code = (
        "import os, sys; from pathlib import Path; from diode_lut.files import write_atomically\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: write_atomically(Path(sys.argv[1]), b'new')\n"
        "except PermissionError as error: print(error)"
    )
    with tempfile.TemporaryDirectory() as name:  # others may enter it, unlike pytest's
        directory = Path(name)
        (directory / "file").write_bytes(b"old")
        directory.chmod(0o555)
        answer = subprocess.run(
            [sys.executable, "-c", code, directory / "file"], capture_output=True, text=True, check=True
        ).stdout
        assert answer == f"[Errno 13] Permission denied: '{directory / 'file'}'\n"
        assert (directory / "file").read_bytes() == b"old"
        assert len(list(directory.iterdir())) == 1
        directory.chmod(0o755)
