"""How often ``verify`` is right, from recorded timings, without a GPU: ``python tools/score_verify.py``.

A good table is one whose answers are measured again in a later run. Where a GEMM was measured in such a run
(``datasets/afterwards/``) its gain there is taken. GEMMs with epilogues were not: their gain is the recorded one, off
by as much as that of another GEMM, drawn at random.

A bad table has the configs of 30 % of its rows swapped at random, within an op, dtype, layout and epilogue. Their gains
are those of the timings that the table was built from, off in the same way. With an epilogue, a config that was only
timed without one is as much slower than the best as it is there. Half of the swapped configs were not timed at all,
because the sweep left them out. They are counted in two ways: as off by as much as another swapped config that was
timed, drawn at random; or, which is surely too few, as not off at all.
"""

import argparse
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bench_adopt import swap

from diode_lut.build.measurements import combined, measurements_of
from diode_lut.contribute.judge import SAMPLE, Drift, Problems, RemeasuredRow, comparable, datasets_beside, sample_of
from diode_lut.dataset import Dataset, Record, read_dataset
from diode_lut.problem import NO_EPILOGUE, Problem
from diode_lut.table import Candidate, Table, read_table
from diode_lut.templates.config import BASELINES, Config, baseline

TABLE = Path(__file__).parent.parent / "tables" / "nvidia-h200.json"
AFTERWARDS = TABLE.parent / "datasets" / "afterwards" / "nvidia-h200.msgpack.zst"
TABLES = 20  # number of bad tables
Gains = dict[Problem, dict[Config, float]]  # over the op's baseline, for each config that was timed


def main() -> None:
    """Print the rows that can be compared, and how samples of them are judged."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    draws = parser.parse_args().draws
    table = read_table(TABLE)
    files = datasets_beside(TABLE)
    datasets = [files[digest] for digest in table.provenance["datasets"]]
    run, cautious = (LaterRun(table, datasets, untimed_hold=each) for each in (False, True))
    known: Sequence[Dataset]
    for name, known in (("from the table alone", ()), ("with its datasets", datasets)):
        rows = comparable(table, known)
        print(f"{name}: {len(rows)} of {len(table.entries)} rows, {sum(map(len, rows))} problems")
        print(f"  a good table: {verdicts(run, [table], known, draws)}")
        bad = [swap(table, 0.3, seed) for seed in range(TABLES)]
        print(f"  30 % of the rows swapped: {verdicts(run, bad, known, draws // TABLES)}")
        print(f"    and as if what was not timed held: {verdicts(cautious, bad, known, draws // TABLES)}")


class LaterRun:
    """What a later run measures; ``untimed_hold`` is whether the recorded gain of a config without a time is right."""

    def __init__(self, table: Table, datasets: Iterable[Dataset], *, untimed_hold: bool) -> None:
        self._recorded = recorded_gains([record for dataset in datasets for record in dataset])
        self._later = gains_of(read_dataset(AFTERWARDS))
        self._shifts = [
            gains[config] / self._recorded[problem][config]
            for problem, gains in self._later.items()
            if (config := _best(table, problem).config) in gains
            and config not in BASELINES
            and config in self._recorded[problem]
        ]
        self._of_untimed = [1.0] if untimed_hold else list(self._of_swapped(swap(table, 1.0)))

    def row(self, table: Table, problems: Problems, recorded: float, source: random.Random) -> RemeasuredRow:
        """The row as ``verify`` sees it."""
        untimed = source.choice(self._of_untimed)
        gains = [self._gain(each, _best(table, each).config, recorded * untimed, source) for each in problems]
        return RemeasuredRow(problems, recorded, (math.prod(gains) ** (1 / len(gains)),))

    def _gain(self, problem: Problem, config: Config, untimed: float, source: random.Random) -> float:
        later = self._later.get(problem, {}).get(config)
        return later if later is not None else (self._timed(problem, config) or untimed) * source.choice(self._shifts)

    def _timed(self, problem: Problem, config: Config) -> float | None:
        gains, alone = (self._recorded.get(each, {}) for each in (problem, problem.alone))
        if config in gains or problem.epilogue == NO_EPILOGUE:
            return gains.get(config)
        best = max(gains.keys() & alone.keys() - BASELINES, key=gains.__getitem__, default=None)
        return gains[best] * alone[config] / alone[best] if best is not None and config in alone else None

    def _of_swapped(self, table: Table) -> Iterator[float]:
        """What remains of the recorded gains in a table of which all rows are swapped."""
        for problem in self._recorded:
            best = _best(table, problem)
            gain = self._timed(problem, best.config)
            if best.config not in BASELINES and best.gain_permille and gain is not None:
                yield 1000 * gain / best.gain_permille


def verdicts(run: LaterRun, tables: Sequence[Table], known: Sequence[Dataset], draws: int) -> str:
    """The verdicts on samples of the tables, and how many rows of a sample drifted."""
    found: Counter[str] = Counter()
    drifted = []
    for number, table in enumerate(tables):
        gains = comparable(table, known)
        for draw in range(draws):
            source = random.Random(1000 * number + draw)
            sample = sample_of(gains, SAMPLE, 1000 * number + draw)
            drift = Drift([run.row(table, *each, source) for each in sample.items()], None)
            found[drift.verdict] += 1
            drifted.append(len(drift.drifted))
    return f"{dict(found)}; drifted of {SAMPLE} rows: {min(drifted)} to {max(drifted)}"


def recorded_gains(records: Sequence[Record]) -> Gains:
    """The gains as ``build`` reckons with them; of configs that only the sweep timed, as a model is trained on them."""
    measurements = measurements_of(records)
    found = gains_of(combined(records))
    for number, problem in enumerate(measurements.problems):
        times = measurements.times_on(number)
        if (usual := baseline(problem.op)) in times:
            found[problem].update({config: times[usual] / ns for config, ns in times.items()})
    return found


def gains_of(records: Iterable[Record]) -> Gains:
    """The gains of all configs that succeeded, where the baseline did."""
    found = {}
    for record in records:
        times = record.times
        if (usual := baseline(record.problem.op)) in times:
            found[record.problem] = {config: times[usual] / ns for config, ns in times.items()}
    return found


def _best(table: Table, problem: Problem) -> Candidate:
    entry = table.lookup(problem)
    assert entry is not None
    return entry.best


if __name__ == "__main__":
    main()
