"""Nothing that others wrote reaches a terminal as anything but letters on its line."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import diode_lut
from diode_lut import errors as printable
from diode_lut.cli import COMMANDS
from diode_lut.cli.output import say
from diode_lut.dataset import DatasetWriter
from diode_lut.diff import as_markdown, compare
from diode_lut.errors import DiodeLutError, TableError
from diode_lut.hardware import Hardware
from diode_lut.model.weights import write_model
from diode_lut.table import Candidate, Entry, Table, read_table, write_table
from diode_lut.table.lint import check_file
from diode_lut.templates.config import ATEN
from tests.commands import call
from tests.dataset.test_stream import HEADER, RECORDS
from tests.model.small import model
from tests.strategies import share

EVIL = (
    "\x1b[31m\x1b]0;title\x07\r\n  aten\x00\x7f\x85\x9b2K\u2028\u2029\u202e\u2066\u200f\u061c\ufeff"
    "[/red][link=x]%0A|`<b>"
)
TEXTS = st.lists(st.sampled_from([*EVIL, "a"]), min_size=1, max_size=12).map("".join)


def is_clean(said: str) -> bool:
    return all(line.isprintable() for line in said.split("\n"))


@given(st.text(st.characters()) | TEXTS)
def test_text_becomes_one_line_that_stays_as_it_is(text: str) -> None:
    """What is printable is left alone, the rest is escaped, once, and can be written to any file."""
    shown = printable.printable(text)
    assert shown.isprintable()
    assert printable.printable(shown) == shown
    assert (shown == text) == text.isprintable()
    assert len(printable.as_lines([text, text]).split("\n")) == 2
    shown.encode()


@given(st.text(st.characters()) | TEXTS)
def test_json_says_the_same(text: str) -> None:
    """JSON that is shown has no control character but its line ends, and is read as what it was."""
    for indent in (False, True):
        shown = printable.as_json({text: [text, 1]}, indent=indent)
        assert is_clean(shown)
        assert json.loads(shown) == {text: [text, 1]}


def row(**fields: Any) -> dict[str, Any]:
    kind = {"op": "mm", "dtype": "bfloat16", "layout": "nn", "align": 16}
    return {**kind, "m": [1, 64], "n": [1, 64], "k": [1, 64], "configs": [{"template": "aten"}], **fields}


def document(text: str, *rows: dict[str, Any]) -> dict[str, Any]:
    """A table with the text wherever there may be one."""
    return {
        "$schema": text,
        "schema_version": 2,
        "hardware": {"name": f"NVIDIA H200{text}", "arch": f"sm_90{text}", "sm_count": 132, "aliases": [text]},
        "provenance": {"torch": f"2.13{text}", "datasets": [text], "pruned_with": text},
        "entries": [row(note=text), *rows],
    }


def write_files(here: Path, text: str) -> None:
    """Files of all kinds, full of the text."""
    here.mkdir(exist_ok=True)
    (here / "good.json").write_text(json.dumps(document(text)))
    (here / "other.json").write_text(json.dumps(document(text, row(m=[65, 65], note=f"merge conflict: {text}"))))
    wrong = [row(**{text: text}), row(op=text), row(configs=[{"template": text}]), row(m=text), text]
    (here / "wrong.json").write_text(json.dumps(document(text, *wrong)))
    hardware = Hardware(**document(text)["hardware"])._replace(aliases=(text,))
    with DatasetWriter(here / "d.msgpack", HEADER._replace(hardware=hardware, torch=f"2.13{text}")) as writer:
        writer.append(RECORDS[0])
    data = (here / "d.msgpack").read_bytes()
    (here / "damaged.msgpack").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    write_model(model(), here / "m.safetensors")
    length = (
        head := json.dumps({"__metadata__": {text: text}, text: {"dtype": text, "shape": [text]}}).encode()
    ) and len(head)
    (here / "evil.safetensors").write_bytes(length.to_bytes(8, "little") + head)
    device = {"hardware": {"name": text, "arch": text, "sm_count": 1, "aliases": [text]}}
    (here / "r.json").write_text(json.dumps({"schema_version": 1, "processes": 1, text: text, "devices": [device]}))
    (here / "p.json").write_text(json.dumps([{"op": text, text: text}]))


COMMAND_LINES = [
    ["show", "good.json"],
    ["show", "wrong.json"],
    ["show", "evil.safetensors"],
    ["show", "gone.json"],
    *(
        ["check", "--format", form, "wrong.json", "other.json", "evil.safetensors"]
        for form in ("text", "json", "github")
    ),
    *(["diff", "--format", form, "good.json", "other.json"] for form in ("text", "json", "markdown")),
    *(["query", "other.json", "@", "--format", form] for form in ("json", "lines", "table")),
    ["query", "other.json", "entries[]", "--format", "table"],
    ["explain", "mm", "8", "8", "8", "--table", "good.json", "--hardware", "good.json"],
    ["explain", "mm", "8", "8", "8", "--hardware", "EVIL"],
    ["merge", "good.json", "other.json"],
    ["merge", "wrong.json", "other.json"],
    ["fmt", "--check", "good.json", "wrong.json"],
    ["fmt", "copy.json"],
    ["set", "good.json", "mm", "--config", "EVIL", "--note", "x"],
    ["set", "copy.json", "mm", "--m", "99", "--config", "aten", "--note", "EVIL"],
    ["set", "copy.json", "EVIL", "--config", "aten", "--note", "EVIL"],
    ["unset", "copy.json", "mm", "--m", "98"],
    ["build", "d.msgpack", "-o", "built.json"],
    ["build", "d.msgpack", "-o", "built.json", "--hardware", "EVIL"],
    ["pack", "d.msgpack", "-o", "d.msgpack.zst"],
    ["pack", "damaged.msgpack", "-o", "d.msgpack.zst"],
    ["pack", "gone.msgpack", "-o", "d.msgpack.zst"],
    ["distill", "d.msgpack", "-o", "gone/x.mlp.safetensors"],
    ["evaluate", "good.json", "d.msgpack"],
    ["evaluate", "built.json", "d.msgpack"],
    ["receipt", "r.json"],
    ["collect", "--problems", "p.json", "--out", "x.msgpack"],
    ["collect", "--problems", "EVIL", "--out", "x.msgpack"],
    ["adopt", "--budget", "1", "--problems", "p.json"],
    ["verify", "good.json"],
    ["run", "--", "EVIL"],
    ["tune", "--", "EVIL"],
    ["compare", "--", "EVIL"],
    ["import", "timings", "p.json", "-o", "x.msgpack"],
    ["export", "inductor-table", "good.json", "-o", "x.json"],
    ["report", "good.json", "-o", "x.html"],
    ["distill", "d.msgpack", "-o", "x.safetensors", "--leave-out", "EVIL"],
    ["git-setup", "EVIL"],
    ["resolve", "--ours", "good.json"],
    ["show", "d.msgpack"],
    ["show", "EVIL"],
    ["show", "EVIL:good.json"],
    ["query", "good.json", "entries[?op==EVIL]"],
    ["query", "d.msgpack", "records"],
    ["evaluate", "built.json", "d.msgpack", "--against", "p.json"],
    ["import", "tunableop", "p.json", "-o", "x.msgpack"],
    ["tables"],
    ["doctor"],
    ["EVIL"],
    ["--EVIL"],
]


@settings(max_examples=share(8), deadline=None)
@given(text=st.just(EVIL) | TEXTS)
@example(text="``")  # an old text of JMESPath's, of which it warns
def test_commands_show_no_control_character(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever texts files and arguments hold, each command prints letters and line ends only."""
    here = tmp_path_factory.mktemp("evil")
    write_files(here, text)
    shutil.copy(here / "good.json", here / "copy.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.setenv("DIODE_LUT_POLICY", text.replace("\0", ""))
        for line in COMMAND_LINES:
            result = call(*(part.replace("EVIL", text) for part in line))
            assert is_clean(result.stdout), line
            assert is_clean(result.stderr), line


FORGED = "a\nFORGED\nb"


def test_no_command_has_a_forged_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line end in a file, in its name or in an argument begins no line of what a command prints."""
    write_files(tmp_path, FORGED)
    shutil.copy(tmp_path / "good.json", tmp_path / "copy.json")
    for file in list(tmp_path.iterdir()):
        file.rename(tmp_path / in_forged(file.name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIODE_LUT_POLICY", FORGED)
    monkeypatch.setenv("COLUMNS", "10000")  # so that no table's column is folded
    monkeypatch.setattr(diode_lut.config, "tables", (in_forged("good.json"), in_forged("wrong.json")))
    for line in COMMAND_LINES:
        result = call(*map(in_forged, line))
        assert "FORGED" not in (said.strip() for said in result.output.splitlines()), line


def in_forged(part: str) -> str:
    """The argument, with the text for EVIL; a file's name begins with it."""
    is_file = Path(part).suffix in (".json", ".msgpack", ".zst", ".safetensors", ".html")
    return FORGED + part if is_file else part.replace("EVIL", FORGED)


def test_every_command_is_tried() -> None:
    """No command is left out."""
    assert {line[0] for line in COMMAND_LINES} >= set(COMMANDS)


@given(TEXTS)
def test_a_note_adds_no_line(text: str) -> None:
    """A table is shown in the same number of lines, whatever its texts are, and so are its differences."""
    from diode_lut.diff import as_text as diff_as_text
    from diode_lut.table.format import as_text

    def table(words: str) -> Table:
        entry = Entry("mm", None, None, None, None, (1, 8), None, None, (Candidate(ATEN),), None, words)
        hardware = Hardware(f"GPU{words}", f"sm_90{words}", 1, (words,))
        return Table(hardware, [entry], {"torch": words, "datasets": [words, words]})

    for show in (
        as_text,
        lambda it: diff_as_text(text, text, compare(table("before"), it)),
        lambda it: as_markdown(text, text, compare(table("before"), it)),
    ):
        assert show(table(text)).count("\n") == show(table("y")).count("\n")


@pytest.mark.parametrize("form", ["text", "json", "github"])
def test_names_of_files_are_shown_as_text_too(form: str, tmp_path: Path) -> None:
    """A name with a line end, with an escape, or that is no UTF-8, is escaped in every format."""
    names = ("a\n::error::x", "\x1b[2K", os.fsdecode(b"\xff"), "[red]", "-o", "\u202e")
    for name in (f"{name}.json" for name in names):
        (tmp_path / name).write_text("{}")
        result = call("check", "--format", form, tmp_path / name)
        assert is_clean(result.stdout)
        assert result.exit_code == 1
        if form == "json":
            assert [each["path"] for each in json.loads(result.stdout)] == [str(tmp_path / name)]
        else:
            assert result.stdout.count("\n") == 1


def test_errors_are_one_line() -> None:
    """An error quotes what it found as text."""
    assert str(DiodeLutError("a\nb\x1b")) == r"a\nb\x1b"
    assert str(TableError("\u202e", path=Path("a\nb"), where="\x85")) == r"a\nb: \x85: \u202e"


def test_files_in_canonical_form_show_what_is_in_them(tmp_path: Path) -> None:
    """What people review has escapes of JSON where letters are not printable, and is read as it was."""
    table = Table(Hardware("GPU", "sm_90", 1), [], {"torch": EVIL})
    write_table(table, tmp_path / "t.json")
    assert is_clean((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert read_table(tmp_path / "t.json").provenance == {"torch": EVIL}
    assert check_file(tmp_path / "t.json") == []


def test_a_note_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    """It could not be read again."""
    write_table(Table(Hardware("GPU", "sm_90", 1), []), tmp_path / "t.json")
    before = (tmp_path / "t.json").read_bytes()
    result = call("set", tmp_path / "t.json", "mm", "--config", "aten", "--note", "\udcff")
    assert (result.exit_code, "is not Unicode" in result.stderr) == (2, True)
    assert (tmp_path / "t.json").read_bytes() == before


def test_markdown_has_no_meaning(tmp_path: Path) -> None:
    """A note makes no link, picture, heading, mention, formula or HTML in a comment."""
    evil = "![x](http://e.vil) <img src=x> @all #1 GH-1 www.e.vil $x$ `c` |a| [t]: u **b**"
    old, new = (Table(Hardware("GPU", "sm_90", 1), [], {"torch": words}) for words in ("x", evil))
    (line,) = (line for line in as_markdown("a", "b", compare(old, new)).split("\n") if "provenance" in line)
    expected = (
        r"\!\[x\](http:<!-- -->//e.vil) &lt;img src=x> \@<!-- -->all \#<!-- -->1 GH<!-- -->-1 www<!-- -->.e.vil "
        r"\$x\$ \`c\` \|a\| \[t\]:<!-- --> u \*\*b\*\*"
    )
    assert line.endswith(expected.replace(r"\!", "!"))


def test_what_commands_print_is_escaped_once_more(capsys: pytest.CaptureFixture[str]) -> None:
    """Text that reaches the end as it was is escaped there, but for the ends of lines."""
    say(f"a\n{EVIL}")
    assert (captured := capsys.readouterr().out).startswith("a\n")
    assert is_clean(captured)


def test_text_leaves_in_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands print through output.py, which escapes; click prints only its own help and errors of usage."""
    printing: set[str] = set()

    def noted(echo: Callable[..., None]) -> Callable[..., None]:
        def called(*arguments: Any, **options: Any) -> None:
            printing.add(sys._getframe(1).f_globals["__name__"])
            echo(*arguments, **options)

        return called

    write_files(tmp_path, "a")
    shutil.copy(tmp_path / "good.json", tmp_path / "copy.json")
    monkeypatch.chdir(tmp_path)
    for name in ("echo", "secho"):
        echo = getattr(click, name)
        for module in [module for module in sys.modules.values() if vars(module).get(name) is echo]:
            monkeypatch.setattr(module, name, noted(echo))
    for line in COMMAND_LINES:
        call(*line)
    assert {name for name in printing if not name.startswith("click.")} == {"diode_lut.cli.output"}
