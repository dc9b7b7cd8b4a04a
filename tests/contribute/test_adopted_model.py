"""A whole run of ``adopt`` on an H200's recorded timings, the training of the model included."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from diode_lut.contribute import adopt as contribution
from diode_lut.contribute.judge import review
from diode_lut.dataset import Record, Timing, read_dataset
from diode_lut.decide.catalog import open_model
from diode_lut.decide.sources import THRESHOLD, ModelSource
from diode_lut.distill.training import TrainingPlan
from diode_lut.model import TRAIN
from diode_lut.problem import Problem
from diode_lut.table import read_table
from diode_lut.templates.config import ATEN
from tests.commands import call
from tests.contribute import recorded

pytestmark = pytest.mark.slow

TABLE = Path("contribution", "tables", "nvidia-h200.json")
MODEL = TABLE.with_name("nvidia-h200.mlp.safetensors")


def adopt(directory: Path) -> list[str]:
    """Adopt with the set of 128 problems; the lines that are printed at the end."""
    result = call("adopt", "--budget", "600", "--problems", "quick", "--device", "cpu", "-o", directory)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


@pytest.fixture(scope="module")
def adopted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """The directory, and what was printed."""
    directory = tmp_path_factory.mktemp("adopted")
    with pytest.MonkeyPatch.context() as monkeypatch:
        recorded.play_back(monkeypatch)
        monkeypatch.setattr(contribution, "TrainingPlan", lambda: TrainingPlan(epochs=20))
        monkeypatch.setenv("GIT_CONFIG_COUNT", "2")
        for number, (field, value) in enumerate({"user.name": "Ada", "user.email": "ada@example.org"}.items()):
            monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", field)
            monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
        yield directory, adopt(directory)


def test_a_model_is_trained_from_128_problems(adopted: tuple[Path, list[str]]) -> None:
    """It gains on problems that it was not trained on, and answers for GEMMs that the table does not have."""
    directory, lines = adopted
    assert "NVIDIA H200 (sm_90, 132 SMs): 128 problems, " in lines[0]
    assert "model: nvidia-h200.mlp.safetensors" in lines
    model = open_model(directory / MODEL)
    unseen = Problem.of("mm", 24, 50257, 2000, dtype="bfloat16", layout="nt")
    assert read_table(directory / TABLE).lookup(unseen) is None
    answer = ModelSource(model, model.hardware).ask(unseen, THRESHOLD, padding=False)
    assert answer is not None
    assert answer.configs
    assert answer.configs[0] != ATEN


def test_table_and_model_pass_the_check(adopted: tuple[Path, list[str]]) -> None:
    """Nothing is missing in the folder, who measured is as git says it, and the held-out problems are the model's."""
    directory, _ = adopted
    found = review(directory / TABLE, (directory / TABLE).read_bytes())
    assert [str(each) for each in found if not each.note] == []
    (text,) = (each.reason for each in found if "mlp" in each.reason)
    model = open_model(directory / MODEL)
    (dataset,) = (read_dataset(path) for path in directory.rglob("*.zst"))
    held_out = sum(model.split.group(problem) != TRAIN for problem in {record.problem for record in dataset})
    assert text.startswith(f"{held_out} problems, held out, of nvidia-h200.mlp.safetensors: gain over aten ")
    assert dataset.header.measured_by == "Ada <ada@example.org>"


@pytest.mark.slow
def test_a_run_that_is_stopped_while_it_trains_goes_on(
    adopted: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is there without a model, nothing is measured again, and the next run trains the same model."""
    directory, _ = adopted
    table, model = (directory / TABLE).read_bytes(), (directory / MODEL).read_bytes()
    timings = (directory / "timings.msgpack").read_bytes()

    def stopped(*arguments: object) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(contribution, "distill", stopped)
        result = call("adopt", "--budget", "600", "--problems", "quick", "--device", "cpu", "-o", directory)
    assert result.exit_code == 130
    assert "stopped: run the same command again to go on" in result.stderr
    assert (directory / TABLE).read_bytes() == table
    assert not (directory / MODEL).exists()
    adopt(directory)
    assert (directory / MODEL).read_bytes() == model
    assert (directory / "timings.msgpack").read_bytes() == timings


def test_where_aten_is_best_there_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose library is always the fastest gets a table that says so, and the reason why there is no model."""
    recorded.play_back(monkeypatch)
    slow = {key: [_slow(record) for record in runs] for key, runs in recorded.records().items()}
    monkeypatch.setattr(recorded, "records", lambda: slow)
    lines = adopt(tmp_path)
    assert "model: none" in lines
    assert any(line.startswith("no model: no candidate besides aten") for line in lines)
    assert {entry.best.config for entry in read_table(tmp_path / TABLE).entries} == {ATEN}
    assert not (tmp_path / MODEL).exists()


def _slow(record: Record) -> Record:
    """The record, in which everything but aten takes a second."""
    timings = (each if each.config == ATEN or each.ns is None else Timing(each.config, 1e9) for each in record.timings)
    return record._replace(timings=tuple(timings))
