"""Files that another program writes in place while they are read."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import diode_lut
from diode_lut import files as unfinished
from diode_lut.errors import DiodeLutError, TableError
from diode_lut.model import read_model_hardware
from diode_lut.model.weights import read_model
from diode_lut.table import read_hardware, read_table

TABLES = Path(diode_lut.__file__).parent.parent / "tables"
READERS: dict[Callable[[Path], object], str] = {
    read_table: "nvidia-h200.json",
    read_hardware: "nvidia-h200.json",
    read_model: "nvidia-h200.mlp.safetensors",
    read_model_hardware: "nvidia-h200.mlp.safetensors",
}


@pytest.mark.parametrize("part", [0, 100])
@pytest.mark.parametrize("read", READERS)
def test_a_file_that_is_being_written_is_read_again(
    read: Callable[[Path], object], part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that sees nothing or the first part of it waits for the rest."""
    whole = (TABLES / READERS[read]).read_bytes()
    path = tmp_path / READERS[read]
    path.write_bytes(whole[:part])
    monkeypatch.setattr(unfinished.time, "sleep", lambda _: path.write_bytes(whole))
    read(path)


def test_half_new_rows_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that overwrites a file leaves rows of the old one behind those of the new one, until it is done."""
    whole = (TABLES / "nvidia-h200.json").read_bytes()
    path = tmp_path / "half.json"
    path.write_bytes(whole.replace(b'"op"', b'"xx"', 1))
    monkeypatch.setattr(unfinished.time, "sleep", lambda _: path.write_bytes(whole))
    assert not read_table(path).errors


@pytest.mark.parametrize("read", READERS)
def test_damage_is_reported_after_one_pause(
    read: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that stays as it is is read once."""
    pauses: list[float] = []
    monkeypatch.setattr(unfinished.time, "sleep", pauses.append)
    path = tmp_path / READERS[read]
    path.write_text("{")
    with pytest.raises(DiodeLutError):
        read(path)
    assert pauses == [unfinished._UNFINISHED_PAUSE_S]


def test_a_file_that_stays_empty_is_damaged(tmp_path: Path) -> None:
    """Waiting for its contents ends."""
    path = tmp_path / "x.json"
    path.touch()
    with pytest.raises(TableError, match="is empty"):
        read_table(path)
    shutil.copy(TABLES / "nvidia-h200.json", path)
    assert not read_table(path).errors
