"""The page on GPUs says what the shipped files give to each of them."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import diode_lut
from diode_lut.decide.catalog import find_hardware, forget_tables, tiers_for
from diode_lut.log import warn_once
from diode_lut.problem import Problem
from tests.documents import ROOT

WHOSE = {"its own": ["{gpu}"], "the H100's": ["h100"], "the H200's": ["h200"], "none": []}  # whose files answer

ROW = re.compile(
    r"^\| (?P<gpu>[^|]+) \| (?P<arch>\w+), (?P<sms>\d+) \| (?P<table>[^|]+) \| (?P<model>[^|]+) \|", re.MULTILINE
)
ROWS = [match.groupdict() for match in ROW.finditer((ROOT / "docs" / "gpus.md").read_text())]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["gpu"])
def test_what_a_gpu_gets(row: dict[str, str]) -> None:
    """A GPU is known by the name in the table, with this architecture and SMs, and is answered as the table says."""
    hardware = find_hardware(row["gpu"], ())
    assert (hardware.arch, hardware.sm_count) == (row["arch"], int(row["sms"]))
    files: dict[str, list[str]] = {"table": [], "model": []}
    for tier in tiers_for(hardware, ()):
        names = [re.split(r"[.-]", source.path.name)[1] for source in tier.sources]
        files["model" if tier.name == "model" else "table"] += names
    for kind, found in files.items():
        said = [gpu.format(gpu=row["gpu"].lower()) for whose in row[kind].split(", then ") for gpu in WHOSE[whose]]
        assert [*dict.fromkeys(found)] == said


def test_the_table_is_there() -> None:
    """All of its rows are looked at."""
    assert len(ROWS) == 16


def test_a_table_of_another_gpu_says_so_once(table_file: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    """Where no table is for a GPU, the first that answers for its kind is named; with a table of its own, none is."""
    problem = Problem.of("mm", 64, 4096, 4096, dtype="bfloat16", layout="nt")
    gh200, h200 = (find_hardware(name, ()) for name in ("GH200", "H200"))
    forget_tables()
    warn_once.cache_clear()
    for _ in range(2):
        diode_lut.select(problem, hardware=gh200)
    (message,) = caplog.messages
    assert message.startswith(f"no table is for {gh200}: ")
    assert "nvidia-h100.json answers, which was measured on another GPU" in message
    caplog.clear()
    diode_lut.select(problem, hardware=h200)
    mine = table_file("mine.json", {"configs": [{"template": "aten"}]}, hardware=gh200._asdict())
    with diode_lut.config.patch(tables=(str(mine),)):
        diode_lut.select(problem, hardware=gh200)
    assert caplog.messages == []
