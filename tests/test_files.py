"""Files are replaced as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from diode_lut.files import write_atomically


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
    """The system's error is about the path that was given, not about a temporary file that nobody knows."""
    (tmp_path / "file").touch()
    path = tmp_path / parent / "table.json"
    with pytest.raises((FileNotFoundError, NotADirectoryError), match=f" directory: '{path}'$"):
        write_atomically(path, b"new")
