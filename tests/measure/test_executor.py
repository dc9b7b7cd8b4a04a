"""Collecting in one process, which can lose everything but what is on the disk."""

import resource
import time

import pytest

from diode_lut.dataset import Timing
from diode_lut.errors import DeviceLostError
from diode_lut.measure.collector import InProcess
from diode_lut.measure.tasks import Shard, Task, find_setup
from diode_lut.templates.config import ATEN
from tests.forks import Forks
from tests.measure.collection import Collection
from tests.measure.measurers import FAULTS, HANGS, SLOW, SPLIT, problem


def test_fault_names_the_config(collection: Collection) -> None:
    """Without a worker to replace, a kernel that poisons the device ends the collection; the rest is on disk."""
    with pytest.raises(DeviceLostError) as caught:
        list(collection.run([problem(110), problem(FAULTS), problem(1)], device="cpu"))
    assert str(caught.value).startswith(f"{problem(FAULTS)}, {SPLIT}: died (launch), and took this process with it")
    assert "--device all" in str(caught.value)
    assert collection.timings().keys() == {problem(110)}


@pytest.mark.slow
def test_hang_ends_the_process_and_names_the_config(collection: Collection, after_inductor: Forks) -> None:
    """A kernel that never returns is named, the exit code is 1, and what was measured before is on disk."""
    done = after_inductor.run("-m", *collection.module([problem(110), problem(HANGS)], "--device", "cpu"))
    assert done.returncode == 1
    assert f"error: {problem(HANGS)}, {SPLIT}: hung, and took this process with it" in done.stderr
    assert collection.timings().keys() == {problem(110)}


def test_budget_ends_after_the_current_problem(collection: Collection) -> None:
    """In this process, too, no problem is begun once the time is over."""
    setup = find_setup("cpu", "autotune", str(collection.marks))
    shards = [Shard("autotune", (Task(problem(SLOW)), Task(problem(1)))), Shard("autotune", (Task(problem(2)),))]
    outcomes = list(InProcess().measure(shards, setup, time.monotonic() + 0.5))
    assert [each.problem for each in outcomes] == [problem(SLOW)]
    assert list(InProcess().measure(shards, setup, time.monotonic())) == []


def test_configs_that_failed_are_in_the_record(collection: Collection) -> None:
    """What is known to cost a worker is not tried again, and stands in the record with its reason."""
    setup = find_setup("cpu", "autotune", str(collection.marks))
    failure = Timing(SPLIT, None, "timeout")
    (outcome,) = InProcess().measure([Shard("autotune", (Task(problem(HANGS), (), (failure,)),))], setup, 1e99)
    assert outcome.record is not None
    assert [timing.config for timing in outcome.record.timings] == [ATEN, SPLIT]
    assert outcome.record.timings[1] == failure


def test_no_time_left_is_no_error(collection: Collection, after_inductor: Forks) -> None:
    """A budget that ends before anything is measured exits 0 and says what is left."""
    module = collection.module([problem(1), problem(2)], "--device", "cpu", "--budget", "1e-9")
    done = after_inductor.run("-m", *module)
    assert done.returncode == 0
    assert "2 problems left: run the same command again" in done.stderr


@pytest.mark.slow
def test_full_disk_costs_the_current_record_only(collection: Collection) -> None:
    """Where the file can grow no more, that is said with exit code 2, and what was written can be read."""
    problems = [problem(m) for m in range(100, 0, -1)]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    with collection.command(problems, "--device", "cpu", preexec_fn=limit) as process:
        _, errors = process.communicate()
    assert process.returncode == 2
    assert f"error: {collection.path}: cannot be written: File too large" in errors
    assert list(collection.timings()) == problems[: len(collection.timings())] != []
    list(collection.run(problems, device="cpu"))
    assert list(collection.timings()) == problems
