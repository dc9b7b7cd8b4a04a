"""What of a sweep's results is timed again, with care."""

from __future__ import annotations

from diode_lut.collect.final import finalists
from diode_lut.collect.tasks import Task
from diode_lut.dataset import Record, Timing
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import ATEN, Config


def config(stages: int) -> Config:
    return Config("triton_mm", (64, 64, 64, 8, stages, 4))


def record(m: int, n: int = 64, **times: float | None) -> Record:
    """A sweep's record; the time of ``s3`` is that of the config with three stages, None for a failure."""
    timings = [
        Timing(ATEN if name == "aten" else config(int(name[1:])), ns, None if ns else "compile")
        for name, ns in times.items()
    ]
    return Record(Problem.of("mm", m, n, 64, dtype="float16", layout="nn"), tuple(timings), "sweep")


def test_the_best_and_aten() -> None:
    """Configs near the best are in, those far from it and failures are not, aten always is."""
    (task,) = finalists([record(64, aten=200, s2=100, s3=105, s4=150, s5=None)], 132)
    assert task == Task(record(64).problem, (ATEN, config(2), config(3)))


def test_aten_alone_where_nothing_comes_near() -> None:
    """Where aten is far ahead, nothing is timed against it."""
    (task,) = finalists([record(64, aten=100, s2=120, s3=130)], 132)
    assert task.configs == (ATEN,)


def test_more_where_rows_are_not_aligned() -> None:
    """There the sweep says less about the kernels that users will run."""
    times = {"aten": 200, "s1": 100, "s2": 105, "s3": 110, "s4": 115, "s5": 120, "s6": 125, "s7": 135}
    (task,) = finalists([record(64, n=61, **times)], 132)
    assert task.configs == (ATEN, *map(config, range(1, 7)))
    (task,) = finalists([record(64, **times)], 132)
    assert task.configs == (ATEN, *map(config, range(1, 4)))


def test_what_serves_many_problems_is_in() -> None:
    """Of configs equally near, those that serve more problems are timed."""
    others = [record(m, aten=200, s1=100, s2=100, s3=100, s4=100, s8=100.5) for m in range(65, 70)]
    crowded = record(64, aten=200, s1=100, s2=100, s3=100, s4=100, s5=101, s6=101, s7=101, s8=102)
    tasks = {task.problem: task for task in finalists([crowded, *others], 132)}
    assert config(8) in tasks[crowded.problem].configs
    alone = finalists([crowded], 132)[0].configs
    assert config(8) not in alone
