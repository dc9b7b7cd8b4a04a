"""What people type for a file: names of tables, ``-``, and files in git's history."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diode_lut.cli import main
from diode_lut.dataset import read_dataset
from tests.commands import call
from tests.distill import synthetic

ROW = {"op": "mm", "m": [1, 8], "configs": [{"template": "aten"}]}
Write = Callable[..., Path]


def piped(data: str | bytes, *arguments: object) -> Result:
    """What a command does with this on its standard input."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=data)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show",), "NVIDIA H200 (sm_90, 132 SMs)"),
        (("query",), '"hardware"'),
        (("check",), ""),
        (("diff",), "no differences"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_shipped_tables_have_names(arguments: tuple[str, ...], words: str) -> None:
    """Where a table is read, the name of a shipped one, or of its GPU, does."""
    more = {"query": ["{hardware: hardware}"], "diff": ["NVIDIA H200"]}.get(arguments[0], [])
    result = call(*arguments, "nvidia-h200", *more)
    assert result.exit_code == 0, result.output
    assert words in result.stdout


def test_a_misspelt_name_gets_the_nearest() -> None:
    """The message has the known names, and the one that was probably meant."""
    result = call("show", "nvidia-h20")
    assert result.exit_code == 2
    assert "no shipped table of that name" in result.stderr
    assert "(did you mean nvidia-h200?)" in result.stderr


@pytest.mark.parametrize("command", ["fmt nvidia-h200", "set nvidia-h200 mm --m 3 --config aten --note x"])
def test_shipped_tables_are_not_changed_by_name(command: str) -> None:
    """What is changed is a file, so the message says how to get one."""
    result = call(*command.split())
    assert result.exit_code == 2
    assert "a shipped table, which is not changed by its name (give the path of a file" in result.stderr


def test_standard_input_and_output(table_file: Write) -> None:
    """``-`` is standard input, and where a file would be changed or written, standard output."""
    text = table_file("a.json", ROW).read_text()
    loose = json.dumps(json.loads(text))
    assert piped(loose, "fmt", "-").stdout == text
    assert piped(text, "check", "-").exit_code == 0
    assert piped(loose, "check", "-").stdout.startswith("<stdin>:1:1: is not in canonical form")
    changed = piped(text, "set", "-", "bmm", "--m", "3", "--config", "aten", "--note", "x")
    assert [entry["op"] for entry in json.loads(changed.stdout)["entries"]] == ["mm", "bmm"]
    assert changed.stderr.startswith("+ bmm")
    assert piped(text, "query", "-", "length(entries)").stdout == "1\n"


def test_standard_input_is_read_once(table_file: Write) -> None:
    """Two files cannot both be standard input."""
    result = piped("{}", "diff", "-", "-")
    assert (result.exit_code, "can be read only once" in result.stderr) == (2, True)


def test_timings_come_through_a_pipe(tmp_path: Path) -> None:
    """A dataset on standard input is built into a table on standard output, as it is from a file."""
    data = synthetic.write(tmp_path / "d.msgpack", 20).read_bytes()
    built = piped(data, "build", "-", "-o", "-")
    assert built.exit_code == 0, built.output
    call("build", tmp_path / "d.msgpack", "-o", tmp_path / "t.json")
    assert built.stdout == (tmp_path / "t.json").read_text()
    (tmp_path / "t.json").write_text(built.stdout)
    figures = piped(data, "evaluate", tmp_path / "t.json", "-", "--json", "-")
    assert json.loads(figures.stdout)["rows"] == len(json.loads(built.stdout)["entries"])


def test_datasets_are_shown_and_queried(tmp_path: Path) -> None:
    """``show`` prints every time, ``query`` sees problems, stages and timings, the fastest first."""
    path = tmp_path / "d.msgpack"
    synthetic.write(path, 3)
    records = list(read_dataset(path))
    lines = call("show", path).stdout.splitlines()
    assert f"{records[0].problem} {records[0].stage}" in lines
    assert len([line for line in lines if line.startswith("  ")]) == sum(len(record.timings) for record in records)
    found = json.loads(call("query", path, "records[*].timings[].ns").stdout)
    assert sorted(found) == sorted(timing.ns for record in records for timing in record.timings if timing.ns)
    assert min(timing.ns for timing in records[0].timings if timing.ns) == found[0]


def test_files_in_gits_history(tmp_path: Path, table_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """``REVISION:PATH`` is the file as git has it, which can be read and not changed."""
    path = table_file("x.json", ROW)
    monkeypatch.chdir(path.parent)
    identity = ("-c", "user.name=x", "-c", "user.email=x")
    for arguments in (("init", "--quiet"), ("add", "x.json"), (*identity, "commit", "--quiet", "-m", "x")):
        subprocess.run(["git", *arguments], check=True)
    assert call("set", "x.json", "bmm", "--config", "aten", "--note", "x").exit_code == 0
    result = call("diff", "HEAD:x.json", "x.json")
    assert result.exit_code == 1
    assert result.stdout.startswith("HEAD:x.json -> x.json\nadded")
    assert "is in git's history, which is not changed" in call("fmt", "HEAD:x.json").stderr
    missing = call("diff", "HEAD:y.json", "x.json")
    assert missing.exit_code == 2
    assert "no such file, and git has none either: fatal: path 'y.json' does not exist in 'HEAD'" in missing.stderr
