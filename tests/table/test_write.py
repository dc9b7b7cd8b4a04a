"""The canonical form."""

import json
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diode_lut.files import schemas_directory
from diode_lut.hardware import Hardware
from diode_lut.table import Candidate, Entry, Table, read_table, to_bytes, write_table
from diode_lut.templates.config import ATEN, Config
from tests.commands import call
from tests.distill import synthetic
from tests.strategies import share

Save = Callable[[str | bytes], Path]


def test_a_table_is_written_as_documented(good: str) -> None:
    """Top-level keys, heads of rows and configs each have a line of their own; text stays as it is."""
    gemm = Candidate(Config("triton_mm", (128, 128, 64, 8, 4, 8)), 1063)
    aten = Candidate(ATEN)
    note = "von Hand: für jedes bmm, das oben fehlt"
    table = Table(
        Hardware("NVIDIA H200", "sm_90", 132),
        [
            Entry("bmm", "float16", None, None, None, None, None, None, (aten,), None, note),
            Entry("addmm", "bfloat16", "nt", 16, None, (513, 1024), (3073, 4096), (769, 1024), (gemm, aten), 9),
        ],
        {"torch": "2.11.0", "datasets": ["sha256:00"], "diode_lut": "0.1.0"},
    )
    assert to_bytes(table).decode() == good


def test_an_empty_table_is_valid_and_canonical(save: Save) -> None:
    """A table without rows can be written and read back."""
    table = Table(Hardware("GPU", "sm_90", 1), [])
    assert to_bytes(table).endswith(b'"provenance": {},\n"entries": [\n]\n}\n')
    assert read_table(save(to_bytes(table))) == table


@given(data=st.data())
def test_what_is_written_is_read_back(data: st.DataObject, draw_from: Any, tmp_path_factory: Any) -> None:
    """Any table comes back equal from its file, whose form is not changed by writing it once more."""
    table = data.draw(draw_from.tables)
    path = tmp_path_factory.getbasetemp() / "round_trip.json"
    write_table(table, path)
    again = read_table(path)
    assert again.errors == ()
    assert again == table
    assert sorted(again.entries, key=repr) == sorted(table.entries, key=repr)
    assert (again.hardware, again.provenance, again.digest) == (table.hardware, table.provenance, table.digest)
    assert to_bytes(again) == path.read_bytes()


@given(data=st.data())
def test_the_order_of_rows_does_not_show(data: st.DataObject, draw_from: Any) -> None:
    """The same rows give the same bytes, in whatever order they come."""
    table = data.draw(draw_from.tables)
    shuffled = random.Random(data.draw(st.integers())).sample(table.entries, len(table.entries))
    assert to_bytes(Table(table.hardware, shuffled, table.provenance)) == to_bytes(table)


def test_rows_are_sorted_from_narrow_to_wide(save: Save) -> None:
    """Exact sizes come before ranges from the same size, these before larger sizes, and what is left out comes last."""
    sizes = [(4, 4), (4, 9), (5, 5), None]
    rows = [Entry(op, None, None, None, None, m, None, None, (Candidate(ATEN),)) for op in ("mm", None) for m in sizes]
    path = save(to_bytes(Table(Hardware("GPU", "sm_90", 1), reversed(rows))))
    assert read_table(path).entries == tuple(rows)


def test_schema_and_version_survive_an_edit(save: Save, good: str) -> None:
    """What ``$schema`` says is kept, because a table elsewhere needs another path."""
    path = save(good.replace("../schemas/", "/opt/schemas/"))
    assert b'"$schema": "/opt/schemas/table.v2.schema.json"' in to_bytes(read_table(path))


def _shuffled(value: Any, draw: random.Random) -> Any:
    """The same JSON with the fields of objects in another order."""
    if isinstance(value, dict):
        return {name: _shuffled(value[name], draw) for name in draw.sample(list(value), len(value))}
    return [_shuffled(inner, draw) for inner in value] if isinstance(value, list) else value


@given(data=st.data())
def test_any_form_becomes_the_canonical_one(data: st.DataObject, draw_from: Any, tmp_path_factory: Any) -> None:
    """However fields and rows are ordered, indented and escaped, what is read is the same table, written alike."""
    table = data.draw(draw_from.tables)
    written = to_bytes(table)
    draw = random.Random(data.draw(st.integers()))
    document = _shuffled(orjson.loads(written), draw)
    draw.shuffle(document["entries"])
    path = tmp_path_factory.getbasetemp() / "form.json"
    path.write_text(json.dumps(document, indent=data.draw(st.sampled_from([None, 0, 3, "\t"]))), encoding="utf-8")
    again = read_table(path)
    assert again == table
    assert to_bytes(again) == written


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
@settings(max_examples=share(20))
@given(data=st.data())
def test_jq_passes_a_table_through_unchanged(data: st.DataObject, draw_from: Any, tmp_path_factory: Any) -> None:
    """What jq makes of a file is the same table, and formatting that restores the file."""
    table = data.draw(draw_from.tables)
    path = tmp_path_factory.getbasetemp() / "jq.json"
    written = to_bytes(table)
    path.write_bytes(subprocess.run(["jq", "."], input=written, capture_output=True, check=True).stdout)
    assert orjson.loads(path.read_bytes()) == orjson.loads(written)
    again = read_table(path)
    assert again == table
    assert to_bytes(again) == written


def test_the_schema_is_found_or_named(tmp_path: Path) -> None:
    """A new table says where its schema is, seen from its file; where it is not there, what the schema is called."""
    dataset = synthetic.write(tmp_path / "d.msgpack", 3)
    schema = tmp_path / "schemas" / "table.v2.schema.json"
    schema.parent.mkdir()
    schema.symlink_to(schemas_directory() / schema.name)
    (tmp_path / "tables").mkdir()
    for path, expected in (("tables/x.json", f"../schemas/{schema.name}"), ("x.json", "urn:diode-lut:table:v2")):
        assert call("build", dataset, "-o", tmp_path / path).exit_code == 0
        assert json.loads((tmp_path / path).read_bytes())["$schema"] == expected
        assert call("check", tmp_path / path).exit_code == 0
    assert json.loads(schema.read_bytes())["$id"] == "urn:diode-lut:table:v2"
