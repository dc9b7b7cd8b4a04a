"""Tables of version 1 are read, keep their version and answer the same once they are upgraded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from diode_lut.cli import main
from diode_lut.errors import TableError
from diode_lut.problem import Problem
from diode_lut.table import Candidate, Entry, Table, read_table, to_bytes
from diode_lut.table.edit import merge, set_row
from diode_lut.table.faults import table_validator
from diode_lut.table.row import DTYPES_OF_VERSION_1, OPS_OF_VERSION_1, TEMPLATES_OF_VERSION_1
from diode_lut.templates.config import ATEN, Config

TableFile = Callable[..., Path]

ROW = {"op": "mm", "dtype": "float16", "layout": "nn", "align": 16, "m": [64, 128], "n": [64, 64], "k": [64, 64]}
KEY = Entry("mm", "float16", "nn", 16, None, (64, 128), (64, 64), (64, 64), (Candidate(ATEN),))
NEW_FIELDS = [
    {"epilogue": "light"},
    {"configs": [{"template": "aten", "pad": 8}]},
]


def _of_version_1(entry: Entry) -> Entry:
    plain = [
        candidate._replace(config=Config(candidate.config.template, candidate.config.params[: len(required)]))
        for candidate in entry.candidates
        for required in [candidate.config.kernel.required]
        if candidate.config.template in TEMPLATES_OF_VERSION_1
    ]
    distinct = {candidate.config: candidate for candidate in plain}
    return entry._replace(candidates=tuple(distinct.values()), epilogue=None)


@given(data=st.data())
def test_a_table_of_version_1_is_read_written_and_upgraded(
    data: st.DataObject, draw_from: Any, tmp_path_factory: Any
) -> None:
    """It is written byte for byte as it was, and in version 2 all of its rows are the same."""
    drawn = data.draw(draw_from.tables)
    rows = [entry for entry in map(_of_version_1, drawn.entries) if entry.candidates and entry.least_version == 1]
    old = Table(drawn.hardware, rows, drawn.provenance, version=1)
    path = tmp_path_factory.getbasetemp() / "version-1.json"
    path.write_bytes(to_bytes(old))
    table = read_table(path)
    assert (table.errors, table.version, to_bytes(table)) == ((), 1, path.read_bytes())
    path.write_bytes(to_bytes(table.upgraded()))
    upgraded = read_table(path)
    assert (upgraded.errors, upgraded.version, upgraded.entries) == ((), 2, table.entries)
    assert upgraded.schema == "../schemas/table.v2.schema.json"
    assert upgraded == table


def test_version_1_has_the_ops_types_and_templates_of_its_schema() -> None:
    """What is later added to the registries does not become part of version 1."""
    definitions: Any = table_validator(1).schema["$defs"]
    row = definitions["entry"]["properties"]
    assert (tuple(row["op"]["enum"]), tuple(row["dtype"]["enum"])) == (OPS_OF_VERSION_1, DTYPES_OF_VERSION_1)
    assert tuple(definitions["config"]["properties"]["template"]["enum"]) == TEMPLATES_OF_VERSION_1


@pytest.mark.parametrize("fields", NEW_FIELDS)
def test_new_fields_are_unknown_to_version_1(table_file: TableFile, fields: dict[str, Any]) -> None:
    """A row of a version 1 file that has one of them is left out; in version 2 it is read."""
    row = {**ROW, "configs": [{"template": "aten"}], **fields}
    (error,) = read_table(table_file("old.json", row, schema_version=1)).errors
    assert "unknown field (known: " in error.reason
    (entry,) = read_table(table_file("new.json", row)).entries
    assert entry.least_version == 2
    assert {**entry.to_json(), **fields} == entry.to_json()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epilogue": "relu"}, '.epilogue: "relu" is not allowed (allowed: none, light, medium, heavy)'),
        ({"epilogue": None}, ".epilogue: null is not allowed (allowed: none, light, medium, heavy)"),
        ({"configs": [{"template": "aten", "pad": 3}]}, ".configs[0].pad: 3 is not allowed (allowed: 1, 2, 4, 8, "),
        ({"configs": [{"template": "cpp_gemm", "pad": 8}]}, ".configs[0].pad: unknown field (known: template, gain"),
        (
            {"configs": [{"template": "aten", "pad": 1}, {"template": "aten"}]},
            ".configs[1]: aten is listed twice",
        ),
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


def test_fmt_keeps_the_version_unless_it_is_told_to_upgrade(table_file: TableFile) -> None:
    """``fmt`` leaves a version 1 file alone, ``fmt --upgrade`` writes version 2, once."""
    path = table_file("old.json", {**ROW, "configs": [{"template": "aten"}]}, schema_version=1)
    before = path.read_bytes()
    assert CliRunner().invoke(main, ["fmt", str(path)]).output == ""
    assert path.read_bytes() == before
    assert CliRunner().invoke(main, ["fmt", "--upgrade", "--check", str(path)]).exit_code == 1
    assert path.read_bytes() == before
    assert CliRunner().invoke(main, ["fmt", "--upgrade", str(path)]).output == f"{path}\n"
    assert path.read_bytes() == before.replace(b'"schema_version": 1', b'"schema_version": 2').replace(b".v1.", b".v2.")
    assert CliRunner().invoke(main, ["fmt", "--upgrade", str(path)]).output == ""
    assert CliRunner().invoke(main, ["check", str(path)]).exit_code == 0


def test_set_refuses_what_the_version_cannot_hold(table_file: TableFile) -> None:
    """A row with an epilogue cannot be set in a version 1 table, and the message says how to upgrade."""
    table = read_table(table_file("old.json", schema_version=1))
    with pytest.raises(TableError, match=r"version 1 of the format cannot hold this row \(fmt --upgrade"):
        set_row(table, KEY._replace(epilogue="light"))
    assert set_row(table, KEY).table.version == 1


def test_a_merge_has_the_newer_version(table_file: TableFile) -> None:
    """Two version 1 files give version 1; if one side was upgraded, the result is version 2 with its schema."""
    old = read_table(table_file("old.json", {**ROW, "configs": [{"template": "aten"}]}, schema_version=1))
    new = set_row(old.upgraded(), KEY._replace(epilogue="light", m=(64, 64))).table
    assert merge(old, old, old).table.version == 1
    for merged in (merge(old, old, new), merge(old, new, old)):
        assert (merged.table.version, merged.table.schema) == (2, "../schemas/table.v2.schema.json")
        assert merged.table == new


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
