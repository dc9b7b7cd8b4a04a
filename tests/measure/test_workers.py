"""Collecting in processes of our own, some of which die."""

import math
import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from diode_lut.dataset import DatasetWriter, Timing
from diode_lut.errors import CollectError, DatasetError
from diode_lut.hardware import Hardware, detect_hardware
from diode_lut.measure import METHODS
from diode_lut.measure.collector import Workers, open_executor
from diode_lut.measure.tasks import Shard, Task, find_setup
from diode_lut.table import Candidate, Entry, Table
from diode_lut.templates.config import ATEN
from tests.measure.collection import Collection
from tests.measure.measurers import FAULTS, HANGS, KILLS, KILLS_ONCE, SKIPPED, SLOW, SPLIT, problem


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Two processes."""
    workers = Workers([{}, {}])
    yield workers
    workers.close()


@pytest.fixture
def two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stages of a sweep, on a CPU."""
    monkeypatch.setitem(METHODS, "autotune", METHODS["sweep"])


@pytest.mark.usefixtures("two_passes")
def test_two_passes_measure_each_problem_once(workers: Workers, collection: Collection) -> None:
    """Two workers sweep all problems, then finish them with the configs that the sweep suggests, each once."""
    problems = [*(problem(m, n) for m in range(1, 9) for n in (8, 16)), problem(SKIPPED)]
    outcomes = list(collection.run(problems, executor=workers))
    assert Counter(each.status for each in outcomes) == {"measured": 32, "skipped": 1}
    assert collection.timings("sweep").keys() == collection.timings("final").keys() == set(problems[:-1])
    assert all(len(timings) == 1 for timings in collection.timings("final").values())
    assert set(collection.begun("sweep").values()) == set(collection.begun("final").values()) == {1}


@pytest.mark.usefixtures("two_passes")
def test_present_problems_are_skipped_at_each_stage(workers: Workers, collection: Collection) -> None:
    """Going on measures at each stage only what the file does not hold at that stage."""
    first, second = problem(1), problem(2)
    list(collection.run([first], executor=workers))
    outcomes = list(collection.run([first, second], executor=workers))
    assert [each.status for each in outcomes] == ["present", "measured"] * 2
    assert set(collection.begun("sweep").values()) == set(collection.begun("final").values()) == {1}


@pytest.mark.usefixtures("two_passes")
def test_only_what_a_table_answers(workers: Workers, collection: Collection) -> None:
    """With a table one stage times its answers and aten, for the problems that it covers."""
    covered, not_covered = problem(1, 8), problem(1, 16)
    rows = [Entry("bmm", "float32", "nn", None, None, None, (8, 8), None, (Candidate(SPLIT), Candidate(ATEN)))]
    table = Table(detect_hardware("cpu"), rows)
    list(collection.run([covered, not_covered], executor=workers, table=table))
    (timings,) = collection.timings("final").values()
    assert {timing.config for timing in timings} == {ATEN, SPLIT}
    assert collection.timings("sweep") == {}


def test_a_table_that_does_not_fit_is_refused(collection: Collection) -> None:
    """A table for other hardware is an error before anything is measured."""
    other = Table(Hardware("Another GPU", "sm_90", 1), [])
    with pytest.raises(CollectError, match=r"it is for Another GPU .*, this is"):
        list(collection.run([problem(1)], device="cpu", table=other))
    assert not collection.path.exists()


@pytest.mark.slow
def test_worker_killed_from_outside_costs_nothing(workers: Workers, collection: Collection) -> None:
    """Another worker does what a killed one had in hand; the file can be read at every moment."""
    problems = [problem(SLOW), problem(SLOW, 16), *(problem(m) for m in range(1, 20))]
    outcomes = []
    for outcome in collection.run(problems, executor=workers):
        if not outcomes:
            os.kill(workers._workers[0]._process.pid, signal.SIGKILL)
        outcomes.append(outcome)
        assert len(collection.timings()) == len(outcomes)
    assert collection.timings().keys() == set(problems)
    assert {each.problem for each in outcomes} == set(problems)


@pytest.mark.slow
def test_worker_killed_between_shards_is_replaced(collection: Collection) -> None:
    """The next shard of a worker that has died meanwhile is measured by another process."""
    workers = Workers([{}])
    setup = workers.find_setup("cpu", "autotune", str(collection.marks))
    outcomes = workers.measure([Shard("autotune", (Task(problem(m)),)) for m in (1, 2)], setup, math.inf)
    first, (worker,) = next(outcomes), workers._workers
    assert worker.pipe.poll(60)  # it has ended the first shard, and waits for another
    worker._process.kill()
    worker._process.join()
    assert [each.problem for each in (first, *outcomes)] == [problem(1), problem(2)]
    workers.close()


@pytest.mark.slow
def test_config_that_kills_a_worker_is_recorded(
    workers: Workers, collection: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    """A kernel that faults and one that hangs are in the dataset with the reason, next to what could be timed."""
    problems = [problem(1), problem(FAULTS), problem(2), problem(HANGS), problem(3)]
    list(collection.run(problems, executor=workers))
    timings = collection.timings()
    assert timings.keys() == set(problems)
    for m, reason in ((FAULTS, "launch"), (HANGS, "timeout")):
        assert [timing.config for timing in timings[problem(m)]] == [ATEN, SPLIT]
        assert timings[problem(m)][1] == Timing(SPLIT, None, reason)
    lost = [record.getMessage() for record in caplog.records if " is lost: " in record.getMessage()]
    assert len(lost) == 2
    assert any(f"{problem(HANGS)}, {SPLIT}: hung" in message for message in lost)


@pytest.mark.slow
def test_problem_that_kills_for_reasons_unknown_is_skipped(workers: Workers, collection: Collection) -> None:
    """A problem that kills every worker without a word is found and skipped; one that does so once is measured."""
    problems = [problem(KILLS), problem(1), problem(KILLS_ONCE)]
    outcomes = {each.problem: each for each in collection.run(problems, executor=workers)}
    assert outcomes.keys() == set(problems)
    assert outcomes[problem(KILLS)].status == "skipped"
    assert outcomes[problem(KILLS)].reason == "3 processes died of it"
    assert collection.timings().keys() == set(problems) - {problem(KILLS)}


@pytest.mark.slow
def test_budget_ends_between_problems(workers: Workers, collection: Collection) -> None:
    """When the time is over each worker ends with the problem in hand, and no other is begun."""
    problems = [problem(SLOW, n) for n in range(1, 20)]
    outcomes = list(collection.run(problems, executor=workers, budget_s=1))
    assert len(outcomes) == len(collection.timings()) == sum(collection.begun().values()) <= 2


@pytest.mark.slow
def test_interrupted_command_stops_the_workers(collection: Collection) -> None:
    """Ctrl-C keeps what is measured, and each worker ends."""
    problems = [problem(SLOW, n) for n in range(1, 24)]
    with collection.command([*problems, problem(SKIPPED, 1000)], "--device", "all") as process:
        assert process.stderr is not None
        assert next(process.stderr).startswith("skipped")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        output, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "run the same command again" in errors
    assert f"{len(collection.timings())} problems measured" in output
    assert sum(collection.begun().values()) <= len(collection.timings()) + 2


def test_dataset_of_another_machine_is_refused_first(workers: Workers, collection: Collection) -> None:
    """Nothing is measured if the file holds timings of other hardware."""
    found = find_setup("cpu", "autotune", str(collection.marks))
    with DatasetWriter(collection.path, found.header._replace(hardware=Hardware("NVIDIA H200", "sm_90", 132))):
        pass
    with pytest.raises(DatasetError, match="measured on NVIDIA H200"):
        list(collection.run([problem(1)], executor=workers))
    assert not collection.begun()


@pytest.mark.slow
def test_workers_that_differ_are_refused(collection: Collection) -> None:
    """Timings of two kinds of machine are not mixed, and nothing is measured."""
    workers = Workers([{}, {"ATEN_CPU_CAPABILITY": "default"}])
    with pytest.raises(CollectError, match=r"timings of devices 0 and 1 cannot be mixed: hardware .* and "):
        list(collection.run([problem(1)], executor=workers))
    workers.close()
    assert not collection.path.exists()


@pytest.mark.slow
def test_workers_measure_as_this_process_does(collection: Collection) -> None:
    """On a machine without a GPU, all devices are one worker, whose timings go into the same file as ours."""
    first, second = problem(1), problem(2)
    list(collection.run([first], device="cpu"))
    list(collection.run([first, second], device="all"))
    assert collection.timings().keys() == {first, second}


@pytest.mark.parametrize(("chosen", "threads"), [(None, "4"), ("64", "4"), ("2", "2")])
def test_workers_share_the_cpus(monkeypatch: pytest.MonkeyPatch, chosen: str | None, threads: str) -> None:
    """With a worker for each of two devices, neither gets more compile threads than half of the eight CPUs."""
    name = "TORCHINDUCTOR_COMPILE_THREADS"
    monkeypatch.delenv(name, raising=False)
    if chosen is not None:
        monkeypatch.setenv(name, chosen)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with open_executor("all") as workers:
        assert isinstance(workers, Workers)
        assert [each._environment[name] for each in workers._workers] == [threads] * 2
