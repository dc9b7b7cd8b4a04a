"""What helps people to type: the overview, near misses, completion, colors and progress."""

import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from click.testing import CliRunner

import diode_lut
from diode_lut import errors
from diode_lut.cli import COMMANDS, SECTIONS, main
from diode_lut.cli import arguments as typed
from diode_lut.cli.output import CHANGES, Bars, Minutes, say
from diode_lut.errors import install_command
from diode_lut.files import documents_directory
from tests.commands import call
from tests.documents import COMMANDS_PAGE

ROOT = Path(diode_lut.__file__).parent.parent
Write = Callable[..., Path]


def test_the_overview_has_every_command_in_its_group() -> None:
    """Commands are listed by what they are for, each with the first sentence of its help on one line of a terminal."""
    shown = call("--help").stdout
    assert set(COMMANDS) <= {name for names in SECTIONS.values() for name in names}
    assert "Other:" not in shown
    listed = dict(re.findall(r"^  ([a-z]\S*) +(\S.*\.)$", shown, flags=re.MULTILINE))
    assert listed.keys() == COMMANDS.keys()
    assert listed["build"] == "Build a table from datasets."
    assert re.search(r"Documentation: \S+/docs", shown)


def test_without_arguments_the_first_commands_to_try_come_first() -> None:
    """These are on programs of the user's own, before the list of all commands."""
    begin, _, rest = call().output.partition("\n\nRun programs:\n")
    assert re.findall(r"diode-lut (\w+) -- python train.py", begin) == ["run", "tune", "compare"]
    assert "  build " in rest


def test_the_help_of_a_command_names_its_documentation() -> None:
    """It ends with the file and the section, which docs/commands.md links to as well."""
    for name in COMMANDS:
        link = re.search(rf"^\| \[`{name}`\]\((\S+)\) \|", COMMANDS_PAGE.read_text(), flags=re.MULTILINE)
        assert link is not None, name
        shown = call(name, "--help").stdout
        assert shown.endswith(f"\n  Documentation: {documents_directory()}/{link[1]}\n"), name
        assert call(name, "--help").stdout == shown


def test_only_formats_that_a_command_takes_are_listed() -> None:
    """``export`` writes fewer formats than ``import`` reads."""
    assert "tunableop:" in call("import", "--help").stdout
    assert "tunableop:" not in call("export", "--help").stdout


@pytest.mark.parametrize(
    ("typed", "remedy"),
    [
        ("colect", "did you mean collect?"),
        ("lookup", "did you mean explain?"),
        ("Validate", "did you mean check?"),
        ("help", "did you mean --help, alone or after a command?"),
        ("xyzzy", "--help lists all commands"),
    ],
)
def test_a_misspelt_command_gets_the_nearest(typed: str, remedy: str) -> None:
    """The message has the command that was probably meant, by its name or by what it does, or where to look."""
    result = call(typed)
    assert (result.exit_code, f"no such command: {typed} ({remedy})" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("entries[?op==bmm]", 'no field is called bmm: a text is written `"bmm"`'),
        ('entries[?op=="bmm"]', 'no field is called bmm: a text is written `"bmm"`'),
        ("entries[?m[1] < 64]", "numbers are written in backquotes: `64`"),
        ("entries[?m > `64`]", "m is a list, which has no order with a number: write m[0] or m[1]"),
    ],
)
def test_query_says_how_to_quote(expression: str, hint: str) -> None:
    """A word or number that JMESPath would take for a field or for nothing is an error with the remedy."""
    result = call("query", "nvidia-h200", expression)
    assert (result.exit_code, hint in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("expression", "note"),
    [
        ("entries | length", "note: the file has no field length; a function is written length(@)\n"),
        ("entries[?configs[0].tempate=='aten']", "note: the file has no field tempate (did you mean template?)\n"),
        ("entries[?template=='aten']", "note: template is a field of configs: write configs[0].template\n"),
        ("entries[].{shape: m} | [?shape==`null`]", ""),
        ('entries[?dtype==`"bf16"`]', "note: no dtype is bf16 (did you mean bfloat16?)\n"),
        ("entries[?layout=='NT']", "note: no layout is NT (did you mean nt?)\n"),
        ("entries[0].configs.template", "note: configs is a list: write configs[0].template\n"),
        ("entries[].configs.template", "note: configs is a list: write configs[0].template\n"),
        ("entries[?layout=='row']", "note: no layout is row (there are nn, nt, tn)\n"),
        ("entries[?configs[0].template=='triton-mm']", "note: no template is triton-mm (did you mean triton_mm?)\n"),
        ("entries[?configs[0].kpack==`1`]", "note: the file has no field kpack\n"),
        ("entries[?variant=='row-bf16-fast']", "note: no variant is row-bf16-fast (did you mean row-bfloat16-fast?)\n"),
        ("entries[?op=='bmm' && m[1] < `0`]", ""),
    ],
)
def test_query_says_why_it_finds_nothing(expression: str, note: str) -> None:
    """A field or a value that is not in the file is named where nothing is found, and that is no error."""
    result = call("query", "nvidia-h200", expression)
    assert (result.exit_code, result.stderr) == (0, note)


@pytest.mark.parametrize(
    ("expression", "code"),
    [("entries", 0), ("length(entries)", 0), ("entries[?m[0] < `0`]", 1), ("nothing", 1), ("`1` == `2`", 1)],
)
def test_query_says_by_its_exit_code_whether_it_finds_something(expression: str, code: int, table_file: Write) -> None:
    """With ``-e``, null, false and an empty list are 1; without it they are 0."""
    path = table_file("x.json", {"op": "mm", "configs": [{"template": "aten"}]})
    assert (call("query", "-e", path, expression).exit_code, call("query", path, expression).exit_code) == (code, 0)


def test_query_searches_notes_where_rows_have_none(table_file: Write) -> None:
    """A row without a note contains no text in it."""
    aten = [{"template": "aten"}]
    path = table_file("x.json", {"op": "mm", "configs": aten}, {"op": "bmm", "configs": aten, "note": "slow here"})
    assert call("query", path, "entries[?contains(note, 'slow')].op").stdout == '[\n  "bmm"\n]\n'


def test_query_compares_with_fields_that_tables_may_have(table_file: Write) -> None:
    """A field that this table leaves out is no mistake."""
    path = table_file("x.json", {"op": "mm", "configs": [{"template": "aten"}]})
    assert call("query", path, 'length(entries[?epilogue==`"light"`])').stdout == "0\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("diode-lut sh", "plain,show"),
        ("diode-lut diff nv", "plain,nvidia-h200"),
        ("diode-lut diff - nv", "plain,nvidia-h200"),
    ],
)
def test_shells_complete_commands_and_tables(words: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Completion offers commands, and names of tables where a table goes; it reads nothing of what was typed before."""
    monkeypatch.setattr(typed, "_standard_input", lambda _: pytest.fail("standard input was read"))
    environment = {"_DIODE_LUT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    result = CliRunner(env=environment).invoke(main, prog_name="diode-lut", complete_var="_DIODE_LUT_COMPLETE")
    assert expected in result.stdout.splitlines()


def test_colors_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets none, and neither does a terminal where NO_COLOR is set."""
    runner, green = CliRunner(), "\x1b[32m\x1b[1madded\x1b[0m"
    for color, no_color, expected in ((False, "", "added"), (True, "", green), (True, "1", "added")):
        monkeypatch.setenv("NO_COLOR", no_color)
        with runner.isolation(color=color) as (output, *_):
            say("added    x\nother", colors=CHANGES)
            assert output.getvalue().decode() == f"{expected}    x\nother\n"


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    """Each line says how far it is; nothing is said before it is time."""
    from rich.progress import Progress

    for seconds, lines in ((0, ["d: 1 of 2", "d: 2 of 2"]), (1e9, [])):
        with Progress(disable=True) as progress:
            assert list(Bars(progress, Minutes(seconds)).track("ab", "d", 2)) == ["a", "b"]
        assert capsys.readouterr().err.splitlines() == lines


def test_the_command_that_installs_works_where_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a clone it names the clone, elsewhere the packages that the installation needs: no registry has diode_lut."""
    assert install_command("torch") == f"pip install '{ROOT}[torch]'"
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "diode_lut" / "errors.py"))
    try:
        requires("diode-lut")
    except PackageNotFoundError:
        assert install_command("torch") == "in a clone of diode_lut: pip install '.[torch]'"
        pytest.skip("diode_lut is not installed")
    assert install_command("torch").startswith("pip install 'torch<2.16,>=2.11'")
    assert install_command("report").split("'")[1::2] == ["matplotlib>=3.9", "vl-convert-python>=1.9"]
    assert "'numpy>=" in install_command()
    assert "matplotlib" not in install_command()


def test_the_wheel_has_the_documentation(tmp_path: Path) -> None:
    """An installed package has tables, schemas and documents, and no datasets."""
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    expected = ("docs/editing.md", "schemas/table.v2.schema.json", "tables/nvidia-h200.json")
    assert {f"diode_lut/{name}" for name in expected} <= set(names)
    assert not [name for name in names if name.endswith((".png", ".zst"))]
