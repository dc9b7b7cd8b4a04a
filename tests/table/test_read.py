"""Reading: bad rows cost themselves, bad files are one clear error, and the way a file is laid out never matters."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import diode_lut.table
from diode_lut.errors import TableError
from diode_lut.hardware import Hardware
from diode_lut.table import read_hardware, read_table, to_bytes
from diode_lut.templates.config import ATEN, Config
from tests.strategies import share

Save = Callable[[str | bytes], Path]


def test_a_good_file_becomes_a_table(good: str, save: Save) -> None:
    """Hardware, provenance and rows are those of the file."""
    path = save(good)
    table = read_table(path)
    assert table.hardware == read_hardware(path) == Hardware("NVIDIA H200", "sm_90", 132)
    assert table.provenance == {"torch": "2.11.0", "datasets": ["sha256:00"], "diode_lut": "0.1.0"}
    assert [entry.op for entry in table.entries] == ["addmm", "bmm"]
    assert table.entries[0].configs == (Config("triton_mm", (128, 128, 64, 8, 4, 8)), ATEN)
    assert table.entries[0].candidates[0].gain_permille == 1063
    assert (table.errors, table.path) == ((), path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty (expected a table, which is a JSON object)"),
        (" \n", "is empty (expected a table, which is a JSON object)"),
        ("{\n1}", ":2:1: not JSON: "),
        (
            "{\n<<<<<<< HEAD\n=======\n>>>>>>> x\n}",
            ":2:1: git left a merge conflict here (`resolve` decides it, with --ours",
        ),
        ("[1]", ":1:1: [1] is not a table (a table is an object)"),
        ("[1, 2, 3]", ":1:1: a list of 3 is not a table (a table is an object)"),
        ("{}", ":1:1: schema_version: is missing, so this is not a table (expected 2)"),
        (b"{\n\xff}", ":2:1: byte 0xff is not UTF-8 (expected a table, which is JSON; `build` makes one of a dataset)"),
        ("[" * 100_000, "not JSON: "),
        ('{"schema_version": true}', "schema_version: expected 2, found true"),
        ('{"schema_version": "1"}', 'schema_version: expected 2, found "1"'),
        ('{"schema_version": 3, "rows": []}', "expected 2, found 3 (written by a newer diode_lut: upgrade)"),
        ('{"schema_version": 2}', "hardware: is missing (required: schema_version, hardware, entries)"),
    ],
)
def test_a_file_that_is_no_table_is_one_error(content: str | bytes, message: str, save: Save) -> None:
    """The error names the file, the line if there is one, what was found and what was expected."""
    path = save(content)
    for read in (read_table, read_hardware):
        with pytest.raises(TableError) as raised:
            read(path)
        assert message in str(raised.value)
        assert str(raised.value).startswith(str(path))
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("before", "after", "line", "where", "reason"),
    [
        ('"sm_count": 132', '"sm_count": 0', 4, "hardware.sm_count", "0 is not an integer from 1 to 2147483647"),
        ('"arch": "sm_90"', '"arch": ""', 4, "hardware.arch", '"" is not a name'),
        ('"arch": "sm_90", ', "", 4, "hardware.arch", "is missing (required: name, arch, sm_count)"),
        ('"aliases": []', '"aliases": ["a", 1]', 4, "hardware.aliases[1]", "1 is not a string"),
        ('"torch"', '"torhc"', 5, "provenance.torhc", "unknown field (known: torch, triton, cuda, driver, "),
        ('"entries": [', '"x y": 1, "entries": [', 6, '"x y"', "unknown field (known: $schema, schema_version, "),
    ],
)
def test_a_bad_header_costs_the_file(
    before: str, after: str, line: int, where: str, reason: str, good: str, save: Save
) -> None:
    """The error has the line and the JSON path of the first fault in the header."""
    path = save(good.replace(before, after))
    for read in (read_table, read_hardware):
        with pytest.raises(TableError) as raised:
            read(path)
        error = raised.value
        assert (error.path, error.line, error.where) == (path, line, where)
        assert error.reason.startswith(reason)


@pytest.mark.parametrize(
    ("before", "after", "line", "where", "reason"),
    [
        ("[513, 1024]", "[1024, 513]", 7, "m", "[1024, 513] ends before it begins (allowed: [lowest, highest])"),
        ("[513, 1024]", "[0, 1024]", 7, "m[0]", "0 is not an integer from 1 to 2147483647"),
        ("[513, 1024]", "[1, true]", 7, "m[1]", "true is not an integer from 1 to 2147483647"),
        ("[513, 1024]", "513", 7, "m", "513 is not [lowest, highest]"),
        ("[513, 1024]", "null", 7, "m", "null is not [lowest, highest]"),
        ('"nt"', '"nx"', 7, "layout", '"nx" is not allowed (allowed: nn, nt, tn, tt)'),
        ('"problems"', '"problem"', 7, "problem", "unknown field (known: op, dtype, "),
        ('"block_m": 128', '"block_m": 96', 8, "configs[0].block_m", "96 is not allowed (allowed: 16, 32, 64, 128, 2"),
        ('"block_m": 128', '"block_m": [128]', 8, "configs[0].block_m", "[128] is not allowed (allowed: 16, 32, 64, "),
        ('"block_m": 128, ', "", 8, "configs[0].block_m", "is missing (required: template, block_m, block_n, "),
        ('"group_m": 8', '"group_m": true', 8, "configs[0].group_m", "true is not an integer from 1 to 64"),
        ('"gain_permille": 1063', '"gain_permille": -1', 8, "configs[0].gain_permille", "-1 is not an integer from 0"),
        ('"gain_permille"', '"gain"', 8, "configs[0].gain", "unknown field (known: template, block_m, "),
        ('_warps": 8', '_warps": 8}, {"template": "aten"', 9, "configs[2]", "aten is listed twice"),
    ],
)
def test_a_bad_row_costs_that_row(
    before: str, after: str, line: int, where: str, reason: str, good: str, save: Save
) -> None:
    """The row is skipped, its error says where it is and what is allowed, and the other rows stay."""
    text = good.replace(before, after, 1)
    assert text != good
    table = read_table(save(text))
    (error,) = table.errors
    assert [entry.op for entry in table.entries] == ["bmm"]
    assert (error.line, error.where) == (line, f"entries[0].{where}")
    assert error.reason.startswith(reason)


def test_a_row_without_configs_is_skipped(good: str, save: Save) -> None:
    """A row needs the field, and at least one config in it; a row that is no object is skipped as well."""
    document = json.loads(good)
    document["entries"] = [{"op": "mm"}, {"op": "mm", "configs": []}, 7, document["entries"][1]]
    table = read_table(save(json.dumps(document)))
    assert [f"{error.where}: {error.reason}" for error in table.errors] == [
        "entries[0].configs: is missing (required: configs)",
        "entries[1].configs: [] is not a list of 1 to 4096",
        'entries[2]: 7 is not {"configs": ...}',
    ]
    assert len(table.entries) == 1


def test_numbers_without_a_fraction_are_integers(good: str, save: Save) -> None:
    """1.0 is an integer to JSON Schema, so it is one here, and is written back as 1."""
    path = save(good.replace("[513, 1024]", "[5.13e2, 1024.0]").replace('"align": 16', '"align": 16.0'))
    assert to_bytes(read_table(path)).decode() == good


@pytest.mark.parametrize("literal", ["true", "false", "null"])
def test_a_word_in_a_note_changes_nothing(literal: str, good: str, save: Save) -> None:
    """A note may hold the words that JSON has for booleans."""
    table = read_table(save(good.replace("von Hand", literal)))
    assert (table.errors, len(table.entries)) == ((), 2)


@pytest.mark.parametrize("deep", ["[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900])
@pytest.mark.parametrize(
    ("before", "line"), [("[513, 1024]", 7), ('"addmm"', 7), ("128", 8), ('"triton_mm"', 8), ("1063", 8)]
)
def test_deep_nesting_is_a_bad_row(deep: str, before: str, line: int, good: str, save: Save) -> None:
    """A value nested as deeply as JSON parsers allow is reported like any other wrong value, on its line."""
    table = read_table(save(good.replace(before, deep, 1)))
    assert [error.line for error in table.errors] == [line]
    assert len(table.entries) == 1


@pytest.mark.parametrize("place", ['"by hand', '"op": "b', '"note": "'])
def test_a_letter_of_another_encoding_is_named(place: str, good: str, save: Save) -> None:
    """A row with a byte that is not UTF-8, in a note or elsewhere, is an error that names its place."""
    text = good.replace('"configs"', '"note": "by hand", "configs"', 1).encode()
    place_of_byte = text.index(place.encode()) + len(place)
    path = save(text[:place_of_byte] + b"\xe9" + text[place_of_byte:])
    with pytest.raises(TableError, match=rf"{path}:\d+:\d+: byte 0xe9 is not UTF-8"):
        read_table(path)


FORK = """
import gc, os
from diode_lut.table import _no_garbage_collection

with _no_garbage_collection():
    if not os.fork():
        os._exit(gc.isenabled())
    print(os.waitstatus_to_exitcode(os.wait()[1]), gc.isenabled())
print(gc.isenabled())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_process_that_is_forked_meanwhile_collects_garbage() -> None:
    """Garbage collection, which is paused while a table is read, goes on in a child of that moment."""
    answer = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True).stdout
    assert answer == "1 False\nTrue\n"


OLD = """
import gc
from diode_lut.table import _no_garbage_collection

with _no_garbage_collection():
    rows = [[]]
print(any(found is rows for found in gc.get_objects(generation=0)), gc.get_freeze_count())
gc.freeze()
frozen = gc.get_freeze_count()
with _no_garbage_collection():
    pass
print(gc.get_freeze_count() == frozen)
"""


def test_the_next_search_for_garbage_does_not_go_through_the_rows() -> None:
    """Loaded rows are old at once, and only the program freezes objects."""
    answer = subprocess.run([sys.executable, "-c", OLD], capture_output=True, text=True, check=True).stdout
    assert answer == "False 0\nTrue\n"


def test_files_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    """A missing file and a directory are named with the system's reason."""
    for read in (read_table, read_hardware):
        with pytest.raises(TableError, match=r"gone\.json: cannot be read: No such file"):
            read(tmp_path / "gone.json")
        with pytest.raises(TableError, match="cannot be read: Is a directory"):
            read(tmp_path)


@pytest.mark.parametrize(("bound", "reason"), [("MAX_ENTRIES", "entries: too many"), ("MAX_BYTES", "too large")])
def test_bounds_are_enforced(bound: str, reason: str, good: str, save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with too many rows or bytes is refused."""
    path = save(good)
    monkeypatch.setattr(diode_lut.table, bound, 1)
    with pytest.raises(TableError, match=reason):
        read_table(path)


def test_what_never_ends_is_refused() -> None:
    """A device is refused as no file, not read without end."""
    with pytest.raises(TableError, match="not a regular file"):
        read_table(Path(os.devnull).with_name("zero"))


def test_hardware_is_read_without_the_rows(good: str, save: Save) -> None:
    """Where the rows come last only the head is parsed, so that its rows may be anything."""
    path = save(good[: good.index("aten")])
    assert read_hardware(path).name == "NVIDIA H200"
    with pytest.raises(TableError, match="not JSON"):
        read_table(path)


def _outcome(path: Path) -> Any:
    try:
        table = read_table(path)
    except TableError as error:
        return str(error)
    return table.entries, [str(error) for error in table.errors], list(map(table.line_of, table.entries))


@pytest.mark.usefixtures("nobody_writes")
@settings(max_examples=share(200))
@given(data=st.data())
def test_divided_rows_mean_what_the_whole_means(data: st.DataObject, good: str, tmp_path_factory: Any) -> None:
    """However a file in canonical form is damaged, decoding it at once or by rows gives what parsing it gives."""
    text = good.replace("\n]\n}\n", ",\n" + good[good.index('{"op": "bmm"') :])
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        length = data.draw(st.integers(0, 3))
        text = text[:at] + data.draw(st.text('{}[]",:\n 1', max_size=3)) + text[at + length :]
    path = tmp_path_factory.getbasetemp() / "divided.json"
    path.write_bytes(text.encode())
    at_once = _outcome(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diode_lut.table, "AT_ONCE", 0)
        assert at_once == _outcome(path)
        patch.setattr(diode_lut.table, "MAX_VALUES", 0)
        assert at_once == _outcome(path)


def test_the_layout_of_a_file_does_not_matter(good: str, save: Save) -> None:
    """The same document on one line, or on very many, is the same table."""
    table = read_table(save(good))
    for indent in (None, 4):
        assert read_table(save(json.dumps(json.loads(good), indent=indent))) == table
    assert read_table(save(orjson.dumps(json.loads(good)))) == table
