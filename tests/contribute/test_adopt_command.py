import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diode_lut.cli import main
from diode_lut.contribute import adopt as adopting
from diode_lut.contribute.adopt import FIRST_BATCH
from diode_lut.contribute.judge import review
from diode_lut.dataset import read_dataset
from diode_lut.hardware import detect_hardware, slug
from diode_lut.measure import MEASURERS, METHODS
from diode_lut.table import read_table
from diode_lut.templates.config import Config
from tests.contribute import measurers
from tests.contribute.measurers import KERNELS, LOOPED, best, problems, record_kernels
from tests.measure.collection import outcomes


def adopted(directory: Path, count: int, *options: str) -> Result:
    """What the command does with some problems and a budget that is never used up."""
    file = directory / "mine.json"
    file.write_text(json.dumps([problem.to_json() for problem in problems(count)]))
    arguments = ["--problems", str(file), "--device", "cpu", "-o", str(directory / "out"), "--budget", "60"]
    return CliRunner().invoke(main, ["adopt", *arguments, *options])


def device() -> str:
    return slug(detect_hardware("cpu").name)


def sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure in the stages of a sweep, on the CPU."""
    for stage in METHODS["sweep"]:
        monkeypatch.setitem(MEASURERS, stage, f"tests.contribute.measurers:{stage}")
    monkeypatch.setattr("diode_lut.measure.collector.finalists", measurers.finalists)
    monkeypatch.setitem(METHODS, "autotune", METHODS["sweep"])


@pytest.fixture
def legal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What gains most is a kernel that a CPU has."""
    monkeypatch.setattr(measurers, "SPLITS", [Config.parse("cpp_gemm")])


@pytest.mark.slow
@pytest.mark.usefixtures("legal")
def test_a_folder_is_ready_to_contribute(tmp_path: Path) -> None:
    """It has the table, the page and a README with the figures, and others can rebuild it."""
    result = adopted(tmp_path, 40, "--measured-by", "Ada")
    assert result.exit_code == 0, result.output
    tables = tmp_path / "out" / "contribution" / "tables"
    dataset = read_dataset(tables / "datasets" / f"{device()}-mine.msgpack.zst")
    assert [record.problem for record in dataset] == sorted(problems(40))
    assert dataset.header.measured_by == "Ada"
    table = tables / f"{device()}.json"
    measured, held_out = review(table, table.read_bytes())
    assert measured.note
    assert held_out.note
    assert "40 measured problems: gain over aten 1.3" in measured.reason
    table = read_table(tables / f"{device()}.json")
    for problem in problems(40):
        entry = table.lookup(problem)
        assert entry is not None
        assert entry.configs[0] == best(problem)
    readme = (tmp_path / "out" / "contribution" / "README.md").read_text()
    assert "difference between two measurements of a gain: 0.0%" in readme
    assert "no model: " in readme
    assert "gain over aten of all answers: 1.3" in result.stdout
    assert "ready to contribute" in result.stdout
    assert "<html" in (tmp_path / "out" / "contribution" / "report.html").read_text()


@pytest.mark.usefixtures("legal")
def test_what_a_contribution_lacks_is_said(tmp_path: Path) -> None:
    """A folder that `check --contribution` would refuse is not called ready, and the reasons are those of the check."""
    result = adopted(tmp_path, 40, "--measured-by", "")
    assert result.exit_code == 0, result.output
    assert "ready to contribute" not in result.stdout
    table = tmp_path / "out/contribution/tables" / f"{device()}.json"
    (fault,) = [each for each in review(table, table.read_bytes()) if not each.note]
    assert f"  {fault}" in result.stdout.splitlines()
    assert "measured_by is missing" in str(fault)


def test_it_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is interrupted leaves its timings, and the next one measures only the others."""

    def interrupted(*arguments: object) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(adopting, "_pack_finished", interrupted)
        first = adopted(tmp_path, 20)
    assert first.exit_code == 130
    assert "stopped: run the same command again to go on" in first.stderr
    assert not list((tmp_path / "out").rglob("*.json"))
    timings = tmp_path / "out" / "timings.msgpack"
    data = timings.read_bytes()
    assert adopted(tmp_path, 30).exit_code == 0
    assert timings.read_bytes().startswith(data)
    assert sorted(record.problem for record in read_dataset(timings)) == sorted(problems(30))


def test_only_finished_problems_are_built_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A problem that was swept but has no careful times is in the timings, and neither in the dataset nor the table."""
    sweep(monkeypatch)
    result = adopted(tmp_path, 20)
    assert result.exit_code == 0, result.output
    assert "skipped bmm 2x20x64x64 float32 nn align 16: for a test" in result.stderr
    (unfinished,) = (problem for problem in problems(20) if problem.m == measurers.UNFINISHED)
    (path,) = (tmp_path / "out" / "contribution").rglob("*.zst")
    dataset = list(read_dataset(path))
    assert {record.stage for record in dataset} == {"sweep", "final"}
    assert {record.problem for record in dataset} == set(problems(20)) - {unfinished}
    assert unfinished in {record.problem for record in read_dataset(tmp_path / "out" / "timings.msgpack")}


def test_recorded_kernels_are_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generated kernels of a program are measured first, and again, and the table has rows for them."""
    sweep(monkeypatch)
    record_kernels(tmp_path / "kernels")
    result = adopted(tmp_path, 8, "--kernels", str(tmp_path / "kernels"))
    assert result.exit_code == 0, result.output
    assert "20 of 20 problems are done" in result.stderr
    table = read_table(next((tmp_path / "out" / "contribution" / "tables").glob("*.json")))
    for problem in KERNELS:
        entry = table.lookup(problem)
        assert entry is not None
        assert entry.configs[0] == LOOPED
    assert "answers other than aten that were measured again: 19" in result.stdout


def test_directory_without_kernels(tmp_path: Path) -> None:
    """It is refused before anything is measured, with the command that records kernels."""
    (tmp_path / "kernels").mkdir()
    result = adopted(tmp_path, 8, "--kernels", str(tmp_path / "kernels"))
    assert result.exit_code == 1
    assert "no kernel is recorded there (`diode-lut run --kernels`" in result.stderr
    assert not (tmp_path / "out").exists()


def test_noise_is_not_built_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where gains differ when they are measured again, no table is written, and the reason is said in one line."""
    monkeypatch.setattr(measurers, "noise", 0.4)
    result = adopted(tmp_path, 60)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("error: no table is built: ")
    assert "what is measured is kept" in result.stderr
    assert (tmp_path / "out" / "timings.msgpack").exists()
    assert not list((tmp_path / "out").rglob("*.json"))


def test_the_first_problems_are_measured_first(tmp_path: Path) -> None:
    """Batches go through all stages one after the other, in the order of the set."""
    adopted(tmp_path, FIRST_BATCH + 10)
    found = [record.problem for record in read_dataset(tmp_path / "out" / "timings.msgpack")]
    assert set(found[:FIRST_BATCH]) == set(problems(FIRST_BATCH))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Missing option '--budget'"),
        (["--budget", "0"], "'0' is not a time above zero"),
        (
            ["--budget", "1", "--problems", "modles"],
            "modles: no such file, and no shipped set (models, llm, quick, fp8, int8, attention, grouped)",
        ),
    ],
)
def test_wrong_usage_exits_2(options: list[str], message: str) -> None:
    """A budget is needed, and problems that exist."""
    result = CliRunner().invoke(main, ["adopt", *options])
    assert result.exit_code == 2
    assert message in result.stderr


def test_times_that_cannot_be_true_are_measured_again(tmp_path: Path) -> None:
    """A GEMM that took far longer than it can is skipped, with the reason, and the next collection measures it."""
    path, wanted = tmp_path / "t.msgpack", problems(2)
    measurers.disturbed.add(wanted[1].m)
    try:
        first = {each.problem: each for each in outcomes(wanted, path, device="cpu")}
    finally:
        measurers.disturbed.clear()
    assert [first[problem].status for problem in wanted] == ["measured", "skipped"]
    assert first[wanted[1]].reason.startswith("aten took 17000.0 ms, where ")
    assert first[wanted[1]].reason.endswith(" ms are possible: measure while nothing else runs")
    again = {each.problem: each.status for each in outcomes(wanted, path, device="cpu")}
    assert again == dict(zip(wanted, ["present", "measured"], strict=True))
