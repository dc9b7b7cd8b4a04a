"""The JSON Schema and the reader accept the same files and the same rows."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from diode_lut.errors import TableError
from diode_lut.problem import DOMAINS, GEMMS, GENERATED, ITEMSIZES, MATMULS, MAX_SIZE, OP_SIZES, SIZE_FIELDS
from diode_lut.table import read_table, to_bytes
from diode_lut.table.faults import validator
from diode_lut.table.lint import check_file
from diode_lut.templates.config import TEMPLATES
from tests.mutated import mutate
from tests.strategies import share
from tools import write_schema

pytestmark = pytest.mark.usefixtures("nobody_writes")

SCHEMA: Any = validator().schema

NUMBERS = [0, 1, 2, -1, 1.0, 16.0, 1.5, 64, 96, 4096, 4097, MAX_SIZE, MAX_SIZE + 1, 2.0**31, 1e300, 2**63]
STRINGS = ["", "mm", "aten", "triton_mm", "decompose_k", "nn", "light"]
LISTS = [[], [1], [1, 1], [2, 1], [1, 1.0], [1, 2, 3], [True, 1], [{"template": "aten"}, {"template": "aten"}]]
TIMES = [{"ns": 12345, "m": 1, "n": 1, "k": 1}, {"ns": 12345, "b": 2, "m": 8, "n": 8, "k": 8}]
JUNK = st.sampled_from([None, True, False, *NUMBERS, *STRINGS, *LISTS, *TIMES, {}, {"template": "aten"}]).map(
    copy.deepcopy
)
ROW_NAMES = ["op", "b", "m", "n_align", "epilogue", "note", "problems", "ns", "configs"]
CONFIG_NAMES = ["template", "block_m", "pad", "kpack", "k_split", "gain_permille"]
HEAD_NAMES = ["$schema", "schema_version", "hardware", "provenance", "aliases", "torch", "datasets", "x", ""]
NAMES = st.sampled_from(ROW_NAMES + CONFIG_NAMES) | st.sampled_from(HEAD_NAMES)


@st.composite
def documents(draw: Any, tables: Any) -> Any:
    """A table, parsed, in which up to three values are not what they were."""
    document = orjson.loads(to_bytes(draw(tables)))
    for _ in range(draw(st.integers(0, 3))):
        mutate(draw, document, NAMES, JUNK)
    return document


def _means_something(row: Any) -> bool:
    """The rules that a schema cannot state: ranges in order, no config twice, problems with all that the row names."""
    ordered = all(row[name][0] <= row[name][1] for name in SIZE_FIELDS if name in row)
    configs = [_tunables(config) for config in row["configs"]]
    distinct = all(config not in configs[:number] for number, config in enumerate(configs))
    possible = any(_is_possible(op, row) for op in ([row["op"]] if "op" in row else MATMULS))
    return possible and ordered and distinct and ("n_align" not in row or _may_have_n_align(row))


def _may_have_n_align(row: dict[str, Any]) -> bool:
    """Whether the row is for some, but not all, N with this alignment."""
    low, high = row.get("n", [1, MAX_SIZE])
    if row.get("op") not in GEMMS or "dtype" not in row or low == high:
        return False
    columns = 16 // ITEMSIZES[row["dtype"]]
    return row["n_align"] == 2 or any(n % columns == 0 for n in range(int(low), min(int(high), int(low) + columns) + 1))


def _is_possible(op: str, row: dict[str, Any]) -> bool:
    """Whether problems of this op have the values and sizes that the row names."""
    values = zip(("dtype", "layout", "epilogue", "variant"), DOMAINS[op], strict=True)
    sizes = {name for name in SIZE_FIELDS if name in row} - (set() if op in GENERATED else {"b"})
    possible = sizes <= {*OP_SIZES[op]} and not (op in GENERATED and "align" in row)
    return possible and all(row[name] in allowed for name, allowed in values if name in row)


def _tunables(config: dict[str, Any]) -> dict[str, Any]:
    """The config without its gain, and without tunables that have their defaults."""
    defaults = {each.name: each.default for each in TEMPLATES[config["template"]].parameters}
    return {
        name: value
        for name, value in config.items()
        if name != "gain_permille" and (name == "template" or value != defaults[name])
    }


def _by_schema(document: Any) -> list[bool] | None:
    """Which rows are accepted, or None if the file is not."""
    rows = document.get("entries")
    if not validator().is_valid({**document, "entries": []} if isinstance(rows, list) else document):
        return None
    return [validator("entry").is_valid(row) and _means_something(row) for row in rows]


def _by_reader(path: Path) -> list[bool] | None:
    try:
        table = read_table(path)
    except TableError:
        return None
    skipped = {int(error.where.split("[")[1].split("]")[0]) for error in table.errors}
    return [number not in skipped for number in range(len(table.entries) + len(skipped))]


@settings(max_examples=share(200))
@given(data=st.data())
def test_schema_and_reader_accept_the_same(data: st.DataObject, draw_from: Any, tmp_path_factory: Any) -> None:
    """Of good tables and of almost good ones, both accept the same files and in these the same rows."""
    document = data.draw(documents(draw_from.tables))
    path = tmp_path_factory.getbasetemp() / "schema.json"
    path.write_bytes(orjson.dumps(document))
    assert _by_reader(path) == _by_schema(orjson.loads(path.read_bytes()))


@settings(max_examples=share(100))
@given(data=st.data())
def test_rows_are_decoded_alike_after_other_rows(data: st.DataObject, draw_from: Any, tmp_path_factory: Any) -> None:
    """What a row means does not depend on which rows come before it, although decoding remembers their parts."""
    document = data.draw(documents(draw_from.tables).filter(lambda document: isinstance(document.get("entries"), list)))
    rows = document["entries"] + copy.deepcopy(document["entries"])
    for _ in range(data.draw(st.integers(0, 4)) if rows else 0):
        mutate(data.draw, rows, NAMES, JUNK)
    header = {"schema_version": 2, "hardware": {"name": "GPU", "arch": "sm_90", "sm_count": 1}}
    path = tmp_path_factory.getbasetemp() / "alike.json"
    alone = []
    for row in rows:
        path.write_bytes(orjson.dumps({**header, "entries": [row]}))
        alone += read_table(path).entries
    path.write_bytes(orjson.dumps({**header, "entries": rows}))
    assert list(read_table(path).entries) == alone


@settings(max_examples=share(100))
@given(data=st.data())
def test_check_names_what_the_reader_skips(data: st.DataObject, draw_from: Any, tmp_path_factory: Any) -> None:
    """A file that the reader refuses has an error in check, and so has each row that it skips."""
    path = tmp_path_factory.getbasetemp() / "check-and-read.json"
    path.write_bytes(json.dumps(data.draw(documents(draw_from.tables)), indent=1).encode())
    errors = check_file(path)
    try:
        skipped = read_table(path).errors
    except TableError:
        assert errors
    else:
        named = {error.where.split("]")[0] for error in errors}
        assert all(error.where.split("]")[0] in named for error in skipped)


def test_the_schema_is_valid_itself() -> None:
    """The schema keeps to JSON Schema 2020-12."""
    Draft202012Validator.check_schema(SCHEMA)


def _objects(schema: Any) -> Iterator[Any]:
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for inner in schema.values():
            yield from _objects(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _objects(inner)


def test_objects_are_closed_and_fields_described() -> None:
    """No object takes unknown fields, and each field has a title and a description for editors to show."""
    for schema in _objects(SCHEMA):
        assert schema.get("additionalProperties") is False or schema["title"] == "Config"
        for name, field in schema["properties"].items():
            described = field if field is not True else SCHEMA["$defs"]["config"]["properties"][name]
            if set(described) == {"$ref"}:
                described = SCHEMA["$defs"][described["$ref"].rpartition("/")[2]]
            assert described["title"], name
            assert described["description"].endswith((".", ":", "...", "YYYY-MM-DD", "cpu-avx512")), name


@pytest.mark.parametrize("template", TEMPLATES)
def test_each_template_has_exactly_its_tunables(template: str) -> None:
    """For every template the schema takes all tunables with their allowed values, needs each, and takes no other."""
    config = Draft202012Validator({"$ref": "#/$defs/config", "$defs": SCHEMA["$defs"]})
    good = {"template": template, **{parameter.name: parameter.values[0] for parameter in TEMPLATES[template].required}}
    assert config.is_valid(good)
    assert not config.is_valid({**good, "other": 1})
    for parameter in TEMPLATES[template].parameters:
        without = {name: value for name, value in good.items() if name != parameter.name}
        assert config.is_valid(without) is (parameter.default is not None)
        tried = [*range(70), 96, 127, 128, 129, 255, 256, 257, 512, 4095, 4096, 4097]
        accepted = [value for value in tried if config.is_valid({**good, parameter.name: value})]
        assert accepted == [value for value in tried if value in parameter.values]


def test_the_schema_file_is_what_the_registry_says() -> None:
    """The schema is generated from the types and templates in the code."""
    assert write_schema.PATH.read_text(encoding="utf-8") == write_schema.text(write_schema.table())
