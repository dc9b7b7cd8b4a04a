"""Measures building a table from a dataset file of a million timings, and evaluating it: ``tools/bench_build.py``.

With ``--records 99`` each problem has 99 records of a timing and one of aten, so that there are a million records.

The timings come from a plausible model of a GPU: tiles are computed in waves by all multiprocessors, memory traffic
sets a floor, large tiles are efficient, and every config has its own small bias on every problem. Pruning is with a
model that always says aten, so that its own time does not count.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diode_lut.build import Pruning, build
from diode_lut.dataset import Header, Record, Timing, header_bytes, read_dataset, record_bytes
from diode_lut.decide.sources import TableSource
from diode_lut.evaluate import evaluate
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem, contiguous_align
from diode_lut.table import read_table, write_table
from diode_lut.templates.config import ATEN, Config

HARDWARE = Hardware("Model GPU", "sm_90", 132)
CONFIGS_PER_PROBLEM = 100
TILES = list(product((16, 32, 64, 128), (32, 64, 128), (32, 64), (8,), (2, 3, 4), (4, 8)))[1 - CONFIGS_PER_PROBLEM :]
TARGET_SECONDS = 6.0
TARGET_PRUNED_SECONDS = 7.0
TARGET_EVALUATED_SECONDS = 5.0
TARGET_MB = 300

_Floats = npt.NDArray[np.float64]


def main() -> None:
    """Measure, or be the process that is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timings", type=int, default=1_000_000)
    parser.add_argument("--records", type=int, default=1, help="of each problem")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--build", nargs=2, type=Path, metavar=("DATASET", "TABLE"), help=argparse.SUPPRESS)
    parser.add_argument("--prune", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--evaluate", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build:
        dataset, table = options.build
        (evaluate_file if options.evaluate else build_file)(dataset, table, options.prune)
    else:
        measure(options.timings, options.records, options.seed)


def measure(timings: int, records: int, seed: int) -> None:
    """Print measured figures beside the targets."""
    with tempfile.TemporaryDirectory() as folder:
        dataset, table = Path(folder) / "timings.msgpack", Path(folder) / "table.json"
        write_dataset(dataset, timings // CONFIGS_PER_PROBLEM, records, np.random.default_rng(seed))
        pruned, seconds = seconds_of(dataset, table, "--prune"), seconds_of(dataset, table)
        evaluated = seconds_of(dataset, table, "--evaluate")
        megabytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"{'':24} {'measured':>10} {'target':>10}")
        print(f"{'file to file, seconds':24} {seconds:10.2f} {TARGET_SECONDS:10.2f}")
        print(f"{'with pruning, seconds':24} {pruned:10.2f} {TARGET_PRUNED_SECONDS:10.2f}")
        print(f"{'evaluating, seconds':24} {evaluated:10.2f} {TARGET_EVALUATED_SECONDS:10.2f}")
        print(f"{'peak memory, MB':24} {megabytes:10.0f} {TARGET_MB:10d}")
        print(f"{'dataset file, MB':24} {dataset.stat().st_size / 1e6:10.1f}")
        print(f"{'table file, MB':24} {table.stat().st_size / 1e6:10.1f}")


def seconds_of(dataset: Path, table: Path, *options: str) -> float:
    """How long a process takes that builds the table."""
    started = time.perf_counter()
    subprocess.run([sys.executable, __file__, "--build", dataset, table, *options], check=True)
    return time.perf_counter() - started


def build_file(dataset: Path, path: Path, prune: bool) -> None:
    """What the command does, in a process of its own so that its memory can be told."""
    result = build([read_dataset(dataset)], prune_with=Pruning(lambda _: ATEN, "aten") if prune else None)
    write_table(result.table, path)
    rows = len(result.table.entries)
    print(f"{result.timings} timings of {result.problems} problems: {rows} rows, regret {result.worst_regret:.2%}")


def evaluate_file(dataset: Path, path: Path, _prune: bool) -> None:
    """The same for ``evaluate``."""
    print(f"gain {evaluate(TableSource(read_table(path)), read_dataset(dataset)).summary.gain:.3f}")


def write_dataset(path: Path, problems: int, records: int, rng: np.random.Generator) -> None:
    """A dataset of this many problems, each with CONFIGS_PER_PROBLEM timings, divided into records with one of aten."""
    configs = [Config("triton_mm", params) for params in TILES]
    with path.open("wb") as file:
        file.write(header_bytes(Header(HARDWARE, benchmarker="a model")))
        for problem in random_problems(problems, rng):
            times = model_times(problem, rng)
            aten = float(times.min() * rng.normal(1, 0.04))
            timings = [Timing.of(config, ns) for config, ns in zip(configs, times.tolist(), strict=True)]
            for number in range(records):
                part = timings[number::records]
                file.write(record_bytes(Record(problem, (Timing.of(ATEN, aten), *part))))


def random_problems(count: int, rng: np.random.Generator) -> Iterator[Problem]:
    """Distinct problems with sizes as models have them: log-normal, n and k multiples of eight."""
    kinds = list(product(("mm", "addmm"), ("float16", "bfloat16"), ("nn", "nt")))
    seen: set[Problem] = set()
    while len(seen) < count:
        op, dtype, layout = kinds[rng.integers(len(kinds))]
        m, n, k = np.clip(rng.lognormal((6.6, 5.9, 6.2), (2.5, 1.7, 2.1)), 1, 65536).astype(int).tolist()
        n, k = -(-n // 8) * 8, -(-k // 8) * 8
        problem = Problem(op, dtype, layout, contiguous_align(dtype, layout, m, n, k), 1, m, n, k)
        if problem not in seen:
            seen.add(problem)
            yield problem


def model_times(problem: Problem, rng: np.random.Generator) -> _Floats:
    """Nanoseconds of each of TILES on the problem."""
    m, n, k = problem.m, problem.n, problem.k
    block_m, block_n, block_k, _, stages, warps = np.array(TILES).T
    waves = np.ceil(np.ceil(m / block_m) * np.ceil(n / block_n) / HARDWARE.sm_count)
    efficiency = np.minimum(1, block_m * block_n / 16384) ** 0.3 * (1 - 0.3 / stages) * (1 - 0.02 * (warps == 4))
    compute = waves * np.ceil(k / block_k) * block_k * block_m * block_n / (4096 * efficiency)
    memory = 2 * (m * k + k * n + m * n) / 4000 * (1 + 8 / np.sqrt(block_m * block_n))
    times: _Floats = (2000 + np.maximum(compute, memory)) * rng.normal(1, 0.004, len(TILES))
    return times


if __name__ == "__main__":
    main()
