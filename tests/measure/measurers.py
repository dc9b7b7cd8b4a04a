"""Measurers for tests: real timings of eager GEMMs, and problems that ruin the process in every way."""

import math
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from diode_lut.dataset import Record, Timing
from diode_lut.hardware import Hardware
from diode_lut.measure.gemm import Gemm, make_gemm
from diode_lut.measure.tasks import Outcome, Task, Watch
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config

SPLIT = Config("decompose_k", (2,))

FAULTS, HANGS, KILLS_ONCE, KILLS, SKIPPED, SLOW = range(101, 107)  # values of m, the first two with SPLIT alone


def problem(m: int, n: int = 8) -> Problem:
    return Problem("bmm", "float32", "nn", 16, 2, m, n, 8)


def measure(
    tasks: Sequence[Task], device: str, watch: Watch, search_space: str, stage: str = "autotune"
) -> Iterator[Outcome]:
    """A Measurer. ``search_space`` is a directory, in which a file is left for each time a problem was begun."""
    for task in tasks:
        begun = len(list(Path(search_space).glob(f"{stage} {task.problem} *")))
        (Path(search_space) / f"{stage} {task.problem} {begun}").touch()
        yield _measure(task, device, watch, stage, begun)


sweep = partial(measure, stage="sweep")
final = partial(measure, stage="final")


def finalists(records: Iterable[Record], problems: Iterable[Problem], hardware: Hardware) -> list[Task]:
    """The config with the best time without an epilogue, for each problem."""
    best = {record.problem: min(record.timings, key=lambda timing: timing.ns or math.inf).config for record in records}
    return [Task(problem, (best[problem.alone],)) for problem in problems if problem.alone in best]


def _measure(task: Task, device: str, watch: Watch, stage: str, begun: int) -> Outcome:
    if task.problem.m == KILLS or (task.problem.m == KILLS_ONCE and not begun):
        os.kill(os.getpid(), signal.SIGKILL)
    if task.problem.m == SKIPPED:
        return Outcome(task.problem, "skipped", reason="for a test")
    if task.problem.m == SLOW:
        time.sleep(1)
    failed = {timing.config for timing in task.failed}
    configs = [config for config in task.configs or (SPLIT, ATEN) if config not in failed]
    timings = tuple(_time(task.problem, config, device, watch) for config in configs)
    return Outcome(task.problem, "measured", Record(task.problem, timings, stage))


def _time(problem: Problem, config: Config, device: str, watch: Watch) -> Timing:
    gemm = make_gemm(problem, device)
    with watch(problem, config, limit_s=0.5 if problem.m == HANGS else 60):
        if config == SPLIT and problem.m == FAULTS:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if config == SPLIT and problem.m == HANGS:
            time.sleep(600)
        return Timing.of(config, float(min(_once(gemm) for _ in range(3))))


def _once(gemm: Gemm) -> int:
    with torch.no_grad():
        begin = time.perf_counter_ns()
        gemm.function(*gemm.arguments)
        return time.perf_counter_ns() - begin
