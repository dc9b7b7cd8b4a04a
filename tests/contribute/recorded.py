"""A measurer that plays back an H200's recorded timings: whole runs of ``adopt`` and ``verify`` without a GPU."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import pytest

from diode_lut.dataset import Record, read_dataset
from diode_lut.measure import MEASURERS, METHODS
from diode_lut.measure import tasks as setup
from diode_lut.measure.tasks import Outcome, Task, Watch
from diode_lut.problem import Problem

TABLES = Path(__file__).parents[2] / "tables"
DATASETS = TABLES / "datasets"
RUNS = [
    DATASETS / "nvidia-h200-models.msgpack.zst",
    *(
        path
        for kind in ("few-rows", "between", "epilogues", "padding", "float8", "int8", "grouped", "attention")
        for path in sorted((DATASETS / kind).glob("nvidia-h200*.msgpack.zst"))
        if not path.stem.endswith(("-random.msgpack", "-test.msgpack"))
    ),
]
"""The datasets of the H200's table, except kernels for few rows."""

_source = random.Random(0)


@cache
def records() -> dict[tuple[str, Problem], list[Record]]:
    """By stage and problem: a record for each time that it was measured."""
    found = defaultdict(list)
    for path in RUNS:
        for record in read_dataset(path):
            found[record.stage, record.problem].append(record)
    return found


def measure(tasks: Sequence[Task], device: str, watch: Watch, search_space: str, stage: str) -> Iterator[Outcome]:
    """A Measurer, which takes a run at random, and of other runs the configs that were not timed in it.

    Padding was measured later, on another H200, so only configs with a ``pad`` have the times of that run.
    """
    for task in tasks:
        runs = records().get((stage, task.problem), ())
        with_padding = [run for run in runs if any(timing.config.pad > 1 for timing in run.timings)]
        without = [run for run in runs if run not in with_padding]
        drawn = [*with_padding, *_source.sample(without, len(without))]
        times = {timing.config: timing for run in drawn for timing in run.timings}
        timings = tuple(times[config] for config in task.configs or times if config in times)
        if timings:
            yield Outcome(task.problem, "measured", Record(task.problem, timings, stage))
        else:
            yield Outcome(task.problem, "skipped", reason="not recorded")


sweep = partial(measure, stage="sweep")
final = partial(measure, stage="final")


def play_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring on the CPU gives the timings of an H200, in both stages."""
    header = read_dataset(RUNS[0]).header
    monkeypatch.setattr(setup, "_make_header", lambda *_: header)
    monkeypatch.setitem(METHODS, "autotune", METHODS["sweep"])
    for stage in METHODS["sweep"]:
        monkeypatch.setitem(MEASURERS, stage, f"tests.contribute.recorded:{stage}")
