"""Which problem of stage ``final`` is measured next."""

from pathlib import Path

from torch._inductor import config as inductor_config

from diode_lut.measure.programs import Program
from diode_lut.measure.stages import Ahead, Prepared, take_compiled
from diode_lut.measure.tasks import Task
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN


def problem(m: int) -> Problem:
    return Problem.of("mm", m, 64, 64, dtype="float16", layout="nn")


def compiling(task: Task, code: str) -> Prepared:
    """A task with one kernel, whose code is being loaded."""
    program = Program(lambda: code)
    with inductor_config.patch(compile_threads=1):
        program.compile()
    return Prepared(task, {ATEN: program})


def test_what_is_compiled_is_measured_first(tmp_path: Path) -> None:
    """A problem whose kernel takes long to compile holds up no other, neither of its queue nor of another one."""
    done = tmp_path / "done"
    wait = f"import os, time\nwhile not os.path.exists({str(done)!r}): time.sleep(0.01)"
    slow = Ahead(
        [Task(problem(m)) for m in (64, 128)], lambda task: compiling(task, {64: wait}.get(task.problem.m, ""))
    )
    fast = Ahead([Task(problem(256))], lambda task: compiling(task, ""))
    first = [take_compiled([slow, fast]) for _ in range(2)]
    assert {each.task.problem.m for each in first if each} == {128, 256}
    done.touch()
    rest = [take_compiled([slow, fast]) for _ in range(2)]
    assert [each and each.task.problem.m for each in rest] == [64, None]


def test_few_problems_are_compiled_ahead() -> None:
    """Others begin only when one of them is measured."""
    begun: list[int] = []

    def prepare(task: Task) -> Prepared:
        begun.append(task.problem.m)
        return Prepared(task, {})

    queue = Ahead([Task(problem(m)) for m in range(1, 40)], prepare)
    assert take_compiled([queue]) is not None
    first = len(begun)
    assert begun == list(range(1, first + 1))
    assert take_compiled([queue]) is not None
    assert len(begun) == first + 1 < 39
