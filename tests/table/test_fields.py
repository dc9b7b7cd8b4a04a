"""Fields that most rows leave out: epilogues, padding, and tunables for some architectures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from diode_lut.cli import main
from diode_lut.problem import Problem
from diode_lut.table import read_table
from diode_lut.templates.config import ATEN

TableFile = Callable[..., Path]

ROW = {"op": "mm", "dtype": "float16", "layout": "nn", "align": 16, "m": [64, 128], "n": [64, 64], "k": [64, 64]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epilogue": "relu"}, '.epilogue: "relu" is not allowed (allowed: none, light, medium, heavy)'),
        ({"epilogue": None}, ".epilogue: null is not allowed (allowed: none, light, medium, heavy)"),
        ({"configs": [{"template": "aten", "pad": 3}]}, ".configs[0].pad: 3 is not allowed (allowed: 1, 2, 4, 8, "),
        ({"configs": [{"template": "cpp_gemm", "pad": 8}]}, ".configs[0].pad: unknown field (known: template, gain"),
        ({"configs": [{"template": "aten", "pad": 1}, {"template": "aten"}]}, ".configs[1]: aten is listed twice"),
    ],
)
def test_wrong_values_of_new_fields_cost_the_row(table_file: TableFile, fields: dict[str, Any], message: str) -> None:
    """A row with such a value is left out, and the message says where, what was found, and what is allowed."""
    row = {**ROW, "configs": [{"template": "aten"}], **fields}
    good = {"op": "bmm", "configs": [{"template": "aten"}]}
    table = read_table(table_file("bad.json", row, good))
    (error,) = table.errors
    assert f"entries[0]{message}" in str(error)
    assert len(table.entries) == 1


def test_a_default_is_not_written(table_file: TableFile) -> None:
    """A tunable with its default may stand in a file, and canonical form leaves it out."""
    path = table_file("pad.json", {**ROW, "configs": [{"template": "aten", "pad": 1}]})
    assert b"pad" not in path.read_bytes()
    assert read_table(path).entries[0].configs == (ATEN,)


def test_rocm_tunables_are_for_amd_gpus(table_file: TableFile) -> None:
    """A table for gfx942 may have them, in one for sm_90 check says that the architecture does not have them."""
    fields = dict(
        zip(("block_m", "block_n", "block_k", "group_m", "num_stages", "num_warps"), (64, 64, 32, 8, 2, 4), strict=True)
    )
    tunables = {"matrix_instr_nonkdim": 32, "waves_per_eu": 2, "kpack": 2}
    row = {**ROW, "configs": [{"template": "triton_mm", **fields, **tunables}]}
    amd = table_file("amd.json", row, hardware={"name": "MI300X", "arch": "gfx942", "sm_count": 304})
    (config,) = read_table(amd).entries[0].configs
    assert str(config) == "triton_mm 64x64x32 g8 s2 w4 mfma32 waves2 kpack2"
    assert CliRunner().invoke(main, ["check", str(amd)]).exit_code == 0
    found = CliRunner().invoke(main, ["check", str(table_file("nvidia.json", row))]).output
    for name in tunables:
        assert f".configs[0].{name}: sm_90 has no such tunable (only gfx... has)" in found


def test_the_row_of_an_epilogue_answers_before_that_of_any(table_file: TableFile) -> None:
    """A row for one class answers for it, a row without one for all others, and an exact row before a range."""
    configs = [[{"template": "aten"}], [{"template": "decompose_k", "k_split": 2}]]
    exact = {**ROW, "m": [64, 64]}
    rows = [{**exact, "configs": configs[0]}, {**exact, "epilogue": "light", "configs": configs[1]}]
    table = read_table(table_file("two.json", *rows))
    one, light = sorted(table.entries, key=lambda entry: entry.epilogue == "light")
    problems = [Problem("mm", "float16", "nn", 16, 1, 64, 64, 64, name) for name in ("none", "light", "medium")]
    assert [table.lookup(problem) for problem in problems] == [one, light, one]
