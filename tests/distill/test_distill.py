"""Distilling a synthetic device: what is learned, held out, written and printed."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from diode_lut.dataset import Dataset, DatasetWriter, Header, Record, Timing, read_dataset
from diode_lut.distill import Distilled, distill
from diode_lut.distill.training import TrainingPlan
from diode_lut.errors import DatasetError, ModelError, install_command
from diode_lut.model import TEST, TRAIN, Split, parse_family
from diode_lut.model.weights import read_model, write_model
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN
from tests.commands import call
from tests.distill.synthetic import CONFIGS, problems, time, write
from tests.model.small import H200, LARGE

PLAN = TrainingPlan(epochs=40)
SPLIT = Split(0, 0.2, (parse_family("m=4096"),))


@pytest.fixture(scope="module")
def dataset_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("distill") / "x.msgpack", 120)


@pytest.fixture(scope="module")
def distilled(dataset_file: Path) -> Distilled:
    return distill([read_dataset(dataset_file)], SPLIT, PLAN)


def test_choices_are_good_on_unseen_problems(distilled: Distilled) -> None:
    """On problems of the test split, first choices are near the best, and faster than aten."""
    validation = distilled.validations["test"]
    assert len(validation.choices) >= 10
    assert validation.tops[1] < 1.1
    assert validation.tops[5] < 1.02
    assert validation.gain > 1.1
    assert validation.rmse < 0.3


def test_expected_times_are_those_measured(distilled: Distilled) -> None:
    """On a training problem, the expected times over aten's are close to the measured ones."""
    known = next(problem for problem in problems(120) if SPLIT.group(problem) == "train" and problem.m == 1024)
    ranking = distilled.model.rank(known)
    assert ranking is not None
    for config, expected in list(zip(ranking.configs, ranking.times, strict=True))[:5]:
        assert expected == pytest.approx(time(config, known) / time(ATEN, known), rel=0.15)


def test_groups_are_kept_apart(distilled: Distilled) -> None:
    """Problems of the test split and of left-out families are validated per group, and not trained on."""
    names = [SPLIT.group(problem) for problem in problems(120)]
    assert set(distilled.validations) == {"test", "m=4096:4096"}
    assert distilled.training_problems == names.count("train")
    left_out = distilled.validations["m=4096:4096"]
    assert (len(left_out.choices), left_out.unknown) == (0, names.count("m=4096:4096")), "beyond the sizes it saw"


@pytest.mark.slow
def test_a_seed_gives_one_model(dataset_file: Path, distilled: Distilled, tmp_path: Path) -> None:
    """Distilling again gives the same file byte for byte, with another number of threads as well."""
    files = [tmp_path / name for name in ("first.safetensors", "second.safetensors")]
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 2)
    try:
        again = distill([read_dataset(dataset_file)], SPLIT, PLAN)
        assert torch.get_num_threads() == threads + 2
    finally:
        torch.set_num_threads(threads)
    for path, each in zip(files, (distilled, again), strict=True):
        write_model(each.model, path)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_classes_of_epilogues_are_trained_and_validated(dataset_file: Path) -> None:
    """A class with enough problems is known, has confidences, and is validated on GEMMs held out with all epilogues."""

    def with_light(dataset: Dataset) -> Iterator[Record]:
        for record in dataset:
            yield record
            if record.stage == "final":
                timings = (timing._replace(ns=timing.ns * 1.3) for timing in record.timings if timing.ns is not None)
                yield Record(record.problem._replace(epilogue="light"), tuple(timings), "final")

    dataset = read_dataset(dataset_file)
    both = Dataset(dataset.path, dataset.header, lambda *_: with_light(dataset))
    found = distill([both], Split(0, 0.2), TrainingPlan(epochs=1))
    assert {kind.epilogue for kind in found.model.kinds} == {"none", "light"}
    assert found.model.fused_calibration.doubts
    assert set(found.validations) == {"test", "test with epilogue light"}
    alone, light = ({choice.problem.alone for choice in each.choices} for each in found.validations.values())
    assert alone
    assert alone == light


class Threads(TorchFunctionMode):
    """Records which torch functions this thread calls, and torch's number of threads at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, int]] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add((func.__name__, torch.get_num_threads()))
        return func(*args, **(kwargs or {}))


def test_sums_are_computed_in_one_thread(dataset_file: Path) -> None:
    """Sums are computed in one thread, because with several they differ; functions that only move data may use more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 2)
    try:
        with Threads() as called:
            distill([read_dataset(dataset_file)], SPLIT, TrainingPlan(epochs=1))
        assert torch.get_num_threads() == threads + 2
    finally:
        torch.set_num_threads(threads)
    assert {"mean", "std", "matmul"} <= {name for name, count in called.seen if count == 1}
    moving = {"transpose", "contiguous", "stack", "tensor", "__get__"}
    assert {name for name, count in called.seen if count != 1} <= moving


def test_what_is_written_is_what_was_distilled(distilled: Distilled, tmp_path: Path) -> None:
    """The model in the file has the same rankings and confidences as the one in memory."""
    path = tmp_path / "x.safetensors"
    write_model(distilled.model, path)
    found = read_model(path)
    for problem in problems(120)[:20]:
        assert found.rank(problem) == distilled.model.rank(problem)


def test_too_few_problems(tmp_path: Path) -> None:
    """A dataset with too few problems is an error that says how many are needed."""
    dataset = read_dataset(write(tmp_path / "x.msgpack", 12))
    with pytest.raises(ModelError, match=r"training problems with a time of aten are too few \(at least 60"):
        distill([dataset], SPLIT)


def test_what_is_left_out_is_said(dataset_file: Path) -> None:
    """Problems of rare kinds are counted in the report; a family without problems is an error."""
    split, said = Split(SPLIT.seed, SPLIT.test, (parse_family("op=bmm"),)), list[str]()
    with pytest.raises(ModelError, match=r"op=bmm: no problem belongs to this family"):
        distill([read_dataset(dataset_file)], split, TrainingPlan(epochs=1))
    dataset = read_dataset(dataset_file)
    rare = Problem.of("addmm", 64, 64, 64, dtype="float16", layout="tn")
    more = Dataset(
        dataset.path, dataset.header, lambda *_: chain(dataset, [next(iter(dataset))._replace(problem=rare)])
    )
    distill([more], Split(0, 0.0), TrainingPlan(epochs=1), said.append)
    assert said[0] == ("left out: 1 problem, as fewer than 4 have the same op, dtype, layout, align and epilogue")


def test_nothing_to_choose_from(dataset_file: Path) -> None:
    """If aten is the only candidate, that is an error, which says what can be a candidate."""

    def grouped(record: Record) -> Record:
        others = {config: config._replace(params=tuple(config.tiles._replace(group_m=4))) for config in CONFIGS}
        timings = (timing._replace(config=others.get(timing.config, ATEN)) for timing in record.timings)
        return record._replace(timings=tuple(timings))

    dataset = read_dataset(dataset_file)
    other = Dataset(dataset.path, dataset.header, lambda *_: map(grouped, dataset))
    with pytest.raises(ModelError, match=r"no candidate besides aten: no config with group_m=8, or without tiles"):
        distill([other], SPLIT, PLAN)


def test_one_device(dataset_file: Path, tmp_path: Path) -> None:
    """Datasets of two devices are an error that names both."""
    with DatasetWriter(tmp_path / "y.msgpack", Header(H200._replace(name="A", arch="sm_80"))) as writer:
        writer.append(Record(problems(1)[0], (Timing(LARGE, 1.0),)))
    with pytest.raises(DatasetError, match=r"y.msgpack: A \(sm_80, 132 SMs\), but .*x.msgpack: NVIDIA H200"):
        distill([read_dataset(dataset_file), read_dataset(tmp_path / "y.msgpack")], SPLIT)


@pytest.mark.slow
def test_a_model_learns_from_devices_like_its_own(dataset_file: Path, tmp_path: Path) -> None:
    """The first dataset's device is the model's. A problem of both trains it twice, and only its own test it."""
    split = Split(0, 0.2)
    shared = [problem for problem in problems(120) if split.group(problem) == TRAIN][:5]
    with DatasetWriter(tmp_path / "y.msgpack", Header(H200._replace(name="A"))) as writer:
        for problem in shared:
            writer.append(Record(problem, (Timing(ATEN, 100.0), Timing(CONFIGS[0], 50.0))))
    own, other = read_dataset(tmp_path / "y.msgpack"), read_dataset(dataset_file)
    found, alone = (distill(datasets, split, TrainingPlan(epochs=1)) for datasets in ([own, other], [other]))
    assert found.model.hardware.name == "A"
    assert found.training_problems == alone.training_problems + len(shared)
    assert alone.validations
    assert not found.validations


@pytest.mark.slow
def test_a_model_answers_for_its_own_device(tmp_path: Path) -> None:
    """Where two devices disagree about the faster of two configs, the model chooses as its own device does."""
    one, two, *_ = CONFIGS
    datasets = []
    for name, fast, slow in (("A", one, two), ("B", two, one)):
        with DatasetWriter(tmp_path / f"{name}.msgpack", Header(H200._replace(name=name))) as writer:
            for problem in problems(120):
                writer.append(Record(problem, (Timing(ATEN, 100.0), Timing(fast, 50.0), Timing(slow, 80.0))))
        datasets.append(read_dataset(tmp_path / f"{name}.msgpack"))
    for own, best in ((datasets, one), (datasets[::-1], two)):
        validation = distill(own, SPLIT, TrainingPlan(epochs=20)).validations[TEST]
        assert {choice.config for choice in validation.choices} == {best}


def test_command(dataset_file: Path, tmp_path: Path) -> None:
    """The command writes model and picture, and prints the validation; evaluate uses only unseen problems."""
    out, picture = tmp_path / "x.mlp.safetensors", tmp_path / "x.png"
    result = call("distill", dataset_file, "-o", out, "--epochs", 5, "--leave-out", "m=4096", "--picture", picture)
    assert result.exit_code == 0, result.stderr
    assert "RMSE of log time: " in result.stdout
    assert "time over the best measured: top 1: " in result.stdout
    assert "m=4096:4096: 0 problems" in result.stdout
    assert read_model(out).split == SPLIT
    assert picture.read_bytes().startswith(b"\x89PNG")
    evaluated = call("evaluate", "--model", out, dataset_file)
    assert evaluated.exit_code == 0, evaluated.stderr
    unseen = sum(SPLIT.group(problem) != "train" for problem in problems(120))
    assert evaluated.stdout.splitlines()[1].split()[:2] == ["all", str(unseen)]
    assert evaluated.stderr == (
        f"left out: {120 - unseen} problems that the model may have been trained on (--all includes them)\n"
    )
    everything = call("evaluate", "--model", out, "--all", dataset_file)
    assert everything.stdout.splitlines()[1].split()[:2] == ["all", "120"]


def test_command_says_that_records_are_lost(dataset_file: Path, tmp_path: Path) -> None:
    """With a damaged dataset the model is written, the loss is reported, and the exit code is 1."""
    data = bytearray(dataset_file.read_bytes())
    data[-20] ^= 1
    (damaged := tmp_path / "damaged.msgpack").write_bytes(data)
    result = call("distill", damaged, "-o", tmp_path / "x.mlp.safetensors", "--epochs", 5)
    assert (result.exit_code, "damaged places, whose records are lost: 1" in result.stderr) == (1, True)
    assert read_model(tmp_path / "x.mlp.safetensors").split.seed == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--leave-out", "m=x"], 2, "not a condition such as"),
        (["--picture", "x.nothing"], 2, "the name must end with one of"),
        (["--picture", "/proc/x.png"], 2, "error: /proc/x.png: "),
        (["-o", "/proc/x.safetensors"], 2, "error: /proc/x.safetensors: "),
    ],
)
def test_bad_arguments(dataset_file: Path, tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    """Bad arguments are refused before any work is done."""
    result = call("distill", dataset_file, "-o", tmp_path / "x.safetensors", *arguments)
    assert (result.exit_code, message in result.stderr) == (code, True)


def test_a_picture_needs_matplotlib(dataset_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without matplotlib, a picture is refused before any work is done, and the command to install it is named."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = call("distill", dataset_file, "-o", tmp_path / "x.safetensors", "--picture", tmp_path / "x.png")
    assert (result.exit_code, install_command("report") in result.stderr) == (2, True)


@pytest.mark.slow
def test_ctrl_c_ends_it(dataset_file: Path, tmp_path: Path) -> None:
    """Ctrl-C ends training, which would take days here, at once; nothing is written."""
    out = tmp_path / "x.safetensors"
    arguments = ["distill", str(dataset_file), "-o", str(out), "--epochs", "10000000"]
    with subprocess.Popen(
        [sys.executable, "-m", "diode_lut", *arguments], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert any(line.startswith("training the teacher") for line in process.stderr)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    assert (process.returncode, "Traceback" in errors) == (130, False)
    assert not out.exists()
