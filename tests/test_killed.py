"""What is in a file after its writer was killed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from diode_lut.dataset import DatasetWriter, read_dataset
from diode_lut.files import write_atomically
from tests.programs.killed import HEADER

ROOT = Path(__file__).parent.parent
KILLS = 250

pytestmark = pytest.mark.slow


def after_kills(mode: str, path: Path) -> list[list[int]]:
    command = [sys.executable, "-m", "tests.programs.killed", mode, str(path), str(KILLS)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in answer.splitlines()]


def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """Whenever it is killed, the file is whole and no older than what was written; the next writer tidies up."""
    path = tmp_path / "table.json"
    kills = after_kills("file", path)
    assert len(kills) == KILLS
    assert all(whole and written <= found <= written + 1 for written, found, whole, _ in kills)
    litters = [litter for _, _, _, litter in kills]
    assert max(litters) == 1, "no kill came in the middle of writing, or temporary files pile up"
    assert set(tmp_path.glob("*.json")) == {path}
    write_atomically(path, b"")
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_collection_loses_at_most_the_record_in_hand(tmp_path: Path) -> None:
    """Every record that was reported is there, in order, and the next writer goes on after it."""
    path = tmp_path / "timings.msgpack"
    kills = after_kills("dataset", path)
    assert len(kills) == KILLS
    assert all(whole and written <= found <= written + 1 for written, found, whole, _ in kills)
    assert kills[-1][1] > 1
    assert list(tmp_path.iterdir()) == [path]
    with DatasetWriter(path, HEADER):
        assert len(list(read_dataset(path))) == kills[-1][1]
