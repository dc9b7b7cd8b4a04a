"""Files that commands do not replace: those of another kind than the command writes."""

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from diode_lut.cli import COMMANDS, main
from diode_lut.cli.output import ANY_OUTPUT, Output
from diode_lut.dataset import pack, read_dataset, write_stream
from diode_lut.model.weights import write_model
from diode_lut.receipts import Receipt, receipt_bytes
from tests.commands import call
from tests.dataset.test_stream import HEADER, RECORDS
from tests.model.small import model

TABLE = {
    "schema_version": 2,
    "hardware": HEADER.hardware._asdict(),
    "entries": [{"op": "mm", "dtype": "float16", "layout": "nn", "configs": [{"template": "aten"}]}],
}
WRITING = {
    "adopt --budget 1 -o": "",
    "build d.msgpack -o": "t.json",
    "build d.msgpack --previous t.json -o": "t.json",
    "collect --random 1 --device cpu --out": "d.msgpack",
    "compare -n 2 --output": "page.html",
    "distill d.msgpack --picture p.png -o": "m.safetensors",
    "distill d.msgpack -o new.mlp.safetensors --picture": "p.png",
    "export inductor-table t.json -o": "lookup.json",
    "export timings d.msgpack -o": "timings.csv",
    "export torch-diode-table t.json -o": "diode.json",
    "import inductor-table lookup.json --hardware h200 -o": "",
    "import timings timings.csv -o": "",
    "merge t.json t.json -o": "t.json",
    "pack d.msgpack -o": "d.msgpack",
    "receipt r.json -o": "r.json",
    "report t.json -o": "page.html",
    "run --receipt": "r.json",
    "tune --table": "t.json",
    "verify t.json -o": "problems.json",
}
"""Command lines that end with the name of the file to write, and the file that they may replace."""

IN_PLACE = {"fmt", "git-setup", "resolve", "set", "unset"}  # commands that change the file that they read


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A file of each kind, by its name."""
    here = tmp_path_factory.mktemp("files")
    (here / "t.json").write_text(json.dumps(TABLE))
    write_stream(here / "d.msgpack", HEADER, RECORDS)
    pack([read_dataset(here / "d.msgpack")], here / "d.msgpack.zst")
    write_model(model(), here / "m.safetensors")
    (here / "r.json").write_bytes(receipt_bytes(Receipt()))
    (here / "problems.json").write_text('[\n{"op": "mm", "M": 8}\n]\n')
    (here / "p.png").write_bytes(b"\x89PNG\r\n")
    (here / "p.svg").write_text('<?xml version="1.0"?><svg/>')
    (here / "comparison.json").write_text('{"command": [], "seconds": {}, "gemms": []}')
    (here / "train.py").write_text("import torch\n")
    (here / "broken.json").write_text('{"schema_version": 2, "hardware": {')
    (here / "deep.json").write_text("[" * 100_000)
    (here / "list.json").write_text('[{"a": 1}]')
    (here / "package.json").write_text('{"name": "x", "dependencies": {}}')
    for line in ("report t.json -o", "export inductor-table t.json -o", "export timings d.msgpack -o"):
        name = WRITING[line]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(here)
            assert call(*line.split(), name).exit_code == 0
    call("export", "torch-diode-table", here / "t.json", "-o", here / "diode.json")
    call("export", "timings", here / "d.msgpack", "-o", here / "timings.json")
    return {path.name: path.read_bytes() for path in here.iterdir()}


@pytest.fixture
def here(tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with these files."""
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_no_command_replaces_a_file_of_another_kind(here: Path, files: dict[str, bytes]) -> None:
    """It is an error on one line that names the file, before any work, and all files stay as they are."""
    for line, own in WRITING.items():
        program = ["--", "true"] if line.split()[0] in ("compare", "run", "tune") else []
        for name in files.keys() - {own, *LIKE.get(own, ())}:
            result = call(*line.split(), name, *program)
            assert result.exit_code in (1, 2), (line, name, result.output)
            assert name in result.stderr.splitlines()[-1], (line, name)
            assert {path.name: path.read_bytes() for path in here.iterdir()} == files, (line, name)


LIKE = {"d.msgpack": ["d.msgpack.zst"], "p.png": ["p.svg"], "timings.csv": ["timings.json"]}  # files of the same kind
QUICK = ("build", "evaluate", "export", "merge", "pack", "receipt", "report")  # they need neither torch nor matplotlib


@pytest.mark.parametrize("line", [line for line in WRITING if line.startswith(QUICK) and "picture" not in line])
@pytest.mark.usefixtures("here")
def test_a_file_of_the_same_kind_is_replaced(line: str) -> None:
    """A command replaces its own output."""
    assert call(*line.split(), WRITING[line]).exit_code == 0


def test_an_empty_file_is_of_no_kind(here: Path) -> None:
    """A file as mktemp makes it can be written."""
    (here / "new.html").touch()
    assert call("report", "t.json", "-o", "new.html").exit_code == 0
    assert (here / "new.html").stat().st_size


def test_the_figures_of_a_comparison_replace_no_table(here: Path, files: dict[str, bytes]) -> None:
    """The JSON file beside the page of ``compare`` is looked at like the page."""
    result = call("compare", "-o", "t.html", "--", "true")
    error = "error: t.json: exists, and is not figures of compare but a table (name another file, or remove it)\n"
    assert (result.exit_code, result.stderr) == (2, error)
    assert {path.name: path.read_bytes() for path in here.iterdir()} == files


def test_a_receipt_that_the_environment_names_replaces_no_table(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``run`` looks at it before the program is started."""
    monkeypatch.setenv("DIODE_LUT_RECEIPT", "t.json")
    result = call("run", "--", "touch", "started")
    assert (result.exit_code, "t.json: exists, and is not a receipt but a table" in result.stderr) == (2, True)
    assert not (here / "started").exists()


def test_every_command_is_tried() -> None:
    """Each option that names a file to write says of which kind that is, and is tried here."""
    tried = {(line.split()[0], line.split()[-1]) for line in WRITING}
    for name in COMMANDS.keys() - IN_PLACE:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        for each in command.params:
            if isinstance(each.type, click.Path) and each.type.file_okay:
                assert isinstance(each.type, Output), (name, each.opts)
                assert each.type.kind or (each.type is ANY_OUTPUT and name in ("export", "import"))
                assert any((name, option) in tried for option in each.opts), (name, each.opts)
