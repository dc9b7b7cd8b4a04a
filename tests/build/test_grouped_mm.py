"""Grouped, float8 and int8 matmuls from datasets to a table: for measured numbers of rows, and which ones between."""

from functools import partial
from pathlib import Path

import pytest

from diode_lut.build import build
from diode_lut.dataset import Dataset, DatasetWriter, Header, Record, Timing, read_dataset
from diode_lut.hardware import Hardware
from diode_lut.measure.problems import read_problems
from diode_lut.problem import Problem
from diode_lut.table import Table, write_table
from diode_lut.templates.config import ATEN, Config

H200 = Hardware("NVIDIA H200", "sm_90", 132)
NARROW = Config.parse("triton_grouped_mm 16x256x128 s3 w4")
WIDE = Config.parse("triton_grouped_mm 64x128x64 s4 w4")


def experts(rows: int, groups: int = 8) -> Problem:
    return Problem.of("grouped_mm", rows, 28672, 4096, dtype="bfloat16", layout="nt", b=groups)


def record(problem: Problem, narrow: float, wide: float) -> Record:
    times = {ATEN: 1000.0, NARROW: narrow, WIDE: wide}
    return Record(problem, tuple(Timing(config, ns) for config, ns in times.items()), "final")


def dataset(path: Path, *records: Record) -> Dataset:
    with DatasetWriter(path, Header(H200, torch="2.13.0")) as writer:
        for each in records:
            writer.append(each)
    return read_dataset(path)


def table_of(tmp_path: Path, *records: Record) -> Table:
    return build([dataset(tmp_path / "grouped.msgpack", *records)]).table


def test_rows_gain_over_the_library(tmp_path: Path) -> None:
    """A row has the number of groups as its batch, says what it gains, and its ends are problems to measure again."""
    table = table_of(tmp_path, record(experts(64), 680.0, 900.0), record(experts(96), 700.0, 900.0))
    row = table.lookup(experts(80))
    assert row is not None
    assert (row.b, row.m, row.n, row.k) == ((8, 8), (64, 96), (28672, 28672), (4096, 4096))
    assert (row.best.config, row.best.gain_permille) == (NARROW, 1449)
    write_table(table, tmp_path / "table.json")
    assert set(read_problems(tmp_path / "table.json")) == {experts(64), experts(96)}


def test_rows_between_get_what_was_not_slower(tmp_path: Path) -> None:
    """Between measured numbers of rows with different winners, what gains at both answers, for these groups only."""
    table = table_of(tmp_path, record(experts(64), 500.0, 800.0), record(experts(1024), 1200.0, 500.0))
    row = table.lookup(experts(256))
    assert row is not None
    assert row.best.config == WIDE
    assert (table.lookup(experts(256, groups=16)), table.lookup(experts(2048))) == (None, None)
    best = [table.lookup(experts(rows)) for rows in (64, 1024)]
    assert [each and each.best.config for each in best] == [NARROW, WIDE]


@pytest.mark.parametrize(
    ("op", "dtype", "variant", "answered"),
    [
        ("mm", "bfloat16", "", True),
        ("scaled_mm", "float8_e4m3fn", "row-bfloat16-fast", False),
        ("int_mm", "int8", "", False),
    ],
)
def test_rows_of_bytes_are_for_one_problem(tmp_path: Path, op: str, dtype: str, variant: str, answered: bool) -> None:
    """Between two problems with the same best config nothing answers in float8 and int8; in bfloat16 a row does."""
    layer = partial(Problem.of, op, n=4096, k=4096, dtype=dtype, layout="nt", variant=variant)
    times = Timing(ATEN, 1000.0), Timing(Config.parse("triton_mm 64x32x256 g8 s6 w4"), 500.0)
    table = table_of(tmp_path, *(Record(layer(m=m), times, "final") for m in (32, 96)))
    assert [table.lookup(layer(m=m)) is not None for m in (32, 64, 96)] == [True, answered, True]


def test_rows_between_may_be_the_best_nowhere(tmp_path: Path) -> None:
    """What gains at both ends answers between them, with its gain at both, even if others gain more at either."""
    safe = Config.parse("triton_grouped_mm 64x64x64 s4 w4")
    records = [
        Record(problem, (*timings, Timing(safe, 800.0)), stage)
        for problem, timings, stage in (record(experts(64), 500.0, 1200.0), record(experts(128), 1200.0, 500.0))
    ]
    row = table_of(tmp_path, *records).lookup(experts(96))
    assert row is not None
    assert (row.best.config, row.best.gain_permille, row.problems) == (safe, 1250, 2)


def test_nothing_gains_between(tmp_path: Path) -> None:
    """Where no config gains at both ends, nothing answers between them."""
    table = table_of(tmp_path, record(experts(64), 500.0, 1100.0), record(experts(1024), 1200.0, 500.0))
    assert table.lookup(experts(256)) is None
