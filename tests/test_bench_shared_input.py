"""The benchmark of GEMMs that share an input and of prologues: small ones, on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench_shared_input import PROLOGUE_WAYS, SHARED_WAYS, measure, table, tiny_cases
from modelbench.ways import read


@pytest.mark.slow
def test_all_ways_give_the_same_results(tmp_path: Path) -> None:
    """Each case has a time, the number of kernels and a small error for each way; a second run finds all done."""
    out = tmp_path / "shared.jsonl"
    measure(out, 1000, "cpu", tiny=True)
    lines = read(out)
    assert [line["case"] for line in lines] == list(tiny_cases())
    ways = [{*SHARED_WAYS}, {*SHARED_WAYS}, {name for name, way in PROLOGUE_WAYS.items() if not way.options}]
    assert [set(line["ms"]) for line in lines] == ways
    assert all(0 < value < 0.02 for line in lines for value in line["difference"].values())
    measure(out, 1000, "cpu", tiny=True)
    assert read(out) == lines


def test_no_budget_is_no_case(tmp_path: Path) -> None:
    """Without time left no case is started."""
    measure(out := tmp_path / "shared.jsonl", 0, "cpu", tiny=True)
    assert read(out) == []


def test_table_compares_the_best_of_both(tmp_path: Path) -> None:
    """A row has the fastest way of today and the fastest of those that could be, and says which they are."""
    kernels: dict[str, Any] = {"default": 2, "diode_lut": 2, "triton": 2, "fused": 1}
    times = {"default": 0.05, "diode_lut": 0.04, "triton": 0.045, "fused": 0.032}
    header, row, failed = table(
        [{"case": "relu", "ms": times, "kernels": kernels}, {"case": "cast", "error": "OutOfMemoryError: 1 GB"}]
    ).splitlines()
    assert row.split() == ["relu", "0.0400", "0.0320", "1.250", "2", "to", "1", "8.00", "diode_lut;", "fused"]
    assert failed.split(maxsplit=1) == ["cast", "OutOfMemoryError: 1 GB"]
    assert header.startswith("case")
