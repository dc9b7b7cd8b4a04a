"""``check --contribution``: the one command that a pull request with a table passes or fails."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diode_lut.dataset import read_dataset
from diode_lut.table import read_table, write_table
from tests.commands import call
from tests.contribute.contributions import SHIPPED, changed, contribute, pack_records, rebuild, some_records

ROOT = Path(__file__).parents[2]


def test_the_folder_passes(tmp_path: Path) -> None:
    """A folder stands for its tables; the exit code is 0, and the figures are notes."""
    table = contribute(tmp_path, 4)
    result = call("check", "--contribution", tmp_path, "--format", "json")
    assert result.exit_code == 0, result.output
    listed = json.loads(result.stdout)
    assert {(each["path"], each["severity"]) for each in listed} == {(str(table), "note")}
    assert any(each["reason"].startswith("4 measured problems: gain over aten 1.") for each in listed)


@pytest.mark.slow
def test_everything_is_checked_at_once(tmp_path: Path) -> None:
    """One run names a form that is not canonical, a config that does not compile, and a name that is missing."""
    contribute(tmp_path, 2)
    dataset = tmp_path / "tables" / "datasets" / "nvidia-h200-some.msgpack.zst"
    header = read_dataset(SHIPPED).header
    old = header._replace(hardware=header.hardware._replace(arch="sm_20"))
    pack_records(some_records(2), dataset, old, measured_by="")
    table = rebuild(tmp_path)
    write_table(changed(table, entries=read_table(table).entries[::-1]), table)
    table.write_bytes(table.read_bytes() + b"\n")
    result = call("check", "--contribution", tmp_path)
    assert result.exit_code == 1
    assert "is not in canonical form (fmt writes it so)" in result.stdout
    assert " does not compile for sm_20: " in result.stdout
    assert "provenance: measured_by is missing" in result.stdout


class Clone:
    """A repository with the job of continuous integration, and one commit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / ".ci").mkdir(parents=True)
        shutil.copy(ROOT / ".ci" / "contributed", path / ".ci")
        self.git("init", "--quiet")
        self.commit("Begin")

    def git(self, *arguments: str) -> str:
        """What git prints."""
        person = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
        command = ["git", *person, *arguments]
        return subprocess.run(command, cwd=self.path, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, message: str) -> None:
        """Commit everything."""
        self.git("add", "--all", ".")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)

    def in_ci(self, *arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
        """Run the job as continuous integration does."""
        command = [self.path / ".ci" / "contributed", *arguments]
        environment = {**os.environ, "PYTHON": python, "FORMAT": "github"}
        return subprocess.run(command, env=environment, text=True, capture_output=True, check=False)


@pytest.mark.slow
def test_ci_checks_the_example(tmp_path: Path) -> None:
    """The job passes a real contribution, and ``.ci/run`` calls it so."""
    clone = Clone(tmp_path)
    everything = clone.git("hash-object", "-t", "tree", "/dev/null")
    example = Path("examples", "contribution")
    shutil.copytree(ROOT / example, tmp_path / example)
    clone.commit("Contribute")
    passed = clone.in_ci(everything, str(example))
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert f'.ci/contributed "$(git hash-object -t tree /dev/null)" {example}' in (ROOT / ".ci" / "run").read_text()


@pytest.mark.slow
def test_ci_checks_the_tables_that_a_branch_changed(tmp_path: Path) -> None:
    """Its exit code is that of the check, its lines annotate the pull request, and other tables are left alone."""
    clone = Clone(tmp_path)
    table = contribute(tmp_path, 2)
    shutil.copy(table, table.with_name("another.json"))
    clone.commit("Add tables")
    refused = clone.in_ci("HEAD~1")
    assert refused.returncode == 1
    assert "::error file=tables/another.json," in refused.stdout
    assert "hardware: the file is called another.json" in refused.stdout
    clone.git("rm", "--quiet", "tables/another.json")
    clone.commit("Remove a copy")
    assert clone.in_ci("HEAD~1", python="echo").stdout == "no table was changed\n"
    dataset = next(table.parent.rglob("*.zst"))
    dataset.write_bytes(dataset.read_bytes() + b"more")
    clone.commit("Damage a dataset")
    checked = "-m diode_lut check --contribution --format github tables/nvidia-h200.json\n"
    assert clone.in_ci("HEAD~1", python="echo").stdout == checked


def test_a_folder_without_tables_is_none(tmp_path: Path) -> None:
    """The message says which folder is meant."""
    result = call("check", "--contribution", tmp_path)
    assert result.exit_code == 1
    assert f"error: {tmp_path}: has no tables/*.json" in result.stderr


def test_a_file_that_is_no_table_is_said_once(tmp_path: Path) -> None:
    """What cannot be read is not reviewed."""
    (tmp_path / "mine.json").write_text("{}")
    result = call("check", "--contribution", tmp_path / "mine.json")
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 1
