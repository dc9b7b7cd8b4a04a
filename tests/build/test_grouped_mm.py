"""Grouped, float8 and int8 matmuls from datasets to a table: for measured numbers of rows, and for those between."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from diode_lut.build import build
from diode_lut.collect.problems import read_problems
from diode_lut.dataset import Dataset, DatasetWriter, Header, Record, Timing, read_dataset
from diode_lut.domain.hardware import Hardware
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import ATEN, Config
from diode_lut.table import Table, write_table

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


FLOAT8 = partial(
    Problem.of, "scaled_mm", n=4096, k=4096, dtype="float8_e4m3fn", layout="nt", variant="row-bfloat16-fast"
)
INTEGER = partial(Problem.of, "int_mm", n=4096, k=4096, dtype="int8", layout="nt")
TALL = Config.parse("triton_mm 64x32x256 g8 s6 w4")
SHORT = Config.parse("triton_mm 16x32x256 g8 s6 w4")


@pytest.mark.parametrize("layer", [FLOAT8, INTEGER], ids=["scaled_mm", "int_mm"])
def test_layers_of_bytes_get_rows_between(tmp_path: Path, layer: Callable[..., Problem]) -> None:
    """So it is for layers in float8 and int8, whatever follows them; for other layers nothing answers."""
    times = {17: {ATEN: 1000.0, SHORT: 500.0, TALL: 800.0}, 64: {ATEN: 1000.0, SHORT: 1200.0, TALL: 500.0}}
    records = [
        Record(layer(m=m), tuple(Timing(config, ns) for config, ns in each.items()), "final")
        for m, each in times.items()
    ]
    table = table_of(tmp_path, *records)
    row = table.lookup(layer(m=32))
    assert row is not None
    assert (row.best.config, row.m, row.epilogue) == (TALL, (18, 63), None)
    assert [table.lookup(problem) for problem in (layer(m=32, n=2048), layer(m=96))] == [None, None]


@pytest.mark.parametrize(
    ("op", "dtype", "variant", "answered"),
    [("mm", "bfloat16", "", True), ("scaled_mm", "float8_e4m3fn", "row-bfloat16-fast", False)],
)
def test_rows_of_bytes_are_for_one_layer(tmp_path: Path, op: str, dtype: str, variant: str, answered: bool) -> None:
    """Between two layers with the same best config nothing answers in float8; in bfloat16 a row does."""
    layer = partial(Problem.of, op, m=32, k=4096, dtype=dtype, layout="nt", variant=variant)
    times = Timing(ATEN, 1000.0), Timing(TALL, 500.0)
    table = table_of(tmp_path, *(Record(layer(n=n), times, "final") for n in (4096, 6144)))
    assert (table.lookup(layer(n=5120)) is not None) is answered


def test_rows_between_may_be_the_best_nowhere(tmp_path: Path) -> None:
    """What gains at both ends answers between them, with its gain at both, even if others gain more at either."""
    safe = Config.parse("triton_mm 64x64x256 g8 s6 w4")
    times = {64: {SHORT: 500.0, TALL: 1200.0, safe: 800.0}, 128: {SHORT: 1200.0, TALL: 500.0, safe: 800.0}}
    records = [
        Record(FLOAT8(m=m), (Timing(ATEN, 1000.0), *(Timing(config, ns) for config, ns in each.items())), "final")
        for m, each in times.items()
    ]
    row = table_of(tmp_path, *records).lookup(FLOAT8(m=96))
    assert row is not None
    assert (row.best.config, row.best.gain_permille, row.problems) == (safe, 1250, 2)


def test_rows_between_are_for_what_was_measured_behind_them(tmp_path: Path) -> None:
    """Where the same layers were measured with an epilogue, each class has rows between of its own."""
    times = {17: {ATEN: 1000.0, SHORT: 500.0, TALL: 800.0}, 64: {ATEN: 1000.0, SHORT: 900.0, TALL: 500.0}}
    records = [
        Record(INTEGER(m=m, epilogue=epilogue), tuple(Timing(config, ns) for config, ns in each.items()), "final")
        for epilogue in ("none", "light")
        for m, each in times.items()
    ]
    table = table_of(tmp_path, *records)
    found = {each: table.lookup(INTEGER(m=32, epilogue=each)) for each in ("none", "light", "heavy")}
    between = dict.fromkeys(("none", "light"), (18, 63))
    assert {row.epilogue: row.m for row in found.values() if row is not None} == between
    assert found["heavy"] is None


def test_nothing_gains_between(tmp_path: Path) -> None:
    """Where no config gains at both ends, nothing answers between them."""
    table = table_of(tmp_path, record(experts(64), 500.0, 1100.0), record(experts(1024), 1200.0, 500.0))
    assert table.lookup(experts(256)) is None
