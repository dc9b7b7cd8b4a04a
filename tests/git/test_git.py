"""Tables in a real clone: how git shows and merges them after the set-up."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from diode_lut.cli import COMMANDS
from diode_lut.cli.git import set_up
from diode_lut.errors import SettingError
from diode_lut.table import read_table
from tests.commands import call

ROOT = Path(__file__).parent.parent.parent
SPLITS = [{"template": "decompose_k", "k_split": split} for split in (2, 4, 8)]
Save = Callable[..., None]


def rows(*splits: int) -> list[dict[str, Any]]:
    """One row for each, which differ in a line each and stand next to each other."""
    return [
        {"op": "mm", "m": [number, number], "configs": [SPLITS[split]]} for number, split in enumerate(splits, start=1)
    ]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, a table with three rows, set up."""
    directory = tmp_path / "clone"
    for name, value in {
        "PYTHONPATH": str(ROOT),
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{role}_{field}": "a@b" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")},
    }.items():
        monkeypatch.setenv(name, value)
    (directory / "tables").mkdir(parents=True)
    git(directory, "init", "-q", "-b", "main")
    commit(directory, rows(0, 0, 0))
    set_up(directory, sys.executable)
    return directory


def git(clone: Path, *arguments: str, code: int = 0) -> str:
    completed = subprocess.run(["git", "-C", str(clone), *arguments], capture_output=True, text=True, check=False)
    assert completed.returncode == code, completed.stdout + completed.stderr
    return completed.stdout + completed.stderr


def write(clone: Path, entries: list[dict[str, Any]], indent: int | None = 1) -> Path:
    hardware = {"name": "NVIDIA H200", "arch": "sm_90", "sm_count": 132}
    path = clone / "tables" / "t.json"
    path.write_text(json.dumps({"schema_version": 2, "hardware": hardware, "entries": entries}, indent=indent))
    return path


def commit(clone: Path, entries: list[dict[str, Any]]) -> None:
    write(clone, entries)
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "change")


def branches(clone: Path, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Two branches from the first commit: we are on ours."""
    git(clone, "checkout", "-q", "-b", "theirs")
    commit(clone, theirs)
    git(clone, "checkout", "-q", "main")
    commit(clone, ours)


def test_diff_speaks_of_kernels(clone: Path) -> None:
    """The kernel before and after is shown, below the row that it belongs to."""
    write(clone, rows(0, 1, 0))
    changed = git(clone, "diff").splitlines()
    assert [line for line in changed if line.startswith(("+ ", "- "))] == ["-  decompose_k 2", "+  decompose_k 4"]
    assert " mm m 2" in changed
    commit(clone, rows(0, 1, 0))
    assert "+  decompose_k 4" in git(clone, "log", "-p", "-1")


def test_check_notes_a_gain_that_the_last_commit_has_for_another_config(clone: Path) -> None:
    """A row whose config was changed by hand keeps the old config's gain. A gain that moves with its config is fine."""
    gains = [{**split, "gain_permille": gain} for split, gain in zip(SPLITS, (1100, 1200, 1300), strict=True)]
    before = [{"op": "mm", "m": [each, each], "configs": gains[:2]} for each in (1, 2)]
    commit(clone, before)
    edited = {**before[0], "configs": [{**gains[0], "k_split": 8}, gains[1]]}
    checked = call("check", write(clone, [edited, {**before[1], "configs": [gains[1], gains[0]]}]), "--format", "json")
    (note,) = (each for each in json.loads(checked.stdout) if each["severity"] == "note")
    assert note["where"] == "entries[0].configs[0].gain_permille"
    assert note["reason"].startswith("the gain 1100 was measured for decompose_k 2 (")
    commit(clone, [edited])
    assert "gain 1100" not in call("check", clone / "tables" / "t.json").output


def test_white_space_and_order_are_no_difference(clone: Path) -> None:
    """A table in another form is shown as one that did not change."""
    write(clone, rows(0, 0, 0)[::-1], indent=None)
    assert "@@" not in git(clone, "diff")


def test_what_is_no_table_is_shown_as_it_is(clone: Path) -> None:
    """A file that cannot be read as a table still has a diff."""
    (clone / "tables" / "t.json").write_text("[1]\n", encoding="utf-8")
    assert "+[1]" in git(clone, "diff")


def test_models_show_their_metadata(clone: Path) -> None:
    """Of a safetensors file the metadata and the tensors' shapes are shown."""
    header = {"__metadata__": {"features": "v1"}, "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    data = json.dumps(header).encode()
    (clone / "x.mlp.safetensors").write_bytes(len(data).to_bytes(8, "little") + data + bytes(24))
    git(clone, "add", "-A")
    shown = git(clone, "diff", "--cached", "x.mlp.safetensors")
    assert "+features: v1" in shown
    assert "+w F32 [2, 3]" in shown


def test_neighbouring_rows_merge(clone: Path) -> None:
    """Two people's changes of rows that stand next to each other, which git alone calls a conflict, come together."""
    branches(clone, rows(1, 0, 0), rows(0, 2, 0))
    git(clone, "merge", "-q", "-m", "merged", "theirs")
    entries = read_table(clone / "tables" / "t.json").entries
    assert [str(entry.configs[0]) for entry in entries] == ["decompose_k 4", "decompose_k 8", "decompose_k 2"]


def test_a_conflict_stops_the_merge_and_leaves_a_table(clone: Path) -> None:
    """Git reports the file as unmerged; its note names the other kernel, and nothing in it breaks a reader."""
    branches(clone, rows(1, 0, 0), rows(2, 0, 0))
    said = git(clone, "merge", "theirs", code=1)
    assert "CONFLICT: mm m 1: ours decompose_k 4, theirs decompose_k 8" in said
    assert git(clone, "diff", "--name-only", "--diff-filter=U") == "tables/t.json\n"
    assert read_table(clone / "tables" / "t.json").entries[0].note is not None


@pytest.mark.parametrize(
    ("prefer", "expected", "left"), [("ours", "decompose_k 4", 0), ("theirs", "decompose_k 8", 0), ("best", None, 1)]
)
@pytest.mark.parametrize("driver", [True, False], ids=["set up", "not set up"])
def test_conflicts_are_resolved_as_asked(
    prefer: str, expected: str | None, left: int, driver: bool, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of the side that is named stay, without git's markers and our notes; other changes are merged."""
    if not driver:
        (clone / ".git" / "info" / "attributes").unlink()
    branches(clone, rows(1, 0, 0), rows(2, 2, 0))
    git(clone, "merge", "theirs", code=1)
    monkeypatch.chdir(clone / "tables")
    result = call("resolve", f"--{prefer}", "t.json")
    assert result.exit_code == left, result.output
    assert f"t.json: {1 - left} of 1 conflict decided" in result.stdout
    entries = read_table(clone / "tables" / "t.json").entries
    assert str(entries[1].configs[0]) == "decompose_k 8"
    if expected:
        assert (str(entries[0].configs[0]), entries[0].note) == (expected, None)


@pytest.mark.parametrize("driver", [True, False], ids=["set up", "not set up"])
def test_line_ends_of_windows(driver: bool, clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where git writes files with CRLF, tables stay in canonical form once git is set up, and conflicts are decided."""
    table = clone / "tables" / "t.json"
    if not driver:
        (clone / ".git" / "info" / "attributes").unlink()
    branches(clone, rows(1, 0, 0), rows(2, 0, 0))
    git(clone, "config", "core.autocrlf", "true")
    table.unlink()
    git(clone, "checkout", "-q", "tables/t.json")
    assert (b"\r\n" in table.read_bytes()) is not driver
    git(clone, "merge", "theirs", code=1)
    monkeypatch.chdir(clone)
    assert call("resolve", "--ours", "tables/t.json").exit_code == 0
    git(clone, "commit", "-q", "-a", "-m", "merged")
    table.unlink()
    git(clone, "checkout", "-q", "tables/t.json")
    assert call("check", "tables/t.json").exit_code == int(not driver)


def test_a_version_that_is_no_table_is_named(clone: Path) -> None:
    """Of three versions in temporary files, messages say whose it is, and by the path that people know."""
    git(clone, "checkout", "-q", "-b", "theirs")
    (clone / "tables" / "t.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    git(clone, "commit", "-q", "-a", "-m", "to LFS")
    git(clone, "checkout", "-q", "main")
    commit(clone, rows(1, 0, 0))
    said = git(clone, "merge", "theirs", code=1)
    assert "tables/t.json (theirs): a pointer of Git LFS, not a table (`git lfs pull` fetches the table)" in said


def test_the_larger_gain_is_best(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the noise that merge leaves to people, --best takes the row that gains more."""
    ours, theirs = rows(1, 0, 0), rows(2, 0, 0)
    for row, gain in ((ours[0], 1200), (theirs[0], 1210)):
        row["configs"] = [{**row["configs"][0], "gain_permille": gain}]
    branches(clone, ours, theirs)
    git(clone, "merge", "theirs", code=1)
    monkeypatch.chdir(clone)
    assert call("resolve", "--best", "tables/t.json").exit_code == 0
    assert str(read_table(clone / "tables" / "t.json").entries[0].configs[0]) == "decompose_k 8"


def test_one_side_removed_a_row(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that ours removed and theirs changed is gone with --ours."""
    branches(clone, rows(0, 0), rows(0, 0, 2))
    git(clone, "merge", "theirs", code=1)
    monkeypatch.chdir(clone)
    assert call("resolve", "--ours", "tables/t.json").exit_code == 0
    assert len(read_table(clone / "tables" / "t.json").entries) == 2


def test_what_was_edited_since_the_merge_is_left_alone(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that somebody wrote is lost, and a file that is not in conflict is said to be none."""
    monkeypatch.chdir(clone)
    assert "is not in conflict" in call("resolve", "--ours", "tables/t.json").stderr
    branches(clone, rows(1, 0, 0), rows(2, 0, 0))
    git(clone, "merge", "theirs", code=1)
    assert call("set", "tables/t.json", "bmm", "--m", "7", "--config", "aten", "--note", "x").exit_code == 0
    result = call("resolve", "--ours", "tables/t.json")
    assert (result.exit_code, "was edited since the merge" in result.stderr) == (2, True)
    assert len(read_table(clone / "tables" / "t.json").entries) == 4


def test_set_up_again_changes_nothing(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attributes are written once, other lines stay, and nothing that is committed changes."""
    attributes = clone / ".git" / "info" / "attributes"
    attributes.write_bytes(b"*.png binary\n\xe9.txt text\n" + attributes.read_bytes())
    before = attributes.read_bytes(), (clone / ".git" / "config").read_text(encoding="utf-8")
    monkeypatch.chdir(clone / "tables")
    assert call("git-setup").exit_code == 0
    assert (attributes.read_bytes(), (clone / ".git" / "config").read_text(encoding="utf-8")) == before
    assert git(clone, "status", "--short") == ""


def test_tables_may_be_elsewhere(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns that are given count, also in a linked working tree."""
    git(clone, "worktree", "add", "-q", "../linked")
    monkeypatch.chdir(clone.parent / "linked")
    assert call("git-setup", "lut/*.json").exit_code == 0
    assert git(clone, "check-attr", "merge", "lut/t.json") == "lut/t.json: merge: diode-lut\n"


def test_without_a_clone_there_is_nothing_to_set_up(tmp_path: Path) -> None:
    """The message is git's own."""
    with pytest.raises(SettingError, match=r"not a git repository.*; run this in a clone"):
        set_up(tmp_path, sys.executable)


def test_hooks_for_pre_commit_call_commands() -> None:
    """Each hook runs one of our commands, on tables and not on the schemas beside them."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert [hook["id"] for hook in hooks] == ["diode-lut-check", "diode-lut-fmt"]
    for hook in hooks:
        program, command = hook["entry"].split()
        assert (program, command in COMMANDS) == ("diode-lut", True)


@pytest.mark.parametrize(
    "pattern", ["", "a b.json", "x\n* merge=other", "../*.json", "!t.json", "#t", "[attr]x", 'say "t"', "t\0.json"]
)
def test_a_pattern_cannot_say_anything_else(clone: Path, pattern: str) -> None:
    """What would be another line of the attributes, or climbs out of the clone, is refused, and nothing is written."""
    attributes = clone / ".git" / "info" / "attributes"
    before = attributes.read_bytes()
    with pytest.raises(SettingError, match=r"is not one of files in the clone \(allowed: "):
        set_up(clone, sys.executable, ["good/*.json", pattern])
    assert attributes.read_bytes() == before
