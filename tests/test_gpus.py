"""The page on GPUs says what the shipped files give to each of them."""

from __future__ import annotations

import re

import pytest

from diode_lut.selection.catalog import find_hardware, tiers_for
from tests.documents import ROOT

ROW = re.compile(
    r"^\| (?P<name>[^|]+) \| (?P<arch>\w+), (?P<sms>\d+) \| (?P<gets>its own|the H200's|none) \|", re.MULTILINE
)
ROWS = [match.groupdict() for match in ROW.finditer((ROOT / "docs" / "gpus.md").read_text())]

GETS = {
    ("device", "model"): "its own",
    ("same_arch", "model"): "the H200's",
    (): "none",
}
"""What a GPU gets, by the tiers in which something answers."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_what_a_gpu_gets(row: dict[str, str]) -> None:
    """A GPU is known by the name in the table, with this architecture and SMs, and is answered as the table says."""
    hardware = find_hardware(row["name"], ())
    assert (hardware.arch, hardware.sm_count) == (row["arch"], int(row["sms"]))
    tiers = tuple(tier.name for tier in tiers_for(hardware, ()) if tier.sources)
    assert GETS[tiers] == row["gets"]


def test_the_table_is_there() -> None:
    """All of its rows are looked at."""
    assert len(ROWS) == 15
