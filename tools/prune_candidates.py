"""Writes down which candidates of a sweep were never any good, so that the collector does not try them again.

Run with ``python tools/prune_candidates.py tables/datasets/nvidia-h200-*.msgpack.zst``. A config is dropped for the
architecture of these datasets if it was timed on FEW problems at least, and on none was within NEAR of the best.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from diode_lut.collect.dropped import PATH, read_dropped, write_dropped
from diode_lut.dataset import Record, read_dataset
from diode_lut.problem import Config

FEW = 30
NEAR = 1.1


def main(paths: list[Path]) -> None:
    """Add to what was dropped before, because that is in no new sweep."""
    datasets = [read_dataset(path) for path in paths]
    (arch,) = {dataset.header.hardware.arch for dataset in datasets}
    dropped = read_dropped()
    found = hopeless(record for dataset in datasets for record in dataset)
    dropped[arch] = dropped.get(arch, frozenset()) | found
    write_dropped(dropped)
    print(f"{PATH}: {arch}: {len(dropped[arch])} configs")


def hopeless(records: Iterable[Record]) -> frozenset[Config]:
    """The configs that were tried often enough in sweeps and never came near the best."""
    tried: Counter[Config] = Counter()
    near: set[Config] = set()
    for record in records:
        times = {config: ns for config, ns, _ in record.timings if ns is not None and record.stage == "sweep"}
        tried.update(times.keys())
        near |= {config for config, ns in times.items() if ns <= NEAR * min(times.values())}
    return frozenset(config for config, count in tried.items() if count >= FEW and config not in near)


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
