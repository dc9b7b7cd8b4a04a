"""Cross-validates a model by layers: how good are its answers for an N and K that it was not trained on?

``python tools/score_layers.py DATASET... [--leave-out FAMILY] [--model FILE]`` trains five models as ``distill`` does,
each without a fifth of the layers, and prints the gains over ``aten`` of their answers for these by default thresholds,
beside the best gains measured, and those of the answers of a model in a file, which may have been trained on them. What
a model does not answer counts as ``aten``. A problem with an answer that was not timed is left out.
"""

import argparse
import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from diode_lut.dataset import read_dataset
from diode_lut.distill import distill, validate
from diode_lut.distill.examples import Target, targets_of
from diode_lut.model import TEST, TRAIN, Split, parse_family
from diode_lut.model.ranking import Model
from diode_lut.model.weights import read_model
from diode_lut.problem import NO_EPILOGUE, Problem

PARTS = 5
SLOWER = math.log(1.03)  # of the time of an answer over that of aten, from which on the answer counts as slower


class Layers(Split):
    """A split by N and K. Its seed is the number of the part that is kept for testing."""

    def draw(self, problem: Problem) -> float:
        """Return 0 for layers of this part, and 1 for others."""
        digest = hashlib.sha256(f"{problem.n} {problem.k}".encode()).digest()
        return float(int.from_bytes(digest[:4], "big") % PARTS != self.seed)


def main() -> None:
    """Print the scores for each number of rows, without and with an epilogue."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", type=Path, nargs="+", metavar="DATASET")
    parser.add_argument("--leave-out", type=parse_family, action="append", default=[], metavar="FAMILY")
    parser.add_argument("--model", type=Path, metavar="FILE", help="compare with this model")
    options = parser.parse_args()
    datasets = [read_dataset(path) for path in options.datasets]
    splits = [Layers(part, 0.5, tuple(options.leave_out)) for part in range(PARTS)]
    targets = [each for each in targets_of(*datasets) if splits[0].group(each.problem) in (TRAIN, TEST)]
    shipped = {} if options.model is None else answers(read_model(options.model), targets)
    trained: dict[Problem, float | None] = {}
    for split in splits:
        held_out = [target for target in targets if split.group(target.problem) == TEST]
        trained |= answers(distill(datasets, split).model, held_out)
    groups = defaultdict[tuple[bool, int], list[Target]](list)
    for target in targets:
        groups[target.problem.epilogue != NO_EPILOGUE, target.problem.m].append(target)
    print("rows epilogue problems   best   gain slower", *(["  gain slower"] if shipped else []))
    for (fused, rows), members in sorted(groups.items()):
        timed = [each for each in members if None not in (trained[each.problem], shipped.get(each.problem, 0.0))]
        columns = [f"{rows:4} {'yes' if fused else 'no':>8} {len(timed):8} {gain(each.best for each in timed):6.3f}"]
        for times in (trained, shipped):
            found = [time for each in timed if (time := times.get(each.problem)) is not None]
            columns += [f"{gain(found):6.3f} {sum(time > SLOWER for time in found):6}"] if found else []
        print(*columns)


def answers(model: Model, targets: list[Target]) -> dict[Problem, float | None]:
    """Return log(time / time of aten) of the answer for each problem, or None if it was not timed."""
    times: dict[Problem, float | None] = dict.fromkeys((target.problem for target in targets), 0.0)
    for choice in validate(model, targets).answered().choices:
        times[choice.problem] = math.log(choice.time) if choice.timed else None
    return times


def gain(times: Iterable[float]) -> float:
    """Return the geometric mean of the gains, for logarithms of times over those of aten."""
    return math.exp(-fmean(times))


if __name__ == "__main__":
    main()
