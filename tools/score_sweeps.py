"""The regret of a sweep's choice: of its best config for each problem, by the final times of the same problem.

A model that is trained on sweeps can hardly be better. Run ``python tools/score_sweeps.py DATASET...``.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from diode_lut.build.measurements import combined
from diode_lut.dataset import read_dataset
from diode_lut.model.ranking import GOOD

ALIGNED = {16: "rows aligned to 16 bytes", 2: "other rows"}


def main(paths: Sequence[str]) -> None:
    """Print it for all problems, and for those with rows aligned to 16 bytes and without."""
    records = list(chain.from_iterable(read_dataset(Path(path)) for path in paths))
    losses: defaultdict[str, list[float]] = defaultdict(list)
    chosen = {each.problem: each.times for each in combined(each for each in records if each.stage == "sweep")}
    final = {each.problem for each in records if each.stage == "final"}
    for record in combined(records):
        if record.problem not in final or record.problem not in chosen:
            continue
        times, sweep = record.times, chosen[record.problem]
        loss = math.log(
            times[min((each for each in sweep if each in times), key=sweep.__getitem__)] / min(times.values())
        )
        for group in ("all", ALIGNED[record.problem.align]):
            losses[group].append(loss)
    for group, found in losses.items():
        good = sum(each <= math.log1p(GOOD) for each in found) / len(found)
        print(f"{group}: {len(found)} problems, {math.exp(sum(found) / len(found)):.3f} of the best, {good:.1%} good")


if __name__ == "__main__":
    main(sys.argv[1:])
