"""The diff command: two tables in, what is different out."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from diode_lut.dataset import DatasetWriter, Header, Record, Timing
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config
from tests.commands import call

A, B = (Config("triton_mm", (size, 64, 32, 8, 3, 4)) for size in (16, 64))
KEY = {"op": "mm", "dtype": "float16"}
diff = partial(call, "diff")


@pytest.fixture
def old(table_file: Callable[..., Path]) -> Path:
    rows = ({**KEY, "m": [1, 8], "configs": [A.to_json()]}, {**KEY, "m": [9, 16], "configs": [A.to_json()]})
    return table_file("old.json", *rows)


@pytest.fixture
def new(table_file: Callable[..., Path]) -> Path:
    rows = (
        {**KEY, "m": [1, 8], "configs": [{**B.to_json(), "gain_permille": 1100}]},
        {**KEY, "m": [9, 12], "configs": [A.to_json()], "note": "a | b"},
        {**KEY, "m": [13, 13], "configs": [{"template": "aten"}]},
    )
    return table_file("new.json", *rows)


def dataset(path: Path, hardware: str = "NVIDIA H200") -> Path:
    """A takes 100 ns, B 110, aten 121."""
    with DatasetWriter(path, Header(Hardware(hardware, "sm_90", 132))) as writer:
        timings = (Timing(A, 100.0), Timing(B, 110.0), Timing(ATEN, 121.0))
        writer.append(Record(Problem("mm", "float16", "nn", 16, 1, 1, 8, 8), timings))
        writer.append(Record(Problem("mm", "float16", "nn", 16, 1, 14, 8, 8), timings))
    return path


def test_says_what_became_of_each_row(old: Path, new: Path) -> None:
    """Rows are named by what they cover, changes by the kernels before and after; the exit code is 1."""
    result = diff(old, new)
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.splitlines() == [
        f"{old} -> {new}",
        "winner    mm float16 m 1-8",
        "          triton_mm 16x64x32 g8 s3 w4 -> triton_mm 64x64x32 g8 s3 w4 (1.100)",
        "narrowed  mm float16 m 9-16 -> mm float16 m 9-12",
        "          triton_mm 16x64x32 g8 s3 w4",
        "added     mm float16 m 13",
        "          aten",
        "rows: 1 with another winner, 1 added, 1 narrowed",
    ]


def test_the_same_in_another_form_is_the_same(old: Path, tmp_path: Path) -> None:
    """Neither the order of rows nor white space counts; the exit code is 0."""
    document = json.loads(old.read_text(encoding="utf-8"))
    document["entries"].reverse()
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document), encoding="utf-8")
    result = diff(old, other)
    assert (result.exit_code, result.stdout.splitlines()[1:]) == (0, ["no differences"])


def test_a_dataset_says_what_it_does_to_time(old: Path, new: Path, tmp_path: Path) -> None:
    """Coverage, the number of problems affected, the mean and the worst change are given."""
    lines = diff(old, new, "--dataset", dataset(tmp_path / "d")).stdout.splitlines()
    start = lines.index("coverage: 100.0% -> 50.0% of 2 measured problems")
    assert lines[start + 1 :] == [
        "problems affected: 2, of which 2 with both times known",
        "time: +15.37% in the geometric mean, +21.00% at worst, +10.00% at best",
        "largest losses:",
        f"  +21.00% on mm 14x8x8 float16 nn align 16: {A} -> aten",
        f"  +10.00% on mm 1x8x8 float16 nn align 16: {A} -> {B}",
    ]


def test_json_has_the_rows_and_the_figures(old: Path, new: Path, tmp_path: Path) -> None:
    """Programs get every change with both rows as tables have them, and every affected problem."""
    document = json.loads(diff(old, new, "--format", "json", "--dataset", dataset(tmp_path / "d")).stdout)
    assert [change["kind"] for change in document["rows"]] == ["winner", "narrowed", "added"]
    assert document["rows"][2]["old"] is None
    assert document["rows"][1]["new"]["note"] == "a | b"
    assert document["effect"]["mean_change"] == pytest.approx(0.153690, abs=1e-6)
    assert document["effect"]["switches"][0]["problem"]["m"] == 14


def test_markdown_shows_names_as_they_are(old: Path, new: Path) -> None:
    """Nothing in a table means anything to Markdown; each change is one row of its table."""
    text = diff(old, new, "--format", "markdown").stdout
    assert "| narrowed | mm float16 m 9-16 → mm float16 m 9-12 | triton\\_mm 16x64x32 g8 s3 w4 |" in text
    assert text.index("- rows: 1 with another winner") < text.index("<details>")


def test_markdown_fits_a_comment(table_file: Callable[..., Path]) -> None:
    """However many rows change, the text stays below GitHub's 65,536 characters and says how many are left out."""
    rows = [{**KEY, "m": [m, m], "n": [m, m], "configs": [A.to_json()]} for m in range(1, 2001)]
    text = diff(table_file("none.json"), table_file("many.json", *rows), "--format", "markdown").stdout
    assert len(text) < 65_536
    assert "and 1850 more" in text


def test_other_hardware_is_refused(old: Path, new: Path, tmp_path: Path) -> None:
    """Times of another device say nothing about these tables."""
    result = diff(old, new, "--dataset", dataset(tmp_path / "d", "NVIDIA H100"))
    assert result.exit_code == 1
    assert "measured on NVIDIA H100" in result.stderr


@pytest.mark.parametrize(("content", "message"), [(None, "cannot be read"), ("{", "not JSON"), ("{}", "not a table")])
def test_what_is_no_table_is_wrong_usage(old: Path, tmp_path: Path, content: str | None, message: str) -> None:
    """The exit code is 2, which no difference has, whatever keeps a file from being a table."""
    other = tmp_path / "other.json"
    if content is not None:
        other.write_text(content, encoding="utf-8")
    result = diff(old, other)
    assert (result.exit_code, message in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("m[0] > `8`", ["narrowed", "added"]),
        ('contains(note, `"a | b"`)', ["narrowed"]),
        ('configs[0].template == `"aten"`', ["added"]),
        ("m[0] > `13`", []),
    ],
)
def test_a_filter_leaves_rows_for_which_it_holds(old: Path, new: Path, condition: str, rows: list[str]) -> None:
    """--filter is a JMESPath condition on a row before or after; the exit code is that of the rows shown."""
    result = diff(old, new, "--filter", condition, "--format", "json")
    assert [row["kind"] for row in json.loads(result.stdout)["rows"]] == rows
    assert result.exit_code == bool(rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--filter", "m < `8`"], "for --filter: m is a list, which has no order with a number"),
        (["--filter", "op == bmm"], "for --filter: no field is called bmm"),
        (["--filter", "]"], "for --filter: invalid token"),
        (["--filter", "m", "--dataset", "x"], "--filter and --dataset exclude each other"),
    ],
)
def test_a_wrong_filter(old: Path, new: Path, arguments: list[str], message: str) -> None:
    """What is no condition on rows is wrong usage, in one message."""
    result = diff(old, new, *arguments)
    assert (result.exit_code, message in result.stderr) == (2, True)
