"""Attention from datasets to a table, and what its answers are worth: gains are over Inductor's own config."""

from __future__ import annotations

from pathlib import Path

from diode_lut.build import build
from diode_lut.collect.problems import read_problems
from diode_lut.dataset import Dataset, DatasetWriter, Header, Record, Timing, read_dataset
from diode_lut.domain.hardware import Hardware
from diode_lut.domain.problem import Problem
from diode_lut.evaluate import evaluate
from diode_lut.kernels.config import ATEN, DEFAULT, Config
from diode_lut.selection.tables import TableSource
from diode_lut.table import write_table

H200 = Hardware("NVIDIA H200", "sm_90", 132)
FAST = Config.parse("triton_flex_attention 128x64 s3 w8")
SLOW = Config.parse("triton_flex_attention 64x64 s3 w4")


def attention(length: int, heads: int = 16) -> Problem:
    return Problem.of(
        *("flex_attention", length, length, 64), dtype="bfloat16", layout="nt", variant="causal", b=2, h=heads, g=4
    )


def dataset(tmp_path: Path, *records: Record) -> Dataset:
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.msgpack"
    with DatasetWriter(path, Header(H200, torch="2.13.0")) as writer:
        for record in records:
            writer.append(record)
    return read_dataset(path)


def record(problem: Problem, fast: float, default: float = 1000.0) -> Record:
    times = {DEFAULT: default, FAST: fast, SLOW: 980.0}
    return Record(problem, tuple(Timing(config, ns) for config, ns in times.items()), "final")


def test_rows_gain_over_the_default(tmp_path: Path) -> None:
    """Rows cover measured problems in all sizes, beside those of GEMMs, and say what they gain over the default."""
    gemm = Problem.of("mm", 64, 64, 64, dtype="bfloat16", layout="nt")
    records = [
        *(record(attention(length), 900.0) for length in (1024, 1500)),
        record(attention(1024, heads=64), 1200.0),
        Record(gemm, (Timing(ATEN, 1000.0),), "final"),
    ]
    table = build([dataset(tmp_path, *records)]).table
    row = table.lookup(attention(1200))
    assert row is not None
    assert (row.m, row.n, row.h, row.g, row.v) == ((1024, 1500), (1024, 1500), (16, 16), (4, 4), (64, 64))
    assert (row.best.config, row.best.gain_permille) == (FAST, 1111)
    other = table.lookup(attention(1024, heads=64))
    assert other is not None
    assert [candidate.config for candidate in other.candidates] == [SLOW, DEFAULT]
    assert table.lookup(gemm) is not None
    assert table.lookup(attention(1024, heads=32)) is None


def test_answers_are_evaluated(tmp_path: Path) -> None:
    """A miss counts as the default, and gains are over it, also where the dataset has GEMMs."""
    measured = dataset(tmp_path, record(attention(1024), 800.0), record(attention(4096), 900.0))
    table = build([dataset(tmp_path, record(attention(1024), 800.0))]).table
    found = evaluate(TableSource(table), measured)
    assert {case.problem.m: (case.choice, case.gain) for case in found.cases} == {
        1024: (FAST, 1000 / 800),
        4096: (DEFAULT, 1.0),
    }


def test_table_is_a_problem_file(tmp_path: Path) -> None:
    """Of a table's rows for attention the smallest and the largest problem are measured again."""
    table = build([dataset(tmp_path, *(record(attention(length), 900.0) for length in (1024, 1500)))]).table
    write_table(table, tmp_path / "mine.json")
    assert read_problems(tmp_path / "mine.json") == [attention(1024), attention(1500)]
