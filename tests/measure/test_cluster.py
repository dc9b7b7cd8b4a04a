"""Collecting with real Dask workers, some of which die."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator

import dask
import pytest
import torch
from distributed import Client, Nanny, Scheduler, SpecCluster
from distributed.utils import get_mp_context

from diode_lut.dataset import DatasetWriter, Timing
from diode_lut.errors import CollectError, DatasetError
from diode_lut.hardware import Hardware, detect_hardware
from diode_lut.measure import METHODS
from diode_lut.measure import workers as cluster_module
from diode_lut.measure.tasks import find_setup
from diode_lut.table import Candidate, Entry, Table
from diode_lut.templates.config import ATEN
from tests.measure.collection import Collection
from tests.measure.measurers import FAULTS, HANGS, KILLS, KILLS_ONCE, SKIPPED, SLOW, SPLIT, problem


def started_cluster(*environments: dict[str, str]) -> SpecCluster:
    """A worker for each environment, and a nanny that replaces it."""
    options = {"host": "127.0.0.1", "dashboard": False}
    of_workers = {**options, "nthreads": 1, "memory_limit": 0, "silence_logs": 50}
    workers = {
        index: {"cls": Nanny, "options": {**of_workers, "env": environment}}
        for index, environment in enumerate(environments)
    }
    scheduler = {"cls": Scheduler, "options": {**options, "dashboard_address": "127.0.0.1:0"}}
    return SpecCluster(workers, scheduler, silence_logs=50)


@pytest.fixture(scope="module", autouse=True)
def quick_start() -> Iterator[None]:
    """Workers are forked from a process that has imported everything, so that a new one is there at once."""
    settings = {"worker.multiprocessing-method": "forkserver", "nanny.pre-spawn-environ": {}}
    with dask.config.set({f"distributed.{name}": value for name, value in settings.items()}):
        context = get_mp_context()
        context.set_forkserver_preload(
            ["distributed", "triton", "diode_lut.measure.workers", "tests.measure.measurers"]
        )
        yield


@pytest.fixture(scope="module")
def cluster(quick_start: None) -> Iterator[SpecCluster]:
    with started_cluster({}, {}) as cluster:
        yield cluster


@pytest.fixture
def two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stages of a sweep, on a CPU."""
    monkeypatch.setitem(METHODS, "autotune", METHODS["sweep"])


@pytest.mark.usefixtures("two_passes")
def test_two_passes_measure_each_problem_once(cluster: SpecCluster, collection: Collection) -> None:
    """Two workers sweep all problems, then finish them with the configs that the sweep suggests, each once."""
    problems = [*(problem(m, n) for m in range(1, 9) for n in (8, 16)), problem(SKIPPED)]
    outcomes = list(collection.run(problems, scheduler=cluster.scheduler_address))
    assert Counter(each.status for each in outcomes) == {"measured": 32, "skipped": 1}
    assert collection.timings("sweep").keys() == collection.timings("final").keys() == set(problems[:-1])
    assert all(len(timings) == 1 for timings in collection.timings("final").values())
    assert set(collection.begun("sweep").values()) == set(collection.begun("final").values()) == {1}


@pytest.mark.usefixtures("two_passes")
def test_present_problems_are_skipped_at_each_stage(cluster: SpecCluster, collection: Collection) -> None:
    """Going on measures at each stage only what the file does not hold at that stage."""
    address = cluster.scheduler_address
    first, second = problem(1), problem(2)
    list(collection.run([first], scheduler=address))
    outcomes = list(collection.run([first, second], scheduler=address))
    assert [each.status for each in outcomes] == ["present", "measured"] * 2
    assert set(collection.begun("sweep").values()) == set(collection.begun("final").values()) == {1}


@pytest.mark.usefixtures("two_passes")
def test_only_what_a_table_answers(cluster: SpecCluster, collection: Collection) -> None:
    """With a table one stage times its answers and aten, for the problems that it covers."""
    covered, not_covered = problem(1, 8), problem(1, 16)
    rows = [Entry("bmm", "float32", "nn", None, None, None, (8, 8), None, (Candidate(SPLIT), Candidate(ATEN)))]
    table = Table(detect_hardware("cpu"), rows)
    list(collection.run([covered, not_covered], scheduler=cluster.scheduler_address, table=table))
    (timings,) = collection.timings("final").values()
    assert {timing.config for timing in timings} == {ATEN, SPLIT}
    assert collection.timings("sweep") == {}


def test_a_table_that_does_not_fit_is_refused(collection: Collection) -> None:
    """A table for other hardware is an error before anything is measured."""
    other = Table(Hardware("Another GPU", "sm_90", 1), [])
    with pytest.raises(CollectError, match=r"it is for Another GPU .*, this is"):
        list(collection.run([problem(1)], device="cpu", table=other))
    assert not collection.path.exists()


def test_worker_killed_from_outside_costs_nothing(cluster: SpecCluster, collection: Collection) -> None:
    """Another worker does what a killed one had in hand; the file can be read at every moment."""
    problems = [problem(SLOW), problem(SLOW, 16), *(problem(m) for m in range(1, 20))]
    with Client(cluster) as client:
        victim = next(iter(client.run(os.getpid).values()))
    outcomes = []
    for outcome in collection.run(problems, scheduler=cluster.scheduler_address):
        if not outcomes:
            os.kill(victim, signal.SIGKILL)
        outcomes.append(outcome)
        assert len(collection.timings()) == len(outcomes)
    assert collection.timings().keys() == set(problems)
    assert {each.problem for each in outcomes} == set(problems)


def test_config_that_kills_a_worker_is_recorded(
    cluster: SpecCluster, collection: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    """A kernel that faults and one that hangs are in the dataset with the reason, next to what could be timed."""
    problems = [problem(1), problem(FAULTS), problem(2), problem(HANGS), problem(3)]
    list(collection.run(problems, scheduler=cluster.scheduler_address))
    timings = collection.timings()
    assert timings.keys() == set(problems)
    for m, reason in ((FAULTS, "launch"), (HANGS, "timeout")):
        assert [timing.config for timing in timings[problem(m)]] == [ATEN, SPLIT]
        assert timings[problem(m)][1] == Timing(SPLIT, None, reason)
    lost = [record.getMessage() for record in caplog.records if " is lost: " in record.getMessage()]
    assert len(lost) == 2
    assert any(f"{problem(HANGS)}, {SPLIT}: hung" in message for message in lost)


def test_problem_that_kills_for_reasons_unknown_is_skipped(cluster: SpecCluster, collection: Collection) -> None:
    """A problem that kills every worker without a word is found and skipped; one that does so once is measured."""
    problems = [problem(KILLS), problem(1), problem(KILLS_ONCE)]
    outcomes = {each.problem: each for each in collection.run(problems, scheduler=cluster.scheduler_address)}
    assert outcomes.keys() == set(problems)
    assert outcomes[problem(KILLS)].status == "skipped"
    assert outcomes[problem(KILLS)].reason == "3 workers died of it"
    assert collection.timings().keys() == set(problems) - {problem(KILLS)}


def test_budget_ends_between_problems(cluster: SpecCluster, collection: Collection) -> None:
    """When the time is over each worker ends with the problem in hand, and no other is begun."""
    problems = [problem(SLOW, n) for n in range(1, 20)]
    outcomes = list(collection.run(problems, scheduler=cluster.scheduler_address, budget_s=1))
    assert len(outcomes) == len(collection.timings()) == sum(collection.begun().values()) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_interrupted_command_stops_the_workers(cluster: SpecCluster, collection: Collection, own: bool) -> None:
    """Ctrl-C keeps what is measured, and each worker ends with the problem in hand, not with its shard."""
    problems = [problem(SLOW, n) for n in range(1, 24)]
    where = ("--device", "all") if own else ("--scheduler", cluster.scheduler_address)
    with collection.command([*problems, problem(SKIPPED, 1000)], *where) as process:
        assert process.stderr is not None
        assert next(process.stderr).startswith("skipped")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        output, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "run the same command again" in errors
    assert f"{len(collection.timings())} problems measured" in output
    measured = len(collection.timings())
    after = [problem(m) for m in range(1, 5)]
    list(collection.run(after, scheduler=cluster.scheduler_address))  # by workers that have ended what they were at
    assert sum(collection.begun().values()) <= 1 + measured + 2 + len(after)


def test_dataset_of_another_machine_is_refused_first(cluster: SpecCluster, collection: Collection) -> None:
    """Nothing is measured if the file holds timings of other hardware."""
    found = find_setup("cpu", "autotune", str(collection.marks))
    with DatasetWriter(collection.path, found.header._replace(hardware=Hardware("NVIDIA H200", "sm_90", 132))):
        pass
    with pytest.raises(DatasetError, match="measured on NVIDIA H200"):
        list(collection.run([problem(1)], scheduler=cluster.scheduler_address))
    assert not collection.begun()


def test_workers_that_differ_are_refused(collection: Collection) -> None:
    """Timings of two kinds of machine are not mixed: both are named, and nothing is measured."""
    with started_cluster({}, {"ATEN_CPU_CAPABILITY": "default"}) as cluster:
        with pytest.raises(CollectError, match=r"workers tcp://.* and tcp://.* cannot be mixed: hardware .* and "):
            list(collection.run([problem(1)], scheduler=cluster.scheduler_address))
        assert not collection.path.exists()


def test_our_own_cluster_measures_as_this_process_does(collection: Collection) -> None:
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
    with cluster_module.local_cluster("all"):
        client = Client.current()
        client.wait_for_workers(2)
        assert set(client.run(os.getenv, name).values()) == {threads}


def test_address_without_scheduler_is_a_clear_error(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing answers, the address and the remedy are told."""
    monkeypatch.setattr(cluster_module, "MAX_CONNECT_S", 0.2)
    with pytest.raises(CollectError, match=r"tcp://127.0.0.1:9: no scheduler answers .* `dask scheduler`"):
        list(collection.run([problem(1)], scheduler="tcp://127.0.0.1:9"))


@pytest.mark.parametrize("options", [{"device": "all"}, {"scheduler": "tcp://127.0.0.1:9"}])
def test_missing_dask_is_a_clear_error(
    collection: Collection, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """Without ``distributed`` what needs it says what to install, and a single device needs nothing."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(CollectError, match=r"needs Dask, .*: pip install '.*\[cluster\]'"):
        list(collection.run([problem(1)], **options))
    assert [each.status for each in collection.run([problem(1)], device="cpu")] == ["measured"]
