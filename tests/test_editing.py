"""The commands fmt, query, set and unset."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from diode_lut.cli import main, query
from diode_lut.files import replacing
from diode_lut.table import read_table
from diode_lut.table.lint import check_file
from tests.commands import call, running

ROOT = Path(__file__).parent.parent

Write = Callable[..., Path]

ATEN = {"template": "aten"}
EXACT = {"op": "mm", "dtype": "bfloat16", "layout": "nt", "align": 16, "m": [64, 64], "n": [8, 8], "k": [8, 8]}
ROW = {"op": "bmm", "dtype": "float16", "m": [1, 32], "configs": [ATEN]}
QUOTES = "''"
KEY = ("mm", "--m", 64, "--n", 8, "--k", 8, "--dtype", "bfloat16", "--layout", "nt")


def test_several_at_once_lose_nothing(table_file: Write, tmp_path: Path) -> None:
    """Rows that several processes set at the same time are all in the table."""
    path = table_file("mine.json", *({**ROW, "m": [m, m]} for m in range(1, 3000)))
    key = ("bmm", "--dtype", "float16", "--config", "aten", "--note", "x")
    editors = [running("set", str(path), *key, "--m", str(m), cwd=tmp_path) for m in range(5001, 5005)]
    assert [(editor.communicate()[1], editor.returncode) for editor in editors] == [("", 0)] * len(editors)
    assert {entry.m for entry in read_table(path).entries} >= {(m, m) for m in range(5001, 5005)}


@pytest.mark.parametrize("command", ["set {} mm --m 8 --config aten --note x", "unset {} bmm", "fmt {}"])
def test_a_table_that_is_being_written_is_not_edited(table_file: Write, command: str, impatient: None) -> None:
    """The command says which process writes it, and changes nothing."""
    path = table_file("mine.json", ROW)
    path.write_text(path.read_text() + "\n")
    before = path.read_bytes()
    with replacing(path):
        result = call(*command.format(path).split())
    assert (result.exit_code, path.read_bytes()) == (2, before)
    assert f"{path}: being written by process {os.getpid()}: wait for it, or stop it" in result.stderr


class TestFmt:
    """``fmt``."""

    @pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
    @pytest.mark.parametrize("options", [["."], ["--sort-keys", "."], ["--compact-output", "."], ["--tab", "."]])
    def test_it_undoes_what_jq_does_to_the_form(self, table_file: Write, options: list[str]) -> None:
        """Whatever jq makes of a file, after fmt it has the bytes that it had."""
        provenance = {"torch": "2.11.0", "cuda": "13.0", "datasets": ["sha256:00"]}
        path = table_file("mine.json", {**EXACT, "configs": [ATEN], "note": "déjà vu ☂"}, ROW, provenance=provenance)
        written = path.read_bytes()
        path.write_bytes(subprocess.run(["jq", *options], input=written, capture_output=True, check=True).stdout)
        assert path.read_bytes() != written
        result = call("fmt", path)
        assert (result.exit_code, result.output, path.read_bytes()) == (0, f"{path}\n", written)

    def test_nothing_is_written_twice(self, table_file: Write) -> None:
        """A file in canonical form is left alone, and not named."""
        path = table_file("mine.json", ROW)
        before = path.stat()
        assert call("fmt", path).output == ""
        assert path.stat().st_ino == before.st_ino

    def test_check_changes_nothing(self, table_file: Write) -> None:
        """With --check, files in another form are named, exit with 1, and stay."""
        good, other = table_file("good.json", ROW), table_file("other.json", ROW)
        other.write_text(other.read_text() + "\n")
        written = other.read_bytes()
        result = call("fmt", "--check", good, other)
        assert (result.exit_code, result.output, other.read_bytes()) == (1, f"{other}\n", written)
        assert call("fmt", "--check", good).exit_code == 0

    def test_what_would_be_lost_is_an_error(self, table_file: Write, tmp_path: Path) -> None:
        """Files with invalid rows or fields written twice are left as they are; the others are formatted."""
        bad = table_file("bad.json", {"op": "mn", "configs": [ATEN]}, ROW)
        twice = table_file("twice.json", ROW)
        twice.write_text(twice.read_text().replace('"m": [1, 32]', '"m": [1, 16], "m": [1, 32]'))
        other = table_file("other.json", ROW)
        other.write_text(other.read_text() + "\n")
        before = bad.read_bytes(), twice.read_bytes()
        result = call("fmt", bad, tmp_path / "missing.json", twice, other)
        assert result.exit_code == 2
        assert result.stdout == f"{other}\n"
        assert f"error: {bad}:" in result.stderr
        assert "entries[0].m: is written twice (only the last one counts) (correct it first)" in result.stderr
        assert (bad.read_bytes(), twice.read_bytes()) == before

    def test_only_what_was_written_is_named(self, table_file: Write, tmp_path: Path) -> None:
        """A file that cannot be written is an error and not named as formatted; the others are formatted."""
        (tmp_path / "links").mkdir()
        elsewhere, link, other = (
            table_file("elsewhere.json", ROW),
            tmp_path / "links/link.json",
            table_file("other.json"),
        )
        for path in (elsewhere, other):
            path.write_text(path.read_text() + "\n")
        link.symlink_to(elsewhere)
        before = elsewhere.read_bytes()
        result = call("fmt", link, other)
        assert (result.exit_code, result.stdout) == (2, f"{other}\n")
        assert f"error: {link}: a symbolic link out of its directory" in result.stderr
        assert elsewhere.read_bytes() == before


class TestQuery:
    """``query``."""

    def test_formats(self, table_file: Write) -> None:
        """What is found comes as a document, as a line for each element, or in columns."""
        path = table_file("mine.json", {**EXACT, "configs": [ATEN]}, ROW)
        expression = 'entries[?op==`"bmm"` && m[1] < `64`].{op: op, m: m}'
        found = {"op": "bmm", "m": [1, 32]}
        assert json.loads(call("query", path, expression).stdout) == [found]
        assert call("query", path, expression, "--format", "lines").output == '{"op":"bmm","m":[1,32]}\n'
        lines = call("query", path, expression, "--format", "table").output.splitlines()
        assert [line.split() for line in lines] == [["op", "m"], ["bmm", "1-32"]]
        lines = call("query", path, "entries[?m[0] == m[1]].{m: m, configs: configs}", "--format", "table").output
        assert [line.split() for line in lines.splitlines()] == [["m", "configs"], ["64", "aten"]]

    @pytest.mark.parametrize(
        ("expression", "lines"),
        [("hardware.sm_count", ["132"]), ("gone", []), ("entries[].op", ['"mm"', '"bmm"']), ("entries[?m]", None)],
    )
    def test_anything_can_be_found(self, table_file: Write, expression: str, lines: list[str] | None) -> None:
        """Values, lists and nothing are shown in every format."""
        path = table_file("mine.json", {**EXACT, "configs": [ATEN]}, ROW)
        if lines is not None:
            assert call("query", path, expression, "--format", "lines").stdout.splitlines() == lines
        assert call("query", path, expression, "--format", "table").exit_code == 0
        json.loads(call("query", path, expression).stdout)

    @pytest.mark.parametrize(
        ("expression", "reason"),
        [
            ("entries[?", "Incomplete expression"),
            ("unknown(entries)", "Unknown function: unknown()"),
            ("length(`1`)", "In function length(), invalid type for value: 1"),
            ("", "cannot be empty"),
            ("entries[?m[0]>=`4k`]", '"4k" is a text, which has no order with a number: write `4096`'),
            ("entries[?m[0]>'x']", '"x" is a text, which has no order with a number'),
            ("entries[::0]", "slice step cannot be zero"),
            ("&op", "& stands only before an argument of map, sort_by, min_by or max_by"),
            ("to_array(&op)", "& stands only before an argument of map, sort_by, min_by or max_by"),
            ("merge(@, `1`)", "merge(): 'int' object is not iterable"),
            ("ceil(`1e999`)", "cannot convert float infinity to integer"),
            ("abs(@)", "In function abs(), invalid type for value: {'$schema'"),
            (f"entries[{'9' * 4090}]", "has 4099 letters (allowed: 4096)"),
            (f"{'(' * 2000}a{')' * 2000}", "is nested too deeply"),
            (f"@{'|@' * 2000}", "is nested too deeply"),
            (f"`{'[' * 2000}{']' * 2000}`", "is nested too deeply"),
        ],
    )
    @pytest.mark.filterwarnings("ignore:deprecated string literal syntax")
    def test_wrong_expressions(self, table_file: Write, expression: str, reason: str) -> None:
        """An expression that means nothing is wrong usage, and one line says why."""
        result = call("query", table_file("mine.json", ROW), expression)
        assert (result.exit_code, result.stdout) == (2, "")
        (line,) = (line for line in result.stderr.splitlines() if line.startswith("Error: "))
        assert line.startswith(f"Error: Invalid value for JMESPATH: {reason}") or reason in line
        assert len(line) < 500

    @pytest.mark.parametrize(
        "expression",
        [
            f"[@,@]{'|[@,@]' * 40}",
            f"@{'|{a:@,b:@}' * 40}",
            f"`[{'1,' * 499}1]`{'|[@,@][]' * 10}|map(&`{list(range(200))}`,@)",
            f"'{'x' * 2000}'{'|join(``,[@,@])'.replace('``', QUOTES) * 20}",
            f"'{'x' * 2000}'|{{s:@,l:[@,@]{'|[@,@][]' * 16}}}|join(s,l)",
        ],
    )
    def test_time_and_memory_are_bounded(
        self, table_file: Write, expression: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A query that would fill any memory is refused after a number of steps, however short it is."""
        monkeypatch.setattr(query, "MAX_STEPS", 1_000_000)
        result = call("query", table_file("mine.json", ROW), expression)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "takes more than 1000000 steps: search in fewer rows, or show less of each" in result.stderr

    def test_remarks_are_bounded(self, table_file: Write) -> None:
        """An expression with a thousand wrong fields gets a few remarks, each after one look at the file."""
        result = call("query", table_file("mine.json", ROW), "x" + ".x1" * 1300)
        assert (result.exit_code, result.stdout) == (0, "null\n")
        assert result.stderr.splitlines() == ["note: the file has no field x", "note: the file has no field x1"]
        result = call("query", table_file("mine.json", ROW), "||".join(f"x{number}" for number in range(40)))
        assert len(result.stderr.splitlines()) == 5


class TestSet:
    """``set`` and ``unset``."""

    def test_a_row_for_some_values_of_n_comes_and_goes(self, table_file: Write) -> None:
        """--n-align is part of the key, so a row for any N contradicts it, and unset needs it."""
        path = table_file("mine.json", ROW)
        before = path.read_bytes()
        key = ("mm", "--n", "1k-2k", "--dtype", "bf16")
        aligned, fields = (*key, "--n-align", 16), ("--config", "aten", "--note", "x")
        assert call("set", path, *aligned, *fields).output == "+ mm bfloat16 n 1024-2048 n_align 16: aten; note: x\n"
        refused = call("set", path, *key, *fields).stderr
        assert "with the same specificity as mm bfloat16 n 1024-2048 n_align 16 (change that instead)" in refused
        assert "no row has the key mm bfloat16 n 1024-2048 (the closest: " in call("unset", path, *key).stderr
        assert call("unset", path, *aligned).exit_code == 0
        assert path.read_bytes() == before

    def test_many_rows_in_one_write(self, table_file: Write) -> None:
        """--rows sets all rows of a list, with --note for those without a note, also from standard input."""
        path = table_file("mine.json", ROW)
        rows = [{**EXACT, "m": [m, m], "configs": [ATEN]} for m in (1, 2)] + [{**ROW, "note": "mine"}]
        rows_file = path.with_name("rows.json")
        rows_file.write_text(json.dumps(rows))
        result = call("set", path, "--rows", rows_file, "--note", "x")
        assert result.exit_code == 0, result.output
        assert [line[0] for line in result.stdout.splitlines()] == ["+", "+", "-", "+"]
        assert {(row.m, row.note) for row in read_table(path).entries} == {
            ((1, 1), "x"),
            ((2, 2), "x"),
            ((1, 32), "mine"),
        }
        assert list(check_file(path, path.read_bytes())) == []
        piped = CliRunner().invoke(main, ["set", str(path), "--rows", "-", "--note", "y"], input=json.dumps(rows[:1]))
        assert (piped.exit_code, read_table(path).entries[0].note) == (0, "y")

    @pytest.mark.parametrize(
        ("rows", "options", "message"),
        [
            ([{**EXACT, "configs": [ATEN]}], [], "[0]: it has no note"),
            ([{**EXACT, "configs": [ATEN], "m": 7}], ["--note", "x"], "[0]: m: "),
            ([{**ROW, "m": [m, 5], "configs": [ATEN]} for m in (3, 3)], ["--note", "x"], "[1]: an earlier row"),
            ([{**EXACT, "configs": [ATEN]}, 7], ["--note", "x"], "[1]: "),
            ({"entries": []}, ["--note", "x"], "expected a JSON list of rows"),
            ([], ["--note", " "], "--note: is empty"),
            ([], ["--m", "8", "--config", "aten"], "leave out --config, --m"),
        ],
    )
    def test_a_bad_list_of_rows(self, table_file: Write, rows: object, options: list[str], message: str) -> None:
        """A list with a bad row is refused with its place, and nothing is written."""
        path = table_file("mine.json", ROW)
        before = path.read_bytes()
        rows_file = path.with_name("rows.json")
        rows_file.write_text(json.dumps(rows))
        result = call("set", path, "--rows", rows_file, *options)
        assert result.exit_code in (1, 2)
        assert message in result.stderr
        assert path.read_bytes() == before

    def test_a_row_comes_and_goes(self, table_file: Write) -> None:
        """What is set is in the file with its note, says what answered before, and unset takes it away again."""
        wide = {**EXACT, "m": [1, 64], "configs": [ATEN]}
        path = table_file("mine.json", wide, ROW)
        before = path.read_bytes()
        result = call("set", path, *KEY, "--config", "triton_mm 128x128x64 g8 s4 w8", "--config", "aten", "--note", "x")
        assert result.exit_code == 0, result.output
        assert result.output.splitlines() == [
            "+ mm bfloat16 nt align 16 m 64 n 8 k 8: triton_mm 128x128x64 g8 s4 w8, aten; note: x",
            "until now it was answered by",
            "  mm bfloat16 nt align 16 m 1-64 n 8 k 8: aten",
        ]
        assert check_file(path) == []
        (row,) = json.loads(call("query", path, "entries[?note]").output)
        assert (row["m"], row["align"], row["note"]) == ([64, 64], 16, "x")
        assert [config["template"] for config in row["configs"]] == ["triton_mm", "aten"]
        assert call("unset", path, *KEY).exit_code == 0
        assert path.read_bytes() == before

    def test_another_note_is_shown(self, table_file: Write) -> None:
        """If only the note changes, the old row and the new one are told apart by it."""
        path = table_file("mine.json", {**ROW, "note": "by hand"})
        changed = call(
            "set", path, "bmm", "--dtype", "fp16", "--m", "1-32", "--config", "aten", "--note", "small\nones"
        )
        row = "bmm float16 m 1-32: aten; note:"
        assert changed.output.splitlines() == [f"- {row} by hand", f"+ {row} small\\nones"]

    def test_a_row_for_attention(self, table_file: Write) -> None:
        """Its sizes have options, and the alignment of an exact row is that of packed tensors."""
        path = table_file("mine.json", ROW)
        sizes = ("--b", 1, "--m", 512, "--n", "512-1k", "--k", 64, "--h", 8, "--g", 4, "--v", 64)
        key = ("flex_attention", *sizes, "--dtype", "bfloat16", "--layout", "nt", "--variant", "causal")
        result = call("set", path, *key, "--config", "triton_flex_attention 64x32 s2 w4", "--note", "x")
        assert result.exit_code == 0, result.output
        assert check_file(path) == []
        (row,) = json.loads(call("query", path, "entries[?note]").output)
        assert (row["n"], row["h"], row["g"], row["v"], row.get("align")) == (
            [512, 1024],
            [8, 8],
            [4, 4],
            [64, 64],
            None,
        )
        assert call("set", path, *key[:5], *("--n", 512), *key[7:], "--config", "default", "--note", "y").exit_code == 0
        (row,) = json.loads(call("query", path, "entries[?note=='y']").output)
        assert (row["align"], row["configs"]) == (16, [{"template": "default"}])
        assert call("set", path, "mm", "--h", 8, "--config", "aten", "--note", "z").exit_code == 2

    def test_a_row_is_replaced(self, table_file: Write) -> None:
        """The row with the same key goes; what it said is shown."""
        path = table_file("mine.json", {**EXACT, "configs": [{**ATEN, "gain_permille": 1000}]})
        result = call("set", path, *KEY, "--config", "triton_mm 64x64x32 g8 s3 w4", "--note", "x")
        assert [line[0] for line in result.output.splitlines()] == ["-", "+"]
        assert "aten (1.000)" in result.output
        assert call("query", path, "length(entries)").output == "1\n"

    def test_a_batch_that_is_left_out_leaves_the_alignment_open(self, table_file: Write) -> None:
        """A row for a bmm with any batch is not for one problem, so that it has no align unless one is given."""
        path = table_file("mine.json", {**EXACT, "configs": [ATEN]})
        key = ("bmm", "--m", "64", "--n", "3", "--k", "3", "--dtype", "bfloat16", "--layout", "nt")
        for batch, align in (((), None), (("--b", "1"), 2)):
            assert call("set", path, *key, *batch, "--config", "aten", "--note", "x").exit_code == 0
            (row,) = json.loads(call("query", path, "entries[?note]").output)
            assert row.get("align") == align
            assert call("unset", path, *key, *batch).exit_code == 0

    def test_ranges_and_any(self, table_file: Write) -> None:
        """Sizes may be ranges, the op any; what is left out is not in the row, and narrower rows are named."""
        path = table_file("mine.json", {**EXACT, "configs": [ATEN]})
        result = call("set", path, "any", "--m", "1-100", "--align", "any", "--config", "aten", "--note", "x")
        assert "more specific rows go on answering some of it: 1" in result.output
        (row,) = json.loads(call("query", path, "entries[?note]").output)
        assert row == {"m": [1, 100], "configs": [ATEN], "note": "x"}

    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            (("mm", "--m", "8..9", "--config", "aten", "--note", "x"), 2, "'8..9' is neither a size nor a range like"),
            (("mm", "--m", "9-8", "--config", "aten", "--note", "x"), 2, "error: m: [9, 8] ends before it begins"),
            (("mm", "--m", "0", "--config", "aten", "--note", "x"), 2, "error: m[0]: 0 is not an integer from 1 to"),
            (
                ("mm", "--config", "triton_mm 128", "--note", "x"),
                2,
                "error: 'triton_mm 128' is not a config (expected:",
            ),
            (
                ("mm", "--config", "aten", "--config", "aten", "--note", "x"),
                2,
                "error: configs[1]: aten is listed twice",
            ),
            (("mm", "--config", "aten"), 2, "Missing option '--note'"),
            (("mm", "--config", "triton_bmm 64x64x32 g8 s3 w4", "--note", "x"), 1, "triton_bmm cannot do mm"),
        ],
    )
    def test_wrong_rows_are_not_written(
        self, table_file: Write, arguments: tuple[str, ...], code: int, message: str
    ) -> None:
        """What cannot be asked for exits with 2, what would make the table wrong with 1, and the file stays."""
        path = table_file("mine.json", {**EXACT, "configs": [ATEN]})
        before = path.read_bytes()
        result = call("set", path, *arguments)
        assert result.exit_code == code
        assert message in result.stderr
        assert path.read_bytes() == before

    def test_tables_with_invalid_rows_are_left_alone(self, table_file: Write) -> None:
        """Rows that cannot be read would be lost."""
        path = table_file("mine.json", {"op": "mn", "configs": [ATEN]})
        before = path.read_bytes()
        for result in (call("set", path, *KEY, "--config", "aten", "--note", "x"), call("unset", path, *KEY)):
            assert result.exit_code == 1
            assert "entries[0].op" in result.stderr
        assert path.read_bytes() == before
