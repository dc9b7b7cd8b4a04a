"""Files that the user did not name are used only if no other user can have written them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from diode_lut.decide.catalog import distrusted, find_tables, tiers_for
from diode_lut.files import distrust
from diode_lut.hardware import Hardware
from diode_lut.log import warn_once

H200 = Hardware("NVIDIA H200", "sm_90", 132)
ATEN = {"configs": [{"template": "aten"}]}
ROOT = os.name == "posix" and os.geteuid() == 0

pytestmark = pytest.mark.skipif(os.name != "posix", reason="permissions are others on Windows")


@pytest.fixture
def found(tmp_path: Path) -> Path:
    directory = tmp_path / "found"
    directory.mkdir(mode=0o755)
    path = directory / "t.json"
    path.touch(mode=0o644)
    return path


def test_ones_own_files_are_trusted(found: Path) -> None:
    """There is nothing against a file of the user's own in a directory of the user's own, nor against the shipped."""
    assert distrust(found) == ""
    found.chmod(0o600)
    found.parent.chmod(0o700)
    assert distrust(found) == ""
    (found.parent / "link").symlink_to(found)
    assert distrust(found.parent / "link") == ""


@pytest.mark.parametrize("mode", [0o666, 0o646, 0o602])
def test_a_file_that_others_can_write_is_not(found: Path, mode: int) -> None:
    """The reason names the file and the remedy."""
    found.chmod(mode)
    assert distrust(found) == f"{found} can be written by others (chmod go-w)"
    (found.parent / "link").symlink_to(found)
    assert distrust(found.parent / "link") == f"{found} can be written by others (chmod go-w)"


def test_a_directory_that_others_can_write_is_not_unless_sticky(found: Path) -> None:
    """Who can write the directory can replace the file, except where the directory is sticky."""
    found.parent.chmod(0o777)
    assert distrust(found) == f"{found.parent} can be written by others (chmod go-w)"
    found.parent.chmod(0o1777)
    assert distrust(found) == ""


@pytest.mark.skipif(not ROOT, reason="only root may give files away")
@pytest.mark.parametrize("what", ["file", "directory"])
def test_what_belongs_to_another_is_not(found: Path, what: str) -> None:
    """Nor is a file in another's directory: that user could replace it."""
    path = found if what == "file" else found.parent
    os.chown(path, 4711, -1)
    assert distrust(found).startswith(f"{path} belongs to user 4711 (allowed: you, root")


@pytest.mark.skipif(not ROOT, reason="only root may give files away")
def test_a_group_counts_if_others_are_in_it(found: Path) -> None:
    """The group of root may write a file; one that is not known to be the owner's alone may not."""
    found.chmod(0o664)
    assert distrust(found) == ""
    os.chown(found, -1, 4711)
    assert distrust(found) == f"{found} can be written by others (chmod go-w)"


def test_a_shipped_table_that_others_can_write_is_left_out(
    shipped: Path, table_file: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """It neither answers nor is listed, with one warning; named by the user it is used."""
    shipped.chmod(0o755)
    path = table_file("tables/nvidia-h200.json", ATEN)
    path.chmod(0o666)
    warn_once.cache_clear()
    for _ in range(2):
        assert find_tables(()) == []
        assert not any(tier.sources for tier in tiers_for(H200, ()))
    assert [record.getMessage() for record in caplog.records] == [
        f"table left out: {path} can be written by others (chmod go-w)"
    ]
    assert distrusted() == [f"{path} can be written by others (chmod go-w)"]
    assert [file.path for file in find_tables([str(path)])] == [path]
    assert any(tier.sources for tier in tiers_for(H200, [str(path)]))
