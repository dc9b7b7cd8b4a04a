"""Loading, looking up and checking tables: prints what was measured beside the figures to reach.

Run with ``python tools/bench_table.py``. Lookups are timed one by one, for problems that were never looked up before.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

from diode_lut.problem import ATEN, DTYPES, LAYOUTS, OPS, Config, Hardware, Problem
from diode_lut.table import Candidate, Entry, Range, Table, check_file, read_table, write_table
from diode_lut.table.entry import BATCHED
from diode_lut.table.overlap import overlaps

KINDS = [(op, dtype, layout, 16) for op in OPS for dtype in DTYPES[:2] for layout in LAYOUTS[:2]]
RUNS = 5
PROBLEMS = 20_000


def table(count: int) -> Table:
    """Rows of which about half are for one problem and half for ranges, with the winner and aten."""
    draw = random.Random(2)
    blocks = [16, 32, 64, 128, 256]
    configs = [
        Config("triton_mm", (*draw.choices(blocks, k=3), 8, draw.randint(2, 5), draw.choice((4, 8)))) for _ in range(99)
    ]
    rows = {row.key: row for row in (_row(draw, configs) for _ in range(count * 11 // 10))}
    return Table(Hardware("GPU", "sm_90", 132), list(rows.values())[:count])


def _row(draw: random.Random, configs: list[Config]) -> Entry:
    def size() -> int:
        return int(2 ** draw.uniform(4, 14))

    def wide() -> Range:
        low = size()
        return low, int(low * draw.uniform(1, 1.3))

    kind = draw.choice(KINDS)
    batch = None if kind[0] not in BATCHED else (draw.randint(1, 64),) * 2
    sizes = [(exact, exact) for exact in (size(), size(), size())] if draw.random() < 0.5 else [wide(), wide(), wide()]
    best = Candidate(draw.choice(configs), draw.randint(1000, 2000))
    return Entry(*kind, batch, *sizes, (best, Candidate(ATEN)), draw.randint(1, 50))


def in_new_process(path: Path) -> tuple[float, float]:
    """Seconds to load the table, and by how many MB that raises the process's peak of memory."""
    answer = subprocess.run([sys.executable, __file__, path], capture_output=True, text=True, check=True).stdout
    seconds, megabytes = map(float, answer.split())
    return seconds, megabytes


def load(path: Path) -> None:
    """What the new process does."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    read_table(path)
    seconds = time.perf_counter() - started
    print(seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def covered(rows: Iterable[Entry]) -> list[Problem]:
    """For each row a problem that it covers."""
    draw = random.Random(3)
    return [Problem(*row[:4], *(draw.randint(*size) if size else 1 for size in row[4:8])) for row in rows]  # type: ignore[arg-type]


def microseconds(call: Callable[[Problem], object], problems: list[Problem]) -> float:
    """The median time of a call, without what reading the clock takes."""
    clock = time.perf_counter_ns
    times, overhead = [], []
    for problem in problems:
        started = clock()
        call(problem)
        times.append(clock() - started)
        started = clock()
        overhead.append(clock() - started)
    return (median(times) - median(overhead)) / 1000


def seconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def show(what: str, measured: float, unit: str, target: float | None = None) -> None:
    """A line of the report."""
    aim = "" if target is None else f"< {target:g} {unit}"
    print(f"{what:<58} {measured:>9.3g} {unit:<3} {aim:>12} {'' if target is None or measured < target else 'missed'}")


def bench_loading(directory: Path) -> None:
    """Loading in new processes, best of several."""
    for count, unit, target in ((100_000, "s", 1.0), (2_000, "ms", 25.0)):
        path = directory / f"{count}.json"
        write_table(table(count), path)
        runs = [in_new_process(path) for _ in range(RUNS)]
        show(f"load {count:,} entries", min(runs)[0] * (1000 if unit == "ms" else 1), unit, target)
        if count == 100_000:
            show(f"load {count:,} entries: growth of peak memory", max(run[1] for run in runs), "MB", 150.0)
    show("check 2,000 entries, with jsonschema", seconds(lambda: check_file(path)), "s")


def bench_lookup() -> None:
    """Lookups in a table of 100,000 entries, once its index is built."""
    large = table(100_000)
    first = [Problem(*kind, 1, 1, 1, 1) for kind in KINDS]
    show("index of 100,000 entries, all 16 groups", seconds(lambda: [large.lookup(problem) for problem in first]), "s")
    rows = random.Random(4).sample(large.entries, PROBLEMS)
    problems = covered(rows)
    kinds = {
        "row or range": problems,
        "a row for just this problem": covered(row for row in rows if row.volume == 1),
        "a row with ranges": covered(row for row in rows if row.volume > 1),
        "no row": [problem._replace(m=problem.m + 20_000) for problem in problems],
        "fifty problems, again and again": problems[:50] * 400,
    }
    for what, asked in kinds.items():
        show(f"lookup: {what}", microseconds(large.lookup, asked), "us", 1.5)
    probe = dict.fromkeys(covered(large.entries)).get
    show("for comparison: probe of a dict with 100,000 problems", microseconds(probe, problems), "us")


def bench_overlaps() -> None:
    """Rows of the same volume, so that each has to be compared with all others."""
    draw = random.Random(5)
    starts = [tuple(draw.randint(1, 10_000) for _ in range(3)) for _ in range(10_000)]
    rows = [Entry(*KINDS[0], None, *((low, low + 99) for low in start), (Candidate(ATEN),)) for start in starts]
    entries = dict(enumerate(rows))
    show("overlaps among 10,000 rows of the same volume", seconds(lambda: list(overlaps(entries))), "s", 1.0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        load(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            bench_loading(Path(directory))
        bench_lookup()
        bench_overlaps()
