"""Collecting for real, on the CPU, with nothing replaced."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch._inductor.ir import ChoiceCaller
from torch._inductor.select_algorithm import get_algorithm_selector_cache

from diode_lut.dataset import DatasetWriter, read_dataset
from diode_lut.errors import DatasetError, counted
from diode_lut.hardware import Hardware
from diode_lut.measure.collector import collect
from diode_lut.measure.tasks import Outcome, find_setup
from diode_lut.problem import Problem
from diode_lut.settings import config
from diode_lut.templates.config import ATEN, Config
from tests.forks import Forked, Forks
from tests.measure.collection import outcomes, problem_file

BMM = Problem("bmm", "float32", "nt", 2, 2, 32, 32, 32)
ADDMM = Problem("addmm", "float16", "nt", 16, 1, 32, 32, 32)
BADDBMM = Problem("baddbmm", "float32", "nn", 16, 2, 32, 32, 32)
DECOMPOSED = Problem("bmm", "float32", "nn", 16, 2, 1, 32, 32)
TOO_LARGE = Problem("mm", "float32", "nn", 16, 1, 2**31 - 4, 4, 2**31 - 4)
CPP = Config("cpp_gemm")

MANY = [BADDBMM._replace(m=size) for size in range(200, 32, -1)]  # as they are measured: the largest first


class Run:
    """One collection, and what policies the hook had whenever Inductor had candidates to choose from."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "timings.msgpack"
        self.policies: set[str] = set()
        functions = get_algorithm_selector_cache().preprocessing_fns
        functions.append(self._note_policy)
        self.outcomes = {
            each.problem: each for each in outcomes([BMM, ADDMM, BADDBMM, DECOMPOSED], self.path, device="cpu")
        }
        functions.remove(self._note_policy)

    def _note_policy(self, choices: list[ChoiceCaller]) -> list[ChoiceCaller]:
        self.policies.add(config.policy)
        return choices


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("collect"))


def configs(outcome: Outcome) -> list[Config]:
    assert outcome.record is not None
    return [timing.config for timing in outcome.record.timings if timing.ns is not None]


def test_bmm_is_timed_in_its_exact_layout(run: Run) -> None:
    """A batched matmul with padded, transposed operands reaches Inductor as just that, and is measured."""
    assert run.outcomes[BMM].status == "measured"
    assert ATEN in configs(run.outcomes[BMM])


def test_addmm_with_frozen_weight_has_the_cpp_template(run: Run) -> None:
    """On the CPU a frozen addmm is timed with aten and C++, unless oneDNN takes it away before there is a choice."""
    outcome = run.outcomes[ADDMM]
    if outcome.status == "measured":
        assert set(configs(outcome)) == {ATEN, CPP}
    else:
        assert outcome.reason == "reached Inductor as linear_unary"


def test_gemm_without_alternatives_is_timed(run: Run) -> None:
    """A problem for which Inductor knows aten alone is in the dataset, too."""
    assert configs(run.outcomes[BADDBMM]) == [ATEN]


def test_what_is_not_compiled_as_the_gemm_is_skipped(run: Run) -> None:
    """A GEMM that Inductor replaces by a sum is skipped with the reason, and no record is made of it."""
    outcome = run.outcomes[DECOMPOSED]
    assert (outcome.status, outcome.record) == ("skipped", None)
    assert outcome.reason == "Inductor does not autotune it as a GEMM"


def test_what_nothing_measures_is_skipped(tmp_path: Path) -> None:
    """Splits of reductions are skipped, and joined matmuls without a sweep, and the reason says so."""
    joined = Problem.of("joined_mm", 16, 512, 256, dtype="bfloat16", layout="nt", variant="two")
    split = Problem.generated("split_reduction", "inner", x=4, r=65536)
    for problem, why in ((joined, "joined_mm needs --method sweep"), (split, "nothing measures splits of reductions")):
        (outcome,) = outcomes([problem], tmp_path / "timings.msgpack", device="cpu")
        assert (outcome.status, outcome.reason) == ("skipped", why)


def test_dataset_holds_what_was_measured(run: Run) -> None:
    """The file has the records of the outcomes, in order, and a header that says on and with what."""
    dataset = read_dataset(run.path)
    assert list(dataset) == [each.record for each in run.outcomes.values() if each.record is not None]
    assert dataset.header == find_setup("cpu", None, "default").header
    assert (dataset.header.cuda, dataset.header.driver) == ("", "")


def test_hook_is_off_while_collecting(run: Run) -> None:
    """Whatever tables are there, they do not decide what is measured; afterwards the policy is what it was."""
    assert run.policies == {"off"}
    assert config.policy == "pick"


def test_problems_in_the_file_are_not_measured_again(run: Run) -> None:
    """Collecting again into the same file measures nothing that it holds and leaves it as it is."""
    before = run.path.read_bytes()
    again = outcomes([BADDBMM, BMM], run.path, device="cpu")
    assert [(each.problem, each.status) for each in again] == [(BADDBMM, "present"), (BMM, "present")]
    assert run.path.read_bytes() == before


@pytest.mark.parametrize(
    "changes",
    [{"hardware": Hardware("NVIDIA H200", "sm_90", 132)}, {"torch": "2.11.0"}, {"benchmarker": "a stopwatch"}],
)
def test_file_measured_otherwise_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Timings of other hardware, torch or benchmark never get into one file with this machine's."""
    path = tmp_path / "timings.msgpack"
    with DatasetWriter(path, find_setup("cpu", None, "default").header._replace(**changes)):
        pass
    before = path.read_bytes()
    with pytest.raises(DatasetError, match="measured "):
        next(collect([BMM], path, device="cpu"))
    assert path.read_bytes() == before


def wait_for_record(path: Path) -> None:
    """Returns once the dataset holds something."""
    while not path.exists() or not any(read_dataset(path)):
        time.sleep(0.05)


@pytest.fixture
def running(tmp_path: Path, after_inductor: Forks) -> Iterator[Forked]:
    """A run that measures MANY, and has written something; its temporary files are in ``tmp``."""
    (temporary := tmp_path / "tmp").mkdir()
    problems, path = problem_file(tmp_path / "problems.json", MANY), tmp_path / "timings.msgpack"
    options = f"--device cpu --problems {problems} --out {path}"
    arguments = ("-m", "diode_lut", "collect", *options.split())
    with after_inductor.started(*arguments, TMPDIR=str(temporary)) as process:
        wait_for_record(path)
        while not list(temporary.glob("diode-lut-*")):  # each problem has its own, and is still to come
            time.sleep(0.01)
        yield process


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_a_dataset(tmp_path: Path, running: Forked, number: signal.Signals) -> None:
    """A run that is stopped has everything before the problem in hand on disk, and leaves no caches behind."""
    running.send(number)
    done = running.wait()
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert "run the same command again" in done.stderr
    measured = [record.problem for record in read_dataset(tmp_path / "timings.msgpack")]
    assert measured == MANY[: len(measured)]
    assert 1 <= len(measured) < len(MANY)
    assert f"{counted(len(measured), 'problem')} measured" in done.stdout
    assert not list((tmp_path / "tmp").glob("diode-lut-*"))


@pytest.mark.slow
def test_killed_run_leaves_a_dataset(tmp_path: Path, running: Forked) -> None:
    """Even a run that is killed outright has everything before the problem in hand on disk."""
    running.send(signal.SIGKILL)
    assert running.wait().returncode == -signal.SIGKILL
    measured = [record.problem for record in read_dataset(tmp_path / "timings.msgpack")]
    assert measured == MANY[: len(measured)] != []
