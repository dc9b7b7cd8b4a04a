"""Datasets of a synthetic device, whose times follow from the number and the size of tiles."""

import math
import random
from pathlib import Path

from diode_lut.dataset import DatasetWriter, Header, Record, Timing
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config
from tests.model.small import H200

CONFIGS = [
    Config("triton_mm", (m, n, 64, 8, stages, 4)) for m in (32, 64, 128) for n in (32, 64, 128) for stages in (3, 4)
]


def problems(count: int, dtype: str = "bfloat16") -> list[Problem]:
    """``count`` linear layers of various sizes."""
    sizes = [32, 64, 128, 256, 512, 1024, 2048, 4096]
    every = [Problem("mm", dtype, "nt", 16, 1, m, n, k) for m in sizes for n in sizes[2:] for k in (256, 1024, 4096)]
    return random.Random(1).sample(every, count)


def time(config: Config, problem: Problem) -> float:
    """Nanoseconds: waves of tiles, each proportional to the tile's size; aten is fast on large problems."""
    if config == ATEN:
        return 4000 + problem.m * problem.n * problem.k / 400_000
    block_m, block_n, _, _, stages, _ = config.params
    waves = math.ceil(math.ceil(problem.m / block_m) * math.ceil(problem.n / block_n) / H200.sm_count)
    return 3000 + waves * (block_m * block_n + 4000) * problem.k / 30_000 / (1 + 0.02 * stages)


def write(path: Path, count: int) -> Path:
    """Write a dataset: all configs in the sweep, the best three and aten in the final stage, 5 % faster."""
    with DatasetWriter(path, Header(H200, torch="2.11.0", measured_on="2026-11-21")) as writer:
        for problem in problems(count):
            times = {config: time(config, problem) for config in [*CONFIGS, ATEN]}
            writer.append(Record(problem, tuple(Timing(*each) for each in times.items()), "sweep"))
            best = sorted(times, key=lambda config: times[config])[:3]
            final = {config: 0.95 * times[config] for config in {*best, ATEN}}
            writer.append(Record(problem, tuple(Timing(*each) for each in final.items()), "final"))
    return path
