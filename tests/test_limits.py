"""Files that were made to do harm are refused before they do: few bytes can be many objects."""

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import islice, product
from pathlib import Path

import msgpack
import pytest
import zstandard

from diode_lut.dataset import RECORD, DatasetWriter, frame, header_bytes, read_dataset, record_bytes
from diode_lut.errors import DatasetError, DiodeLutError, ExchangeError, TableError
from diode_lut.formats import read
from diode_lut.formats.content import Facts
from diode_lut.table import read_table
from diode_lut.table.faults import Positions
from diode_lut.table.format import MAX_CONFIGS
from diode_lut.table.lint import check_file
from diode_lut.templates.triton_gemm import TRITON_MM
from tests.dataset.test_stream import HEADER, RECORDS

ROOT = Path(__file__).parent.parent
MILLION = 1_000_000
HEAD = '{\n"schema_version": 2,\n"hardware": {"name": "GPU", "arch": "sm_90", "sm_count": 1},\n"entries": [\n'
GOOD = '{"op": "mm", "configs": [\n  {"template": "aten"}\n]}'

MEGABYTES = 200  # how much memory a process may take on top of what it has when all is imported
READ_WITH_LITTLE_MEMORY = f"""
import resource, sys, numpy; from pathlib import Path; import diode_lut.table as read
used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + ({MEGABYTES} << 20),) * 2)
from diode_lut.errors import TableError
for path in sys.argv[1:]:
    try: print(len(read.read_table(Path(path)).entries), flush=True)
    except TableError as error: print('refused:', error, flush=True)
"""
"""Prints the number of rows of each table, or the error."""


def table_of(*rows: str, between: str = ",\n") -> bytes:
    return (HEAD + between.join(rows) + "\n]\n}\n").encode()


MALICIOUS = {
    "rows that are good": lambda: table_of(*[GOOD] * MILLION),
    "rows that are wrong": lambda: table_of(*['{"op": "mx"}'] * MILLION),
    "rows on one line": lambda: table_of(*['{"op":"mm","configs":[{"template":"aten"}]}'] * MILLION, between=","),
    "rows that are empty": lambda: table_of(*["{}"] * MILLION),
    "rows that are lists": lambda: table_of(*["[[], []]"] * MILLION),
    "rows of two kinds": lambda: table_of(*['{"a": 1}', '{"b": {"c": {"d": 1}}}'] * (MILLION // 2)),
    "a row of a million values": lambda: table_of('{"op": ' + "[" + "{}," * MILLION + "{}]}"),
    "a million lists in each other": lambda: b"[" * MILLION,
    "rows that are nested": lambda: table_of(*['{"op": ' + "[" * 900 + "]" * 900 + "}"] * 500),
    "a head of a million values": lambda: HEAD.replace("1}", '1, "aliases": [' + "1," * MILLION + "1]}").encode(),
    "a long text": lambda: table_of(json.dumps({"note": "\U0001f600" + "x" * (4 << 20)}, ensure_ascii=False)),
}


@pytest.mark.slow
def test_malicious_tables_are_refused_in_bounded_memory(tmp_path: Path) -> None:
    """A million rows, values or levels are refused, or come to nothing, within the memory that a good table takes."""
    for name, data in MALICIOUS.items():
        (tmp_path / name).write_bytes(data())
    command = [sys.executable, "-c", READ_WITH_LITTLE_MEMORY, *(str(tmp_path / name) for name in MALICIOUS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    answers = done.stdout.splitlines()
    assert len(answers) == len(MALICIOUS), f"{[*MALICIOUS][len(answers)]}: {done.stderr}"
    for name, answer in zip(MALICIOUS, answers, strict=True):
        assert answer == "0" or answer.startswith("refused: "), name
        assert len(answer) < 1000, name


def test_what_is_too_large_is_not_even_read(tmp_path: Path) -> None:
    """The size of a file is looked at first."""
    with (tmp_path / "t.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TableError, match=r"cannot be read: too large \(allowed: 64 MiB\)"):
        read_table(tmp_path / "t.json")


def test_only_so_many_values_are_parsed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table with more is read whatever wrote it, row by row, up to a limit; another file is refused."""
    monkeypatch.setattr("diode_lut.table.AT_ONCE", 0)
    monkeypatch.setattr("diode_lut.table.MAX_PARSED", 2000)
    rows = [{"op": "mm", "m": [m, m], "configs": [{"template": "aten"}]} for m in range(1, 2001)]
    document = {**json.loads(HEAD + "]}"), "entries": rows}
    path = tmp_path / "t.json"
    for form in ({"indent": 2}, {"indent": 1}, {"separators": (",", ":")}, {"sort_keys": True}):
        path.write_text(json.dumps(document, **form))
        assert len(read_table(path).entries) == 2000
    path.write_text(json.dumps({**document, "entries": {"0": rows}}))
    with pytest.raises(TableError, match="more than 2000 values, and not a table that can be read row by row"):
        read_table(path)
    path.write_text(json.dumps(document))
    monkeypatch.setattr("diode_lut.table.MAX_VALUES", 2000)
    with pytest.raises(TableError, match="more than 2000 values"):
        read_table(path)


def test_a_table_with_hardly_a_good_row_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More wrong rows than anybody makes by mistake cost the file, and the error shows the first."""
    monkeypatch.setattr("diode_lut.table.MAX_WRONG", 3)
    (tmp_path / "t.json").write_bytes(table_of(GOOD, *['{"op": "mx"}'] * 3))
    assert len(read_table(tmp_path / "t.json").errors) == 3
    (tmp_path / "t.json").write_bytes(table_of(GOOD, *['{"op": "mx"}'] * 4))
    with pytest.raises(TableError, match=r'entries\[1\]\.op: "mx" is not allowed .*; and so on: more than 3 rows'):
        read_table(tmp_path / "t.json")


@pytest.mark.slow
def test_a_row_has_only_so_many_configs(tmp_path: Path) -> None:
    """More than the limit cost the row, however it is decoded."""
    names = [parameter.name for parameter in TRITON_MM.parameters]
    tiles = islice(product(*(parameter.values for parameter in TRITON_MM.parameters)), MAX_CONFIGS + 1)
    configs = [{"template": TRITON_MM.name, **dict(zip(names, each, strict=True))} for each in tiles]
    for literal in ("", ', "note": "true"'):
        rows = [f'{{"op": "mm", "configs": {json.dumps(configs[dropped:])}{literal}}}' for dropped in (1, 0)]
        (tmp_path / "t.json").write_bytes(table_of(*rows))
        table = read_table(tmp_path / "t.json")
        assert [str(error).partition("entries")[2] for error in table.errors] == [
            f"[1].configs: a list of {MAX_CONFIGS + 1} is not a list of 1 to {MAX_CONFIGS}"
        ]
        assert len(table.entries) == 1


def test_places_are_found_in_a_file_of_many_lines() -> None:
    """Lines are right in whatever order they are asked for, and are not listed beforehand."""
    positions = Positions(b'{"a":\n\n1,\n"b": 2\n}')
    assert [positions.place((name,)) for name in "abab"] == [(3, 1), (4, 6)] * 2


BOMBS: dict[str, Callable[[], bytes]] = {
    "grows": lambda: zstandard.ZstdCompressor().compress(good_stream() + bytes(64 << 20)),
    "grows with good records": lambda: zstandard.ZstdCompressor().compress(good_stream(500_000)),
    "refers far back": lambda: in_window(27, good_stream()),
    "claims 4 GB": lambda: good_stream() + frame(RECORD, b"\xdd\xff\xff\xff\xff"),
    "many empty maps": lambda: good_stream() + frame(RECORD, b"\xdd\x7f\xff\xff\xff" + b"\x80" * (1 << 20)),
    "nested": lambda: good_stream() + frame(RECORD, b"\x91" * (1 << 20)),
    "nested to the last level": lambda: good_stream() + frame(RECORD, b"\x91" * 500 + b"\xc0"),
    "an extension type": lambda: good_stream() + frame(RECORD, msgpack.packb(msgpack.ExtType(5, b"code"))),
    "a time stamp": lambda: good_stream() + frame(RECORD, msgpack.packb(msgpack.Timestamp(1))),
    "no UTF-8": lambda: good_stream() + frame(RECORD, b"\xa2\xff\xfe"),
}


def in_window(bits: int, data: bytes) -> bytes:
    """A frame that does not say how much is in it, but that it takes so much memory."""
    parameters = zstandard.ZstdCompressionParameters(window_log=bits)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return frame.compress(data) + frame.flush()


def good_stream(copies: int = 1) -> bytes:
    return header_bytes(HEADER) + record_bytes(RECORDS[0]) * copies


@pytest.mark.parametrize("name", BOMBS)
def test_a_dataset_that_grows_is_refused(tmp_path: Path, name: str) -> None:
    """What claims or becomes more than a dataset can be is damaged, and so is what is no plain value."""
    (tmp_path / "d").write_bytes(BOMBS[name]())
    with pytest.raises(DatasetError) as error:
        for _ in read_dataset(tmp_path / "d"):
            pass
    assert "header" not in str(error.value)


@pytest.mark.parametrize("value", ["1" * 5000, "9" * 400, "1e400", "-1", "NaN", '"x"', "[]", "null"])
def test_times_that_are_none_cost_themselves(tmp_path: Path, value: str) -> None:
    """A number that is too large to be one, or no number, is a failed timing or no file of that format."""
    fields = {**RECORDS[0].problem._asdict(), "config": "aten"}
    (tmp_path / "f").write_text(f'[{json.dumps(fields)[:-1]}, "time_ms": {value}}}]')
    try:
        content, _ = read("timings", tmp_path / "f", Facts(HEADER.hardware, "mm", "float16"))
        assert isinstance(content, tuple)
        records = list(content.records)
    except ExchangeError:
        return
    assert [timing.reason for record in records for timing in record.timings] == ["invalid_time"]


@pytest.mark.parametrize("key", ["[" * 5000, "(" * 5000, "-" * 5000 + "1", "x", "__import__('os')", "1" * 5000])
def test_keys_are_read_and_never_run(tmp_path: Path, key: str) -> None:
    """Shapes in keys are plain values: nothing else is taken for one, however deep it is."""
    documents = {
        "timings": [{"op": "mm", "m": 1, "n": 1, "k": 1, "strides_a": key, "strides_b": key, "time_us": 1}],
        "torch-diode-table": {"hardware": {"H200": {"operation": {"mm": {"solution": {key: {"config": [{}]}}}}}}},
        "inductor-table": {f"((torch.float16, {key})))+mm": [{"template_id": "aten::mm"}]},
    }
    for name, document in documents.items():
        (tmp_path / name).write_text(json.dumps(document))
        try:
            content, _ = read(name, tmp_path / name, Facts(HEADER.hardware, "mm", "float16"))
            assert not (list(content.records) if isinstance(content, tuple) else content.entries)
        except DiodeLutError:
            continue


def test_a_field_written_twice_among_many_is_found(tmp_path: Path) -> None:
    """An object with five thousand names is no work."""
    names = ", ".join(f'"x{number}": 1' for number in range(5_000))
    (tmp_path / "t.json").write_bytes(table_of(f'{{{names}, "op": "mm", "op": "mm"}}'))
    assert any("written twice" in str(error) for error in check_file(tmp_path / "t.json"))


def test_a_dataset_may_be_replaced_while_it_is_read(tmp_path: Path) -> None:
    """Whoever reads goes on with the file that it began with."""
    path = tmp_path / "d"
    for records in (RECORDS, RECORDS[:1]):
        path.unlink(missing_ok=True)
        with DatasetWriter(path, HEADER) as writer:
            for record in records:
                writer.append(record)
        if records is RECORDS:
            reading = iter(read_dataset(path))
            first = next(reading)
    assert [first, *reading] == list(RECORDS)
