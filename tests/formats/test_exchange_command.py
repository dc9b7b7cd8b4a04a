"""The import and export commands."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from diode_lut.dataset import read_dataset
from diode_lut.formats import FORMATS
from diode_lut.table import read_table
from diode_lut.table.lint import check_file
from tests.commands import call

ROW = {"op": "mm", "dtype": "float16", "layout": "nn", "align": 16}
EXACT = {**ROW, "m": [64, 64], "n": [64, 64], "k": [64, 64], "configs": [{"template": "decompose_k", "k_split": 2}]}
RANGE = {**ROW, "m": [1, 512], "configs": [{"template": "aten"}]}
import_, export = partial(call, "import"), partial(call, "export")
pytestmark = pytest.mark.usefixtures("no_tables")


@pytest.fixture
def table(table_file: Callable[..., Path]) -> Path:
    return table_file("t.json", EXACT, RANGE)


def test_a_table_goes_out_and_comes_back(table: Path, tmp_path: Path) -> None:
    """What could not be given is said on standard error; what comes back is a valid table."""
    output, back = tmp_path / "lookup.json", tmp_path / "back.json"
    result = export("inductor-table", table, "-o", output)
    assert (result.exit_code, result.stdout) == (0, f"{output}: {output.stat().st_size} bytes\n")
    assert result.stderr == "  skipped: 1: rows for more than one problem (say which problems: --problems)\n"
    result = import_("inductor-table", output, "-o", back, "--hardware", "NVIDIA H200,sm_90,132")
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{back}: 1 row\n", "")
    assert check_file(back) == []
    assert [str(entry.configs[0]) for entry in read_table(back).entries] == ["decompose_k 2"]


def test_problems_are_answered_from_ranges(table: Path, tmp_path: Path) -> None:
    """A list of problems, as collect takes them, says what to export."""
    problems, output = tmp_path / "p.json", tmp_path / "out.json"
    gemm = {"op": "mm", "B": 1, "M": 128, "N": 64, "K": 64, "dtype": "float16", "layout": "nn"}
    problems.write_text(json.dumps([gemm]), encoding="utf-8")
    assert export("inductor-table", table, "-o", output, "--problems", problems).exit_code == 0
    ((row,),) = json.loads(output.read_bytes()).values()
    assert row == {"template_id": "aten::mm"}


def test_timings_become_a_dataset(tmp_path: Path) -> None:
    """It is written once: a second import into the same file would count everything twice."""
    given, output, back = tmp_path / "t.csv", tmp_path / "d.msgpack", tmp_path / "t.json"
    given.write_text("op,layout,m,n,k,config,time_us\nmm,nn,64,32,16,aten,500\n", encoding="utf-8")
    arguments = ("timings", given, "-o", output, "--hardware", "NVIDIA H200,sm_90,132", "--dtype", "float16")
    result = import_(*arguments)
    assert (result.exit_code, result.stdout) == (0, f"{output}: 1 timing of 1 problem\n")
    assert len(list(read_dataset(output))) == 1
    again = import_(*arguments)
    assert (again.exit_code, "exists already" in again.stderr) == (1, True)
    assert export("timings", output, "-o", back).exit_code == 0
    assert [(row["config"], row["time_ns"]) for row in json.loads(back.read_bytes())] == [("aten", 500_000)]


def test_nothing_taken_is_an_error_that_says_why(tmp_path: Path) -> None:
    """An empty table would hide that none of it could be taken."""
    path, output = tmp_path / "lookup.json", tmp_path / "out.json"
    path.write_text('{"nonsense": [{"template_id": "aten::mm"}]}', encoding="utf-8")
    result = import_("inductor-table", path, "-o", output, "--hardware", "NVIDIA H200,sm_90,132")
    assert (result.exit_code, output.exists()) == (1, False)
    assert result.stderr.splitlines() == [
        "  skipped: 1: keys that are not Inductor's",
        "error: nothing in it could be imported",
    ]


def test_help_names_every_format() -> None:
    """People need not know the formats' names."""
    for command in (import_, export):
        text = command("--help").stdout
        assert all(name in text for name, each in FORMATS.items() if each.write or command is import_)
