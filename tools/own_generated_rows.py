"""Adds rows for single generated kernels to a table, where the rows of another GPU lose on this one.

``python tools/own_generated_rows.py tables/nvidia-h200.json --over tables/nvidia-h100.json --data
tables/datasets/generated/nvidia-h200.msgpack.zst`` changes the first table. A row is for the sizes of a measured
kernel. It has the other table's configs for them, and in front of the first of a form the fastest of this form, if that
is faster by as much as ``build`` asks of a row for a single size. The rows have a note, so ``build`` keeps them. Rows
that an earlier run added go.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from diode_lut.build.generated import CLEARLY_FASTER
from diode_lut.dataset import Record, open_stream
from diode_lut.problem import GENERATED, OP_SIZES, Problem
from diode_lut.table import Candidate, Entry, Table, read_table, write_table
from diode_lut.table.lookup import Index
from diode_lut.templates.config import DEFAULT, Config

Times = Mapping[Config, float]

NOTE = "Faster than the config of another GPU's row; tools/own_generated_rows.py"


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--over", type=Path, required=True, help="the other GPU's table")
    parser.add_argument("--data", type=Path, required=True, help="this GPU's dataset of generated kernels")
    options = parser.parse_args()
    table, data = read_table(options.table), open_stream(options.data)
    rows = faster_rows(read_table(options.over), data)
    kept = [entry for entry in table.entries if entry.op not in GENERATED]
    write_table(Table(table.hardware, [*kept, *rows], table.provenance, schema=table.schema), options.table)
    print(f"{len(rows)} rows")


def faster_rows(over: Table, data: Iterable[Record]) -> list[Entry]:
    """Return rows for the measured sizes at which the other table's rows lose. A row with a note stays as it is."""
    index = Index([entry for entry in over.entries if entry.op in GENERATED])
    measured: defaultdict[Problem, list[Times]] = defaultdict(list)
    for record in data:
        measured[record.problem].append({timing.config: timing.ns for timing in record.timings if timing.ns})
    answered = ((problem, index.find(problem), times) for problem, times in sorted(measured.items()))
    rows = (row_of(problem, entry, times) for problem, entry, times in answered if entry and not entry.note)
    return [row for row in rows if row is not None]


def row_of(problem: Problem, entry: Entry, times: Sequence[Times]) -> Entry | None:
    """Return a row with faster configs than those of an entry for the same kernels, or None if none is faster."""
    common = set.intersection(*(set(each) for each in times)) - {DEFAULT}
    configs, faster = list(entry.configs), False
    for template in {config.template for config in configs}:
        current = next(config for config in configs if config.template == template)
        alike = sorted(config for config in common if config.template == template)
        if current in alike:
            best = max(alike, key=lambda config: gain(times, current, config))
            if gain(times, current, best) >= CLEARLY_FASTER:
                configs = [config for config in configs if config != best]
                configs.insert(configs.index(current), best)
                faster = True
    if not faster:
        return None
    gains = {config: round(1000 * exp(gain(times, DEFAULT, config))) for config in common.intersection(configs)}
    sizes: dict[str, Any] = {name: (size, size) for name in OP_SIZES[problem.op] if (size := getattr(problem, name))}
    if problem.variant == "flat":
        del sizes["y"]
    candidates = tuple(Candidate(config, gains.get(config)) for config in configs)
    return entry._replace(candidates=candidates, problems=len(times), note=NOTE, **sizes)


def gain(times: Sequence[Times], current: Config, config: Config) -> float:
    """Return the mean logarithm of the time with one config over that with another."""
    return fmean(log(each[current] / each[config]) for each in times)


if __name__ == "__main__":
    main()
