"""A measurer whose times are computed, with as much noise as a test wants."""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from diode_lut.dataset import Record, Timing
from diode_lut.hardware import Hardware
from diode_lut.measure.tasks import Outcome, Task, Watch
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, DEFAULT, Config

SPLITS = [Config("decompose_k", (parts,)) for parts in (2, 4, 8, 16)]

UNFINISHED = 20

noise = 0.0  # by how much, as a fraction, a time of aten is off at most
disturbed: set[int] = set()  # values of m for which another program has the device meanwhile

KERNELS = [Problem.generated("reduction", "inner", x=64, r=128 + number) for number in range(12)]
"""Generated kernels, all of which are faster with LOOPED."""
LOOPED = Config.from_json({"template": "looped_reduction", "block_x": 1, "block_r": 64, "num_warps": 4})

_source = random.Random(0)


def record_kernels(directory: Path) -> None:
    """Write the files of recorded kernels."""
    directory.mkdir()
    for problem in KERNELS:
        record = {**problem.to_json(), "source": "", "arguments": []}
        (directory / f"{problem.r}.json").write_text(json.dumps(record))


def problems(count: int) -> list[Problem]:
    return [Problem.of("bmm", 16 + number, 64, 64, b=2, dtype="float32", layout="nn") for number in range(count)]


def best(problem: Problem) -> Config:
    """The config with the largest gain: every other problem has another one than its neighbours."""
    return SPLITS[problem.m % len(SPLITS)]


def gain(problem: Problem, config: Config) -> float:
    """Over aten: from 1.2 to 1.6 for the best config, and under 1 for others."""
    if config == ATEN:
        return 1.0
    return 1.2 + problem.m % 5 / 10 if config == best(problem) else 0.9


def measure(
    tasks: Sequence[Task], device: str, watch: Watch, search_space: str, stage: str = "autotune"
) -> Iterator[Outcome]:
    """A Measurer. Problems with m=UNFINISHED cannot be measured in the final stage."""
    for task in tasks:
        if stage == "final" and task.problem.m == UNFINISHED:
            yield Outcome(task.problem, "skipped", reason="for a test")
            continue
        if task.kernel is not None:
            ns = 1000.0 * task.problem.r
            timings = Timing.of(DEFAULT, ns), Timing.of(LOOPED, ns / 2)
            yield Outcome(task.problem, "measured", Record(task.problem, timings, stage))
            continue
        aten = 1000.0 * task.problem.m * (1 + noise * _source.uniform(-1, 1))
        times = {config: 1000.0 * task.problem.m / gain(task.problem, config) for config in SPLITS} | {ATEN: aten}
        slow = 1e6 if task.problem.m in disturbed else 1.0
        timings = tuple(Timing.of(config, slow * ns) for config, ns in times.items())
        yield Outcome(task.problem, "measured", Record(task.problem, timings, stage))


sweep = partial(measure, stage="sweep")
final = partial(measure, stage="final")


def finalists(records: Iterable[Record], problems: Iterable[Problem], hardware: Hardware) -> list[Task]:
    """A task for each problem that was swept."""
    swept = {record.problem for record in records}
    return [Task(problem) for problem in problems if problem in swept]
