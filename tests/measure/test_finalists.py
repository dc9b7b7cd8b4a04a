"""What of a sweep's results is timed again, with care."""

from collections.abc import Sequence

from diode_lut.dataset import Record, Timing
from diode_lut.hardware import Hardware
from diode_lut.measure.tasks import Task, finalists
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config


def config(stages: int) -> Config:
    return Config("triton_mm", (64, 64, 64, 8, stages, 4))


def record(m: int, n: int = 64, **times: float | None) -> Record:
    """A sweep's record; the time of ``s3`` is that of the config with three stages, None for a failure."""
    timings = [
        Timing(ATEN if name == "aten" else config(int(name[1:])), ns, None if ns else "compile")
        for name, ns in times.items()
    ]
    return Record(Problem.of("mm", m, n, 64, dtype="float16", layout="nn"), tuple(timings), "sweep")


H200 = Hardware("NVIDIA H200", "sm_90", 132)


def tasks_of(records: Sequence[Record], problems: Sequence[Problem] = (), hardware: Hardware = H200) -> list[Task]:
    """The finalists, by default of the problems that were swept."""
    return finalists(records, problems or [record.problem for record in records], hardware)


def test_the_best_and_aten() -> None:
    """Configs near the best are in, those far from it and failures are not, aten always is."""
    (task,) = tasks_of([record(64, aten=200, s2=100, s3=105, s4=150, s5=None)])
    assert task == Task(record(64).problem, (ATEN, config(2), config(3)))


def test_aten_alone_where_nothing_comes_near() -> None:
    """Where aten is far ahead, nothing is timed against it."""
    (task,) = tasks_of([record(64, aten=100, s2=120, s3=130)])
    assert task.configs == (ATEN,)


def test_more_where_rows_are_not_aligned() -> None:
    """There the sweep says less about the kernels that users will run."""
    times = {"aten": 200, "s1": 100, "s2": 105, "s3": 110, "s4": 115, "s5": 120, "s6": 125, "s7": 135}
    (task,) = tasks_of([record(64, n=61, **times)])
    assert task.configs == (ATEN, *map(config, range(1, 7)))
    (task,) = tasks_of([record(64, **times)])
    assert task.configs == (ATEN, *map(config, range(1, 4)))


def test_what_serves_many_problems_is_in() -> None:
    """Of configs equally near, those that serve more problems are timed."""
    others = [record(m, aten=200, s1=100, s2=100, s3=100, s4=100, s8=100.5) for m in range(65, 70)]
    crowded = record(64, aten=200, s1=100, s2=100, s3=100, s4=100, s5=101, s6=101, s7=101, s8=102)
    tasks = {task.problem: task for task in tasks_of([crowded, *others])}
    assert config(8) in tasks[crowded.problem].configs
    alone = tasks_of([crowded])[0].configs
    assert config(8) not in alone


def fused(epilogue: str, **times: float) -> tuple[Config, ...]:
    """The finalists of a problem with an epilogue, by the times of its sweep; ``w8`` is a config with eight warps."""
    timings = [
        Timing(ATEN if name == "aten" else _tiled(int(name[1:]), 8 if name[0] == "w" else 4), ns)
        for name, ns in times.items()
    ]
    swept = Record(record(64).problem, tuple(timings), "sweep")
    problem = swept.problem._replace(epilogue=epilogue)
    (task,) = tasks_of([swept], [problem])
    assert task.problem == problem
    return task.configs


def _tiled(block: int, warps: int) -> Config:
    return Config("triton_mm", (block, 64, 64, 8, 3, warps))


def test_kernels_for_few_rows_are_added() -> None:
    """They compete where A has few rows, columns of B have no gaps and nothing follows; a sweep does not have them."""

    def templates(m: int, layout: str, epilogue: str = "none") -> set[str]:
        each = Problem.of("mm", m, 64, 64, dtype="bfloat16", layout=layout, epilogue=epilogue)
        times = (Timing(ATEN, 200), Timing(config(2), 100))
        (task,) = finalists([Record(each.alone, times, "sweep")], [each], H200)
        return {each.template for each in task.configs}

    assert templates(4, "nt") == {"aten", "triton_mm", "triton_few_rows"}
    for others in ((5, "nt"), (4, "nn"), (4, "nt", "light")):
        assert templates(*others) == {"aten", "triton_mm"}


def test_kernels_that_an_epilogue_may_prefer() -> None:
    """Behind a GEMM with an epilogue, more kernels come near the best, however much faster aten is alone."""
    times = {"aten": 50, "s32": 100, "s64": 112, "s128": 125, "w128": 150, "s16": 170}
    assert fused("light", **times) == (ATEN, _tiled(32, 4), _tiled(64, 4))
    assert fused("medium", **times) == (ATEN, _tiled(32, 4), _tiled(64, 4), _tiled(128, 4))
    assert fused("heavy", **times) == (ATEN, _tiled(32, 4), _tiled(64, 4), _tiled(128, 4), _tiled(128, 8))


def test_one_kernel_of_each_tile_with_an_epilogue() -> None:
    """Configs that differ in their loop over K alone pay the same for an epilogue, so the best of them is timed."""
    swept = record(64, aten=200, s2=100, s3=101, s4=102)
    problem = swept.problem._replace(epilogue="light")
    assert tasks_of([swept], [problem]) == [Task(problem, (ATEN, config(2)))]
    assert {task.problem for task in tasks_of([swept], [problem, swept.problem])} == {problem, swept.problem}


def test_padded_operands_compete() -> None:
    """Of the configs with padding, the best are timed too if they come near, fewer of them: their rows are aligned."""
    plain = record(64, n=61, aten=200, s1=120, s2=125, s3=160)
    times = {1: 100, 2: 105, 3: 111, 4: 120, 5: 104, 6: 103, 7: 102}
    timings = tuple(Timing(config(stages).padded(8), ns, None) for stages, ns in times.items())
    (task,) = tasks_of([plain._replace(timings=(*plain.timings, *timings))])
    best = [config(stages).padded(8) for stages in (1, 7, 6, 5)]
    assert task.configs == (ATEN, config(1), config(2), *best)


def test_the_best_padded_kernel_is_timed_however_slow() -> None:
    """A row can then say that padding does not pay, and Inductor need not find out by its own benchmark."""
    plain = record(64, n=61, aten=200, s1=100)
    slow = Timing(config(3).padded(8), 500, None), Timing(ATEN.padded(8), 400, None)
    (task,) = tasks_of([plain._replace(timings=(*plain.timings, *slow))])
    assert task.configs == (ATEN, config(1), ATEN.padded(8))


def test_groups_of_a_padded_kernel_are_padded() -> None:
    """Another order of tiles is tried with the same padding."""
    timings = (Timing(config(3).padded(8), 100, None), Timing(ATEN, 200, None))
    problem = Problem.of("mm", 8192, 8191, 512, dtype="float16", layout="nn")
    (task,) = tasks_of([Record(problem, timings, "sweep")])
    groups = [each.tiles.group_m for each in task.configs if each.kernel.tiled]
    assert groups == [8, 1, 4, 16]
    assert {each.pad for each in task.configs} == {1, 8}


def test_compiler_options_on_amd() -> None:
    """On an AMD GPU, the best kernel is timed with other options of Triton's compiler, too."""
    swept = [record(64, aten=200, s2=100, s3=150)]
    (task,) = tasks_of(swept, hardware=Hardware("AMD Instinct MI300X", "gfx942", 304))
    others = {"waves_per_eu": 2}, {"matrix_instr_nonkdim": 32}, {"kpack": 1}
    variants = [Config.make("triton_mm", {**config(2).tunables, **options}) for options in others]
    assert task.configs == (ATEN, config(2), *variants)
    assert tasks_of(swept)[0].configs == (ATEN, config(2))
    aten = tasks_of([record(64, aten=100, s2=120)], hardware=Hardware("AMD Instinct MI300X", "gfx942", 304))
    assert aten[0].configs == (ATEN,)
