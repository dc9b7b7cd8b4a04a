"""Layers in float8 and int8 that were not measured get what was not slower for those around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from diode_lut.build import build
from diode_lut.build.layers import LEAST_LAYERS
from diode_lut.dataset import DatasetWriter, Header, Record, Timing, read_dataset
from diode_lut.domain.hardware import Hardware
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import ATEN, Config
from diode_lut.table import Table

FLOAT8 = partial(Problem.of, "scaled_mm", dtype="float8_e4m3fn", layout="nt", variant="row-bfloat16-fast")
INTEGER = partial(Problem.of, "int_mm", dtype="int8", layout="nt")
BFLOAT16 = partial(Problem.of, "mm", dtype="bfloat16", layout="nt")
SAFE = Config.parse("triton_mm 64x32x256 g8 s6 w4")
RISKY = Config.parse("triton_mm 16x32x256 g8 s6 w4")
OWN = Config.parse("triton_mm 16x16x128 g8 s8 w2")
AROUND = [(1024, 4096), (2048, 4096), (3072, 4096), (2560, 8192), (1536, 3072)]
"""Layers whose N is in the octave of 2,048 or next to it, and whose K is in that of 4,096 or next to it."""
MISSED = 3584, 4096

Layer = Callable[..., Problem]


def table_of(tmp_path: Path, layer: Layer, layers: Iterable[tuple[int, int]], ends: Iterable[int] = (16, 64)) -> Table:
    """Of timings where each layer has a best config of its own, and one that gains; another is slower for the last."""
    layers = list(layers)
    records = [
        Record(
            layer(m, n, k),
            (
                Timing(ATEN, 1000.0),
                Timing(SAFE, 900.0),
                Timing(RISKY, 1100.0 if (n, k) == layers[-1] else 600.0),
                Timing(OWN, 500.0 if (n + k) % 3 else 1500.0),
            ),
            "sweep",
        )
        for m in ends
        for n, k in layers
    ]
    with DatasetWriter(tmp_path / "layers.msgpack", Header(Hardware("NVIDIA H200", "sm_90", 132))) as writer:
        for each in records:
            writer.append(each)
    return build([read_dataset(tmp_path / "layers.msgpack")]).table


@pytest.mark.parametrize("layer", [FLOAT8, INTEGER], ids=["scaled_mm", "int_mm"])
def test_a_layer_gets_what_was_safe_around_it(tmp_path: Path, layer: Layer) -> None:
    """That is what was not slower for any of them, at any measured number of rows; its gain is the mean of all."""
    table = table_of(tmp_path, layer, AROUND)
    row = table.lookup(layer(32, *MISSED))
    assert row is not None
    assert (row.m, row.n, row.k) == ((16, 64), (2048, 4095), (4096, 4096))
    assert (row.best.config, row.best.gain_permille, row.problems) == (SAFE, 1111, 10)
    assert table.lookup(layer(16, *MISSED)) == table.lookup(layer(64, *MISSED)) == row
    beyond = (layer(8, *MISSED), layer(65, *MISSED), layer(32, 4096 * 4, 4096), layer(32, 3584, 4112))
    assert [table.lookup(each) for each in beyond] == [None] * 4


@pytest.mark.parametrize(("other", "between"), [((2048, 7168), (2048, 6160)), ((2816, 4096), (2560, 4096))])
def test_rows_of_measured_layers_are_for_one_layer(
    tmp_path: Path, other: tuple[int, int], between: tuple[int, int]
) -> None:
    """In bfloat16 N and K may be between measured ones; in float8 one other layer is too little."""
    layers = [(2048, 4096), other, (1024, 512)]
    assert table_of(tmp_path, BFLOAT16, layers).lookup(BFLOAT16(16, *between)) is not None
    assert table_of(tmp_path, FLOAT8, layers).lookup(FLOAT8(16, *between)) is None


def test_measured_layers_keep_their_answers(tmp_path: Path) -> None:
    """Rows for octaves come after those for what was measured."""
    table = table_of(tmp_path, FLOAT8, AROUND)
    for n, k in AROUND[:-1]:
        row = table.lookup(FLOAT8(16, n, k))
        assert row is not None
        assert row.best.config == (OWN if (n + k) % 3 else RISKY)


def test_too_few_layers_say_nothing_about_others(tmp_path: Path) -> None:
    """Fewer than LEAST_LAYERS give no row, and neither does one number of rows."""
    assert len(AROUND) == LEAST_LAYERS
    assert table_of(tmp_path, FLOAT8, AROUND[1:]).lookup(FLOAT8(32, *MISSED)) is None
    assert table_of(tmp_path, FLOAT8, AROUND, ends=[16]).lookup(FLOAT8(16, *MISSED)) is None


def test_a_number_of_rows_of_few_layers_ends_no_row(tmp_path: Path) -> None:
    """One between two others was measured with two layers only; what was slower there is no answer."""
    with_two = [(m, n, k) for m in (16, 64) for n, k in AROUND] + [(32, n, k) for n, k in AROUND[:2]]
    slow = {(32, *AROUND[0])}
    with DatasetWriter(tmp_path / "rows.msgpack", Header(Hardware("NVIDIA H200", "sm_90", 132))) as writer:
        for each in with_two:
            times = Timing(ATEN, 1000.0), Timing(RISKY, 1200.0 if each in slow else 600.0), Timing(SAFE, 900.0)
            writer.append(Record(FLOAT8(*each), times, "sweep"))
    row = build([read_dataset(tmp_path / "rows.msgpack")]).table.lookup(FLOAT8(48, *MISSED))
    assert row is not None
    assert (row.m, row.best.config) == ((16, 64), SAFE)


def test_other_matmuls_have_models_for_that(tmp_path: Path) -> None:
    """No such rows are made for mm in bfloat16."""
    assert table_of(tmp_path, BFLOAT16, AROUND).lookup(BFLOAT16(32, *MISSED)) is None
