"""Who may read a file after it was replaced."""

import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from diode_lut.files import write_atomically

ACL, DEFAULT_ACL = "system.posix_acl_access", "system.posix_acl_default"
OWNER, USER, GROUP, MASK, OTHER = 1, 2, 4, 16, 32
NOBODY = 0xFFFFFFFF

ROOT_ONLY = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root may give files away")


def acl(user: int, group: int, mask: int, other: int) -> bytes:
    """An ACL that gives user 1234 these rights, as Linux stores it; the owner may read and write."""
    entries = [(OWNER, 6, NOBODY), (USER, user, 1234), (GROUP, group, NOBODY), (MASK, mask, NOBODY)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *each) for each in (*entries, (OTHER, other, NOBODY)))


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that others may enter, unlike pytest's, on a file system that has ACLs."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        (path / "file").write_bytes(b"old")
        try:
            os.setxattr(path / "file", ACL, acl(6, 0, 6, 0))
        except (OSError, AttributeError):
            pytest.skip("there are no ACLs here")
        yield path


def attributes(path: Path) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path)}


def test_acl_and_attributes_stay(directory: Path) -> None:
    """A file that is replaced keeps its ACL, its mode, and what users noted in extended attributes."""
    path = directory / "file"
    os.setxattr(path, "user.origin", b"measured")
    before, mode = attributes(path), path.stat().st_mode
    write_atomically(path, b"new")
    assert (path.read_bytes(), attributes(path), path.stat().st_mode) == (b"new", before, mode)


def test_what_the_directory_passes_on_is_not_added(directory: Path) -> None:
    """A file without an ACL has none after it was replaced, also where new files would inherit one."""
    path = directory / "plain"
    path.write_bytes(b"old")
    path.chmod(0o640)
    os.setxattr(directory, DEFAULT_ACL, acl(7, 7, 7, 7))
    write_atomically(path, b"new")
    assert (attributes(path), path.stat().st_mode & 0o777) == ({}, 0o640)


WATCH = """
import os, sys
from pathlib import Path
import diode_lut.files
from diode_lut.files import write_atomically

def allowed(path):
    child = os.fork()
    if not child:
        os.setgroups([]); os.setgid(2345); os.setuid(4321)
        try: path.open("rb").close()
        except OSError: os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0

def watch(event, arguments):
    if event in ("os.chown", "os.chmod", "os.setxattr", "os.removexattr", "os.rename") and not busy:
        busy.append(1)
        print(event, [allowed(each) for each in path.parent.iterdir() if each != path]) ; busy.clear()

path, busy = Path(sys.argv[1]), []
sys.addaudithook(watch)
write_atomically(path, b"new")
print("end", [allowed(path)])
"""


@ROOT_ONLY
def test_at_no_moment_the_new_file_is_more_open(directory: Path) -> None:
    """Before each change of rights, a member of the group that the ACL keeps out may not read the temporary file."""
    path = directory / "file"
    os.chown(path, 0, 2345)
    answer = subprocess.run([sys.executable, "-c", WATCH, path], capture_output=True, text=True, check=True).stdout
    steps = answer.splitlines()
    assert {"os.setxattr [False]", "os.chmod [False]", "os.rename [False]", "end [False]"} <= set(steps)
    assert all(step.endswith("[False]") for step in steps)


AS_ANOTHER = (
    "import os, sys; from pathlib import Path; from diode_lut.files import write_atomically\n"
    "os.setgroups([]); os.setgid(5555); os.setuid(4321)\n"
    "write_atomically(Path(sys.argv[1]), b'new')"
)


@ROOT_ONLY
@pytest.mark.parametrize("mode", [0o640, 0o664, 0o604, 0o666])
def test_a_file_whose_group_cannot_be_kept_is_refused(directory: Path, mode: int) -> None:
    """Where the new file would have another group, the old one stays, and nothing is left beside it."""
    path = directory / "plain"
    path.write_bytes(b"old")
    path.chmod(mode)
    refuses(path)
    assert (path.read_bytes(), path.stat().st_gid, path.stat().st_mode & 0o777) == (b"old", 2345, mode)
    assert {each.name for each in directory.iterdir()} == {"file", "plain"}


@ROOT_ONLY
def test_a_file_whose_acl_cannot_be_kept_is_refused(directory: Path) -> None:
    """The same holds for an ACL."""
    os.setxattr(directory / "file", ACL, acl(0, 4, 4, 4))
    before = attributes(directory / "file")
    refuses(directory / "file")
    assert attributes(directory / "file") == before


def refuses(path: Path) -> None:
    """Somebody who is not in the file's group cannot replace it, and is told why."""
    os.chown(path, 1234, 2345)
    path.parent.chmod(0o777)
    done = subprocess.run([sys.executable, "-c", AS_ANOTHER, path], capture_output=True, text=True)
    assert done.returncode == 1
    assert (
        "its group, ACL and attributes cannot be kept (Operation not permitted): write it as its owner" in done.stderr
    )
    assert done.stderr.endswith(f"'{path}'\n")


@ROOT_ONLY
def test_a_directory_that_cannot_be_read_can_be_written(directory: Path) -> None:
    """Where names may be added but not listed, writing and appending succeed, and no temporary file is left."""
    code = (
        "import os, sys; from pathlib import Path; from diode_lut.files import write_atomically, open_to_append\n"
        "from diode_lut.files import alone_in\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "write_atomically(Path(sys.argv[1]) / 'table', b'new')\n"
        "with alone_in(Path(sys.argv[1])): open_to_append(Path(sys.argv[1]) / 'timings').close()"
    )
    inner = directory / "inner"
    inner.mkdir(mode=0o300)
    os.chown(inner, 65534, 65534)
    subprocess.run([sys.executable, "-c", code, inner], check=True)
    assert {path.name: path.read_bytes() for path in inner.iterdir()} == {"table": b"new", "timings": b""}
