"""Collecting on a real GPU."""

import json
import subprocess
import sys
import time
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import torch

from diode_lut.dataset import Timing, read_dataset
from diode_lut.hardware import detect_hardware
from diode_lut.measure import MEASURERS
from diode_lut.measure.collector import collect
from diode_lut.measure.gemm import GemmCheck, make_operands
from diode_lut.measure.stages import aten_launch
from diode_lut.measure.tasks import Outcome, Watch, candidates
from diode_lut.measure.timing import Bench, time_all
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config
from tests.gpu.measurers import BAD, FAULTS

pytestmark = pytest.mark.gpu

PROBLEMS = [
    Problem.of("mm", 512, 768, 1024, dtype="bfloat16", layout="nt"),
    Problem.of("mm", 512, 1536, 1024, dtype="bfloat16", layout="nt"),
    Problem.of("mm", 100, 77, 51, dtype="float16", layout="nn"),
    Problem.of("addmm", 64, 1000, 2048, dtype="float16", layout="nt"),
    Problem.of("addmm", 536, 1, 344, dtype="bfloat16", layout="tn"),
    Problem.of("bmm", 128, 64, 80, dtype="float16", layout="nn", b=12),
    Problem.of("baddbmm", 33, 64, 64, dtype="float32", layout="nn", b=3),
    Problem.of("mm", 64, 64, 8192, dtype="tf32", layout="tn"),
]


def problem(m: int) -> Problem:
    return Problem.of("mm", m, 64, 64, dtype="float16", layout="nn")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset that the command has made of PROBLEMS."""
    directory = tmp_path_factory.mktemp("collect")
    fields = [
        {key.upper() if len(key) == 1 else key: value for key, value in each._asdict().items()} for each in PROBLEMS
    ]
    (directory / "problems.json").write_text(json.dumps(fields))
    files = ["--problems", str(directory / "problems.json"), "--out", str(directory / "timings.msgpack")]
    command = [sys.executable, "-m", "diode_lut", "collect", "--device", "cuda", *files]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return directory / "timings.msgpack"


def test_each_problem_is_swept_and_finished(path: Path) -> None:
    """Each is in the dataset once at each stage; the sweep tried all candidates, and none computed anything wrong."""
    records = {(record.problem, record.stage): record for record in read_dataset(path)}
    assert set(records) == {(problem, stage) for problem in PROBLEMS for stage in ("sweep", "final")}
    assert len(records) == len(list(read_dataset(path)))
    hardware = detect_hardware("cuda")
    for (asked, stage), record in records.items():
        times = {timing.config: timing.ns for timing in record.timings}
        assert times[ATEN] is not None
        assert "wrong_result" not in {timing.reason for timing in record.timings}
        assert stage == "final" or times.keys() >= {*candidates(asked, hardware)}


def test_epilogues_are_timed_as_users_run_them(tmp_path: Path) -> None:
    """A GEMM with an epilogue is swept without it, and finished with it, and nothing computes anything wrong."""
    alone = Problem.of("addmm", 64, 1000, 2048, dtype="float16", layout="nt")
    wanted = [alone._replace(epilogue=name) for name in ("light", "medium", "heavy")]
    outcomes = [outcome for each in collect(wanted, tmp_path / "t.msgpack", device="cuda") for outcome in each.outcomes]
    records = {(each.record.problem, each.record.stage): each.record for each in outcomes if each.record is not None}
    assert set(records) == {(alone, "sweep"), *((problem, "final") for problem in wanted)}
    for problem in wanted:
        times = {timing.config: timing.ns for timing in records[problem, "final"].timings}
        assert all(times.values())
        assert ATEN in times
        assert len(times) >= 3


@pytest.mark.parametrize("paused", range(1, 6))
def test_a_pause_does_not_make_a_kernel_slow(paused: int) -> None:
    """Whichever launch of a kernel the CPU pauses in, the sweep finds it as fast as the same without a pause."""
    problem = PROBLEMS[0]
    operands = make_operands(problem, "cuda")
    launch = aten_launch(problem, operands, torch.mm(*operands))
    launched = count()

    def launch_with_a_pause() -> None:
        if next(launched) == paused:
            time.sleep(0.01)
        launch()

    launches = {ATEN: launch, BAD: launch_with_a_pause}
    times = time_all(problem, launches, Watch(lambda loss: pytest.fail(str(loss))), Bench(), [])
    assert times[BAD] < 1.5 * times[ATEN]
    assert next(launched) > 5


def test_final_configs_were_swept(path: Path) -> None:
    """Apart from other values of group_m, what is timed with care was in the sweep."""
    swept = {record.problem: record for record in read_dataset(path) if record.stage == "sweep"}
    for record in read_dataset(path):
        if record.stage == "final":
            tried = {_ungrouped(timing) for timing in swept[record.problem].timings}
            assert {_ungrouped(timing) for timing in record.timings} <= tried


def _ungrouped(timing: Timing) -> Config:
    config = timing.config
    return config._replace(params=tuple(config.tiles._replace(group_m=0))) if config.kernel.tiled else config


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_wrong_results_do_not_pass(problem: Problem) -> None:
    """The GEMM passes the check; a GEMM with one element wrong, or one not written, does not."""
    operands = make_operands(problem, "cuda")
    gemm = getattr(torch, problem.op)
    check = GemmCheck(problem, operands)
    assert check.passes(lambda: gemm(*operands, out=check.out))
    wrong = gemm(*operands)
    wrong.view(-1)[-1] += problem.k**0.5
    assert not check.passes(lambda: check.out.copy_(wrong))
    assert not check.passes(lambda: [check.out[..., 1:].copy_(gemm(*operands)[..., 1:])])


def test_a_kernel_that_faults_costs_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that it leaves unusable is replaced, the config recorded, and every problem measured."""
    monkeypatch.setitem(MEASURERS, "autotune", "tests.gpu.measurers:measure")
    problems = [problem(m) for m in (64, FAULTS, 128)]
    path = tmp_path / "timings.msgpack"
    outcomes: list[Outcome] = []
    for each in collect(problems, path, device="cuda", method="autotune"):
        outcomes += each.outcomes
    assert sorted(outcome.problem for outcome in outcomes) == sorted(problems)
    reasons = {(r.problem.m, timing.config): timing.reason for r in read_dataset(path) for timing in r.timings}
    assert reasons[FAULTS, BAD] == "launch"
    assert {key for key, reason in reasons.items() if reason} == {(FAULTS, BAD)}
    assert torch.ones(1, device="cuda").item() == 1


def test_a_problem_too_large_is_skipped(tmp_path: Path) -> None:
    """It costs itself, with a reason, and the next one is measured."""
    size = 2**19
    too_large = Problem.of("mm", size, size, 64, dtype="float16", layout="nn")
    outcomes: list[Outcome] = []
    for each in collect([too_large, problem(64)], tmp_path / "timings.msgpack", device="cuda"):
        outcomes += each.outcomes
    status = {(outcome.problem, outcome.status) for outcome in outcomes}
    assert status == {(too_large, "skipped"), (problem(64), "measured")}


def test_a_warm_launch_follows_the_same_launch() -> None:
    """The other launches of a round come before or after the two."""
    launched: list[int] = []
    Bench().rounds([partial(launched.append, number) for number in range(3)], 4, warm=True)
    pairs = [*zip(launched[::2], launched[1::2], strict=True)]
    assert len(pairs) >= 12
    assert all(before == timed for before, timed in pairs)


def test_a_late_cpu_is_not_timed() -> None:
    """The CPU needs far longer than the GPU in the first launches, as when other threads keep it busy."""
    out = torch.zeros(1024, device="cuda")
    late = iter(range(3))

    def launch() -> None:
        if next(late, None) is not None:
            time.sleep(0.02)
        out.add_(1)

    times = Bench().rounds([launch, lambda: out.mul_(1)], 3)
    assert times.max() < 1e6
