"""Recognising what a file is."""

from pathlib import Path

import pytest

from diode_lut.dataset import is_dataset, read_dataset
from diode_lut.errors import DatasetError


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"\x89PNG\r\n\x1a\n", "not a torch-diode dataset, or damaged"),
        (b"\x1f\x8b\x08\x00", r"not a dataset: it begins with b'\x1f\x8b\x08\x00'"),
        (b"m,n,k\n1,2,3\n", "not a dataset: it begins with b'm,n,k"),
        (b"[1, 2]", "not a dataset: it begins with b'[1, 2]'"),
        (b'{\n"schema_version": 2,\n"entries": []}', "a table, not a dataset"),
        (b"\x82\xb1diode_lut_da", "not a torch-diode dataset, or damaged"),
        (b"\x82\xb1diode_lut_dataset\x01", "damaged: no copy of its header can be read"),
    ],
)
def test_what_is_no_dataset_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    """A file of another kind is an error that says what was found in it."""
    (tmp_path / "d").write_bytes(content)
    with pytest.raises(DatasetError) as error:
        read_dataset(tmp_path / "d")
    assert str(error.value).startswith(f"{tmp_path / 'd'}: ")
    assert says in str(error.value)


def test_a_missing_file_is_an_oserror(tmp_path: Path) -> None:
    """A file that cannot be read at all is the operating system's error."""
    with pytest.raises(FileNotFoundError):
        read_dataset(tmp_path / "d")


@pytest.mark.parametrize("length", [0x80, 0x8F, 0xDE, 0x1234])
def test_a_model_is_no_dataset(length: int) -> None:
    """Whatever the length of its header is, whose bytes may be those that maps in msgpack begin with."""
    header = b"{}".ljust(length)
    assert not is_dataset(length.to_bytes(8, "little") + header)
    assert is_dataset(b"\x81\xa8hardware\x80")
