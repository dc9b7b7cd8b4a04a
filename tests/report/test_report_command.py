"""The command report."""

import json
import re
import sys
from functools import partial
from pathlib import Path

import pytest

from diode_lut.dataset import read_dataset
from diode_lut.errors import install_command
from diode_lut.hardware import Hardware
from tests.commands import call
from tests.report.measured import write_dataset

pytestmark = pytest.mark.usefixtures("no_tables")
report = partial(call, "report")


def test_writes_one_page(tmp_path: Path, table: Path, dataset: Path) -> None:
    """The page is self-contained, its policy forbids requests, and the command prints one line."""
    page = tmp_path / "r.html"
    result = report(table, dataset, "-o", page)
    text = page.read_text()
    size = page.stat().st_size
    assert (result.exit_code, result.stdout) == (0, f"{page}: 3 rows, 5 problems, {size} bytes\n")
    assert size < 2_000_000
    assert "default-src 'none'" in text
    assert re.findall(r'<(?:script|link)[^>]* (?:src|href)="(?!data:)', text) == []


def test_notes_are_data(tmp_path: Path, table: Path) -> None:
    """A note that looks like the end of a script does not end one."""
    report(table, "-o", tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert text.count("</script>") == 3
    assert r"\u003c/script>\u003cimg src=x" in text


def test_the_title_is_text(tmp_path: Path, table: Path) -> None:
    """HTML in the name of a table is escaped in the title."""
    odd = table.rename(tmp_path / "<b>&amp;.json")
    report(odd, "-o", tmp_path / "r.html")
    assert "<title>&lt;b&gt;&amp;amp;.json</title>" in (tmp_path / "r.html").read_text()


def test_links_lead_to_the_table(tmp_path: Path, table: Path) -> None:
    """Links are relative to the page, or below the URL of --link-base."""
    (tmp_path / "out").mkdir()
    page = tmp_path / "out" / "r.html"
    report(table.rename(tmp_path / "my table.json"), "-o", page)
    assert '"links":["../my%20table.json"]' in page.read_text()
    report(tmp_path / "my table.json", "-o", page, "--link-base", "https://example.org/blob/main/tables/")
    assert '"links":["https://example.org/blob/main/tables/my%20table.json"]' in page.read_text()


def test_invalid_rows_are_counted(tmp_path: Path, table: Path) -> None:
    """The page has the number of invalid rows, which are left out."""
    table.write_text(table.read_text().replace('"addmm"', '"addmn"'))
    result = report(table, "-o", tmp_path / "r.html")
    assert result.exit_code == 0
    assert '"invalid":1' in (tmp_path / "r.html").read_text()


def test_datasets_that_are_not_given_are_counted(tmp_path: Path, table: Path, dataset: Path) -> None:
    """Beside some of the datasets of the provenance, the page and the command say how many are missing."""
    document = json.loads(table.read_text())
    given = f"sha256:{read_dataset(dataset).digest}"
    for others in (["sha256:" + "1" * 64], []):
        document["provenance"] = {"datasets": [given, *others]}
        table.write_text(json.dumps(document))
        result = report(table, dataset, "-o", tmp_path / "r.html")
        assert f'"missing":{len(others)}' in (tmp_path / "r.html").read_text()
        said = "note: 1 of the 2 datasets that the table was built from is not given: sha256:111111111111 "
        assert (result.exit_code, said in result.stderr) == (0, bool(others))
        assert (said in call("evaluate", table, dataset).stderr) == bool(others)
    assert "not given" not in report(table, "-o", tmp_path / "r.html").stderr


def test_another_gpu_is_refused(tmp_path: Path, table: Path) -> None:
    """A dataset of other hardware than the table's is an error that names both, and nothing is written."""
    other = write_dataset(tmp_path / "d", Hardware("NVIDIA H100", "sm_90", 132))
    result = report(table, other, "-o", tmp_path / "r.html")
    assert (result.exit_code, result.stdout, (tmp_path / "r.html").exists()) == (1, "", False)
    assert all(word in result.stderr for word in ("NVIDIA H100", "NVIDIA H200", str(other), str(table)))


def test_what_is_no_table_or_dataset_is_1(tmp_path: Path, table: Path) -> None:
    """A file that is not a table or a dataset is an error of one line that names it."""
    (tmp_path / "bad").write_text("no")
    for files in ((tmp_path / "bad",), (table, tmp_path / "bad")):
        result = report(*files, "-o", tmp_path / "r.html")
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        assert str(tmp_path / "bad") in result.stderr


def test_what_cannot_be_read_or_written_is_2(tmp_path: Path, table: Path, dataset: Path) -> None:
    """A missing table or dataset, or no directory for the page, is exit code 2, and the message names it."""
    gone = tmp_path / "gone"
    for arguments in ((gone, "-o", tmp_path / "r"), (table, gone, "-o", tmp_path / "r"), (table, "-o", gone / "r")):
        result = report(*arguments)
        assert (result.exit_code, result.stdout, str(gone) in result.stderr) == (2, "", True)
    assert report(table, dataset).exit_code == 2


def test_without_the_library_is_2(tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing library is an error that says what to install."""
    for name in ("vl_convert", "diode_lut.report", "diode_lut.report"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    result = report(table, "-o", tmp_path / "r.html")
    assert result.exit_code == 2
    assert "vl_convert" in result.stderr
    assert f"{install_command('report')}" in result.stderr
