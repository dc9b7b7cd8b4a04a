from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diode_lut.measure.tasks import MAX_SHARD_TASKS, Shard, Task, family_of, make_shards, next_shard
from diode_lut.problem import Problem

PROBLEMS = st.builds(
    Problem.of,
    st.sampled_from(("mm", "addmm")),
    *[st.integers(1, 30000)] * 3,
    dtype=st.sampled_from(("float16", "bfloat16")),
    layout=st.sampled_from(("nn", "nt")),
)
TASKS = st.lists(PROBLEMS, max_size=300, unique=True).map(lambda problems: [Task(each) for each in problems])


def flops(task: Task) -> int:
    return task.problem.m * task.problem.n * task.problem.k


def shard(op: str, size: int = 2) -> Shard:
    return Shard(
        "sweep", tuple(Task(Problem.of(op, m, 8, 8, dtype="float16", layout="nn")) for m in range(1, size + 1))
    )


@given(tasks=TASKS, workers=st.integers(1, 16))
def test_shards_hold_every_task_once(tasks: list[Task], workers: int) -> None:
    """No task is lost or doubled, whatever the problems and however many workers."""
    shards = make_shards("sweep", tasks, workers)
    assert sorted(task for each in shards for task in each.tasks) == sorted(tasks)
    assert all(each.stage == "sweep" for each in shards)


@given(tasks=TASKS, workers=st.integers(1, 16))
def test_shards_are_small_and_of_one_family(tasks: list[Task], workers: int) -> None:
    """A shard has at most MAX_SHARD_TASKS problems of one family, and families follow each other, large GEMMs first."""
    shards = make_shards("sweep", tasks, workers)
    assert all(1 <= len(each.tasks) <= MAX_SHARD_TASKS for each in shards)
    assert all({family_of(task.problem) for task in each.tasks} == {each.family} for each in shards)
    families = [family for family, _ in groupby(shards, key=lambda each: each.family)]
    assert len(set(families)) == len(families)
    for family in families:
        sizes = [flops(task) for each in shards if each.family == family for task in each.tasks]
        assert sizes == sorted(sizes, reverse=True)


def test_many_workers_get_smaller_shards() -> None:
    """One family is cut so that all workers have something to do until the end."""
    tasks = [Task(Problem.of("mm", m, 8, 8, dtype="float16", layout="nn")) for m in range(1, 97)]
    assert [len(make_shards("sweep", tasks, workers)) for workers in (1, 8)] == [1, 32]


def test_final_stage_keeps_no_families_apart() -> None:
    """Its kernels are for one problem each, so one shard has problems of all families."""
    tasks = [task for op in ("mm", "bmm") for task in shard(op).tasks]
    (final,) = make_shards("final", tasks, 1)
    assert (set(final.tasks), final.family) == (set(tasks), None)
    assert len(make_shards("sweep", tasks, 1)) == 2


@pytest.mark.parametrize(
    ("last", "in_progress", "taken"),
    [
        (None, [], "mm"),
        (None, ["mm"], "bmm"),
        ("mm", ["mm"], "mm"),
        ("addmm", ["mm", "bmm"], "addmm"),
        ("baddbmm", ["mm", "bmm", "addmm"], "mm"),
    ],
)
def test_worker_goes_on_with_its_family(last: str | None, in_progress: list[str], taken: str) -> None:
    """A worker keeps to the family of its kernels, then takes one that no worker has in progress, then the first."""
    backlog = [shard("mm"), shard("bmm"), shard("addmm")]
    families = [shard(op).family for op in in_progress]
    assert next_shard(backlog, last and shard(last).family, families) == shard(taken)


@pytest.mark.parametrize(("size", "sizes"), [(0, []), (1, [1]), (2, [1, 1]), (5, [2, 3])])
def test_halves_hold_what_the_shard_held(size: int, sizes: list[int]) -> None:
    """A shard is cut in two; nothing is made of none."""
    parts = shard("mm", size).halves()
    assert [len(part.tasks) for part in parts] == sizes
    assert [task for part in parts for task in part.tasks] == list(shard("mm", size).tasks)
