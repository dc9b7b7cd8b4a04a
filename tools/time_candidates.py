"""Times the first choices of models, and of the rows, as they run in the end: constant sizes, no sweep.

``python tools/time_candidates.py PROBLEMS --out timings.msgpack --first 6`` times ``aten``, the row's config and the
first configs of each model that answers on this device, of the problems in their order. It needs a fraction of a
sweep's time, and what a model would never choose has no time. Run again, it continues.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from diode_lut.build.measurements import Array, combined, doubt
from diode_lut.dataset import DatasetWriter, Record, read_dataset
from diode_lut.decide.catalog import tiers_for
from diode_lut.decide.sources import THRESHOLD, ModelSource, Source
from diode_lut.hardware import Hardware
from diode_lut.measure import MEASURERS
from diode_lut.measure.problems import read_problems
from diode_lut.measure.tasks import Crash, Task, Watch, find_setup, measure_tasks
from diode_lut.model.ranking import can_be_padded
from diode_lut.problem import Problem
from diode_lut.settings import DEVICE, MODEL, SAME_ARCH
from diode_lut.templates.config import ATEN, Config, pad_multiple

CLOSE = 1.15  # the largest expected time of a model's config that is timed, over that of its first

OF_EACH_WAY = 2  # number of configs of each model that are timed with and without padding, where Inductor may pad

NEAREST, BEST = 2, 2  # numbers of measured problems, and of the best configs of each


def main() -> None:
    """Append a record for each problem that the dataset does not have."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", type=Path, help="a problem file")
    parser.add_argument("--out", type=Path, required=True, help="the dataset")
    parser.add_argument("--first", type=int, default=6, help="configs of each model")
    parser.add_argument("--nearest", type=Path, nargs="+", default=[], help="datasets whose best configs are timed too")
    parser.add_argument("--model", action="append", default=[], help="models besides those that are shipped")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no problem after this time")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    setup = find_setup("cuda", "sweep", "default")
    with DatasetWriter(options.out, setup.header) as writer:
        present = {record.problem for record in read_dataset(options.out)}
        sources = sources_of(setup.header.hardware, options.model)
        missing = [problem for problem in read_problems(options.problems) if problem not in present]
        nearest = Nearest(record for path in options.nearest for record in combined(read_dataset(path)))
        tasks = [
            Task(problem, tuple(dict.fromkeys((*choices(problem, sources, options.first), *nearest.configs(problem)))))
            for problem in missing
        ]
        print(f"{len(tasks)} problems, {sum(len(task.configs) for task in tasks)} kernels", flush=True)
        for number, outcome in enumerate(measure_tasks(tasks, MEASURERS["final"], setup, Watch(give_up)), 1):
            reason = outcome.reason or doubt(outcome.record, setup.header.hardware)  # type: ignore[arg-type]
            if reason:
                print(f"{outcome.problem}: {reason}", flush=True)
            elif outcome.record is not None:
                writer.append(outcome.record)
            if time.monotonic() >= deadline:
                print(f"{number} of {len(tasks)} problems before the end", flush=True)
                os._exit(0)  # without waiting for kernels that are compiled in the background


def sources_of(hardware: Hardware, models: Sequence[str] = ()) -> list[Source]:
    """Return the tables and models that answer on the device."""
    return [source for tier in tiers_for(hardware, models, (DEVICE, SAME_ARCH, MODEL)) for source in tier.sources]


def choices(problem: Problem, sources: Sequence[Source], first: int) -> Iterator[Config]:
    """Yield aten and the choices of each source for the problem, each once.

    Where Inductor may pad, they are aten and the first configs of each model with and without padding, however slow
    they are expected to be: how the two ways compare is learned from these.
    """
    multiple = pad_multiple(problem.dtype)
    pads = (1, multiple) if can_be_padded(problem) else ()
    found = dict.fromkeys([ATEN, *(ATEN.padded(pad) for pad in pads)])
    for source in sources:
        if isinstance(source, ModelSource):
            times = source.times(problem, padding=True)
            close = (config for config, time in times.items() if time <= CLOSE * min(times.values()))
            found |= dict.fromkeys(islice(close, first))
            for pad in pads:
                found |= dict.fromkeys(islice((config for config in times if config.pad == pad), OF_EACH_WAY))
        elif (answer := source.ask(problem, THRESHOLD, padding=True)) is not None:
            found |= dict.fromkeys(answer.configs)
    return iter(found)


class Nearest:
    """The best configs of measured problems, by the kind of problem."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._measured: defaultdict[Hashable, list[tuple[Array, list[Config]]]] = defaultdict(list)
        for record in records:
            times = record.times
            best = sorted((config for config in times if config.pad == 1), key=times.__getitem__)[:BEST]
            self._measured[record.problem.kind].append((np.log2(record.problem.sizes), best))

    def configs(self, problem: Problem) -> Iterator[Config]:
        """Yield the best configs of the NEAREST problems of the same kind that can run on this one."""
        sizes = np.log2(problem.sizes)
        measured = self._measured.get(problem.kind, [])
        for _, best in sorted(measured, key=lambda each: float(np.abs(each[0] - sizes).sum()))[:NEAREST]:
            yield from (config for config in best if problem.k % config.k_split == 0)


def give_up(crash: Crash) -> None:
    """End this process, of no use after a kernel that hangs or faults."""
    print(f"error: {crash}", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    main()
