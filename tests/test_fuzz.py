"""Readers that are fed what is almost right, for a short time; tools/fuzz_readers.py does it for longer."""

from pathlib import Path

import pytest
from fuzz_readers import fuzz
from readers import readers

from tests.strategies import share

NAMES = (
    "table",
    "check",
    "dataset",
    "compact-dataset",
    "weights",
    "weights-metadata",
    "problems",
    "solution",
    "receipt",
    "directory",
)
EXCHANGED = (
    "inductor-table",
    "torch-diode-table",
    "torch-diode-dataset",
    "inductor-cache",
    "autotune-log",
    "timings",
    "tunableop",
    "vllm",
)


@pytest.mark.usefixtures("nobody_writes")
@pytest.mark.parametrize("name", [*NAMES, *EXCHANGED])
def test_nothing_but_our_own_errors_comes_out(tmp_path: Path, name: str) -> None:
    """Whatever is in a file, it is read, or refused with an error of our own, soon."""
    assert fuzz(tmp_path, name, readers(tmp_path)[name], share(80_000), seed=1) == []


def test_no_reader_is_left_out(tmp_path: Path) -> None:
    """Every reader that the tool knows, which is one for each format, is in the test above."""
    assert set(readers(tmp_path)) == {*NAMES, *EXCHANGED}
