"""Importing, loading, looking up and deciding: prints what was measured beside the figures to reach.

Run with ``make bench``. Lookups are timed one by one, as are the hook's decisions, for the inputs that Inductor gives
it for an H200 that is not there.
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from unittest import mock

import orjson

import diode_lut
from diode_lut.hardware import Hardware
from diode_lut.problem import BATCHED, DTYPES, GEMMS, LAYOUTS, NO_EPILOGUE, NO_VARIANT, Problem
from diode_lut.table import Candidate, Entry, Range, Table, read_table, write_table
from diode_lut.templates.config import ATEN, Config

if TYPE_CHECKING:
    from diode_lut.model.ranking import Model

HARDWARE = Hardware("NVIDIA H200", "sm_90", 132)
KINDS = [(op, dtype, layout, 16) for op in GEMMS for dtype in DTYPES[:2] for layout in LAYOUTS[:2]]
RUNS = 5
LOOKUPS = 20_000
DECISIONS = 2_000
MODEL = "model"
PARSE = "parse"
HIDDEN = (96, 64)  # neurons of the two layers
LEARNED = 16  # learned features of each candidate
IMPORT = """
import sys, time
started = time.perf_counter()
import diode_lut
print(time.perf_counter() - started)
assert "torch" not in sys.modules
"""


def main() -> None:
    """Measure everything, with one table of 100,000 entries."""
    print(f"{'':58} {'measured':>13} {'target':>12}")
    show("import diode_lut", min(in_new_process("-c", IMPORT)[0] for _ in range(RUNS)) * 1e3, "ms", 50)
    large = table(100_000)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "large.json"
        write_table(large, path)
        bench_loading(path, "100,000 entries", 1000, megabytes=150)
        bench_parsing(path)
        bench_decision(path)
        write_table(table(2_000), path)
        bench_loading(path, "2,000 entries", 25)
    bench_lookup(large)
    bench_model()


def show(what: str, measured: float, unit: str, target: float | None = None) -> None:
    """A line of the report."""
    aim = "" if target is None else f"< {target:g} {unit}"
    missed = "" if target is None or measured < target else "  missed"
    print(f"{what:58} {measured:>10.3g} {unit:2} {aim:>12}{missed}", flush=True)


def table(count: int) -> Table:
    """Rows of which about half are for one problem and half for ranges, with the winner and aten."""
    draw = random.Random(2)
    blocks = [16, 32, 64, 128, 256]
    configs = [
        Config("triton_mm", (*draw.choices(blocks, k=3), 8, draw.randint(2, 5), draw.choice((4, 8)))) for _ in range(99)
    ]
    rows = {row.key: row for row in (_row(draw, configs) for _ in range(count * 11 // 10))}
    return Table(HARDWARE, list(rows.values())[:count])


def _row(draw: random.Random, configs: list[Config]) -> Entry:
    def size() -> int:
        return int(2 ** draw.uniform(4, 14))

    def wide() -> Range:
        low = size()
        return low, int(low * draw.uniform(1, 1.3))

    kind = draw.choice(KINDS)
    op, *_ = kind
    batch = None if op not in BATCHED else (draw.randint(1, 64),) * 2
    m, n, k = [(exact, exact) for exact in (size(), size(), size())] if draw.random() < 0.5 else [wide() for _ in "mnk"]
    best = Candidate(draw.choice(configs), draw.randint(1000, 2000))
    return Entry(*kind, batch, m, n, k, (best, Candidate(ATEN)), draw.randint(1, 50))


def in_new_process(*arguments: str, **environment: str) -> list[float]:
    """The numbers that a Python process prints."""
    command, environment = [sys.executable, *arguments], {**os.environ, **environment}
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
    return [float(word) for word in answer.split()]


def bench_loading(path: Path, what: str, milliseconds: float, megabytes: float | None = None) -> None:
    """Loading in new processes, the best of several, and by how much that raises the process's peak of memory."""
    runs = [in_new_process(__file__, str(path)) for _ in range(RUNS)]
    show(f"load {what}, validated", min(seconds for seconds, _ in runs) * 1e3, "ms", milliseconds)
    show(f"load {what}: growth of peak memory", max(growth for _, growth in runs), "MB", megabytes)


def load(path: Path) -> None:
    """What the new process does."""
    before = peak_memory()
    started = time.perf_counter()
    read_table(path)
    seconds = time.perf_counter() - started
    print(seconds, peak_memory() - before)


def bench_parsing(path: Path) -> None:
    """Reading and checking a table against what orjson takes to parse the same file, in CPU time.

    The reader pauses garbage collection itself, which takes most of orjson's time where it is on.
    """
    for collection, target in (("off", 1.5), ("on", None)):
        (ratio,) = in_new_process(__file__, PARSE, collection, str(path))
        show(f"load 100,000 entries / orjson.loads, gc {collection}", ratio, "x", target)


def parse(collection: str, path: Path) -> None:
    """What the new process does: both in turn, the best of several."""
    data = path.read_bytes()
    if collection == "off":
        gc.disable()
    parsing, reading = [], []
    for _ in range(RUNS):
        parsing.append(cpu_seconds(orjson.loads, data))
        reading.append(cpu_seconds(read_table, path))
    print(min(reading) / min(parsing))


def cpu_seconds(call: Callable[[Any], object], argument: Any) -> float:
    """The CPU time of one call; what it gives is freed afterwards."""
    started = time.process_time()
    result = call(argument)
    seconds = time.process_time() - started
    del result
    return seconds


def peak_memory() -> float:
    """The most memory that this process has had so far, in MB; unlike getrusage's it leaves out the parent's."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def bench_lookup(large: Table) -> None:
    """Lookups once the index is built."""
    for kind in KINDS:
        large.lookup(Problem(*kind, 1, 1, 1, 1))
    rows = random.Random(4).sample(large.entries, LOOKUPS)
    problems = covered(rows)
    kinds = {
        "hit": problems,
        "hit of a row for one problem": covered(row for row in rows if row.is_exact),
        "hit of a row with ranges": covered(row for row in rows if not row.is_exact),
        "miss": [problem._replace(m=problem.m + 20_000) for problem in problems],
    }
    again = problems[:1000]
    for problem in again:
        large.lookup(problem)
    show("lookup among 100,000 entries, hit, asked before", microseconds(large.lookup, again * 20), "us", 1.5)
    for what, asked in kinds.items():
        show(f"lookup among 100,000 entries, {what}, first time", microseconds(large.lookup, asked), "us")
    probe = dict.fromkeys(covered(large.entries)).get
    show("for comparison: probe of a dict with 100,000 problems", microseconds(probe, problems), "us")


def covered(rows: Iterable[Entry]) -> list[Problem]:
    """For each row a problem that it covers."""
    draw = random.Random(3)
    return [
        Problem(row.op, row.dtype, row.layout, row.align, *(draw.randint(*size) if size else 1 for size in row.sizes))  # type: ignore[arg-type]
        for row in rows
    ]


def microseconds(call: Callable[[Any], object], arguments: Sequence[Any]) -> float:
    """The median time of a call, without what reading the clock takes."""
    clock = time.perf_counter_ns
    times, overhead = [], []
    for argument in arguments:
        started = clock()
        call(argument)
        times.append(clock() - started)
        started = clock()
        overhead.append(clock() - started)
    return (median(times) - median(overhead)) / 1e3


def bench_model() -> None:
    """Ranking candidates, all of which apply, with a network of the size that distill makes: in one thread.

    Distill makes models of up to 80 candidates for a problem.
    """
    variables = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    for count, target in ((80, None), (250, 0.25)):
        (milliseconds,) = in_new_process(__file__, MODEL, str(count), **variables)
        show(f"model, {count} candidates, one thread, features included", milliseconds, "ms", target)


def rank(count: int) -> None:
    """The new process's answers. Each problem is another, because a model remembers its rankings."""
    problem = Problem("mm", "bfloat16", "nt", 16, 1, 1024, 4096, 1024)
    asked = model(count - 1)
    ranking = asked.rank(problem)
    assert ranking is not None
    print(microseconds(asked.rank, [problem._replace(m=m) for m in range(1025, 1025 + DECISIONS)]) / 1e3)


def model(count: int) -> Model:
    """A model with random weights, with as many tiled candidates, and aten."""
    import numpy as np

    from diode_lut.model import Kind, Split
    from diode_lut.model.features import CONFIG_FEATURES, JOINT_FEATURES, PROBLEM_FEATURES
    from diode_lut.model.ranking import Calibration, Model, Weights

    first, second = HIDDEN
    config = len(CONFIG_FEATURES) + LEARNED
    inputs = [(LEARNED, count + 1), *((first, of) for of in (len(PROBLEM_FEATURES), config, len(JOINT_FEATURES)))]
    shapes = [*inputs, (first, 1), (second, first), (second, 1), (1, second), (1, 1), (1, first + second), (1, 1)]
    draw = np.random.default_rng(5)
    weights = Weights(*(draw.normal(scale=0.05, size=shape).astype(np.float32) for shape in shapes))
    blocks = product((16, 32, 64, 128), (16, 32, 64, 128), (16, 32, 64), (2, 3), (2, 4, 8))
    configs = [Config("triton_mm", (m, n, k, 8, stages, warps)) for m, n, k, stages, warps in blocks]
    kind = Kind("mm", "bfloat16", "nt", 16, (1, 1), (1, 8192), (1, 8192), (1, 8192))
    return Model(HARDWARE, weights, [*configs[:count], ATEN], [kind], Calibration(1.0, (9.0,), (1.0,)), Split(0, 0.0))


def bench_decision(path: Path) -> None:
    """From Inductor's inputs of a GEMM to its config, as in the hook: with a row, and with the model."""
    import torch

    from diode_lut.hook.problems import problem_of
    from diode_lut.hook.snapshot import InductorSnapshot
    from tests.fake_cuda import Input, fake_cuda, lower

    measured: list[float] = []

    def measure(inputs: Any, op: str, **options: Any) -> Problem | None:
        def decide(m: int) -> None:
            problem = problem_of(inputs, "mm")
            assert problem is not None
            snapshot.decide(problem._replace(m=m), inputs.device(), padding=False)

        found = problem_of(inputs, op, **options)
        assert found is not None
        asked = [found.m] * DECISIONS if found == hit else [*range(found.m + 1, found.m + DECISIONS)]
        decide(found.m)  # the first has to load what answers
        measured.append(microseconds(decide, asked))
        return found

    wanted = (*KINDS[0], NO_EPILOGUE, NO_VARIANT)
    of_kind = (problem for problem in covered(read_table(path).entries) if problem.kind == wanted)
    hit = next(problem for problem in of_kind if problem.n % 8 == problem.k % 8 == 0)  # as align 16 has it
    with (
        fake_cuda(),
        diode_lut.config.patch(tables=(str(path),)),
        mock.patch("diode_lut.hook.problems.problem_of", measure),
    ):
        snapshot = InductorSnapshot()  # one for all, as in a compile
        for problem in (hit, hit._replace(m=20_000)):
            shapes = (problem.m, problem.k), (problem.k, problem.n)
            lower(torch.mm, *(Input(shape, torch.float16) for shape in shapes))
    show("hook decision, hit", measured[0], "us", 100)
    show("hook decision, no row, so that the model is asked", measured[1], "us", 1000)


if __name__ == "__main__":
    if MODEL in sys.argv:
        rank(int(sys.argv[2]))
    elif PARSE in sys.argv:
        parse(sys.argv[2], Path(sys.argv[3]))
    elif len(sys.argv) > 1:
        load(Path(sys.argv[1]))
    else:
        main()
