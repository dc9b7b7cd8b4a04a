"""Cross-validates a model by layers: how good are its first choices for an N and K that it was not trained on?

``python tools/score_layers.py DATASET... [--leave-out FAMILY] [--model FILE]`` trains five models as ``distill`` does,
each without a fifth of the layers, and prints the gains over ``aten`` of their choices for these, beside the best gains
measured, and those of the choices of a model in a file, which may have been trained on them. Where less than 2 % is
expected, the choice is ``aten``. It prints the same for sizes that may change, without kernels for few rows. A problem
with a choice that was not timed is left out.
"""

import argparse
import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from diode_lut.dataset import read_dataset
from diode_lut.decide.sources import EXPECTED_GAIN
from diode_lut.distill import distill
from diode_lut.distill.examples import Target, targets_of, without_few_rows
from diode_lut.model import TEST, TRAIN, Split, parse_family
from diode_lut.model.ranking import Model
from diode_lut.model.weights import read_model
from diode_lut.problem import NO_EPILOGUE, Problem
from diode_lut.templates.config import ATEN

PARTS = 5
SLOWER = math.log(1.03)  # of the time of a choice over that of aten, from which on the choice counts as slower


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
    parser.add_argument(
        "--leave-out", type=parse_family, action="append", default=[], metavar="FAMILY", help="as for distill"
    )
    parser.add_argument("--model", type=Path, metavar="FILE", help="compare with this model")
    options = parser.parse_args()
    datasets = [read_dataset(path) for path in options.datasets]
    splits = [Layers(part, 0.5, tuple(options.leave_out)) for part in range(PARTS)]
    constant = [each for each in targets_of(*datasets) if splits[0].group(each.problem) in (TRAIN, TEST)]
    models = [distill(datasets, split).model for split in splits]
    other = None if options.model is None else read_model(options.model)
    changing = [each for each in map(without_few_rows, constant) if each is not None]
    for title, targets in {"all sizes are constants": constant, "sizes may change": changing}.items():
        groups = defaultdict[tuple[bool, int], list[tuple[float, ...]]](list)
        for target in targets:
            (model,) = (each for each, split in zip(models, splits, strict=True) if split.group(target.problem) == TEST)
            times = [chosen(each, target) for each in (model, other) if each is not None]
            known = tuple(time for time in times if time is not None)
            if len(known) == len(times):
                groups[target.problem.epilogue != NO_EPILOGUE, target.problem.m].append((target.best, *known))
        print(f"{title}\nrows epilogue problems   best{'   gain slower' * (1 if other is None else 2)}")
        for (fused, rows), found in sorted(groups.items()):
            best, *choices = zip(*found, strict=True)
            scores = [f"{gain(each):6.3f} {sum(time > SLOWER for time in each):6}" for each in choices]
            print(f"{rows:4} {'yes' if fused else 'no':>8} {len(found):8} {gain(best):6.3f}", *scores)


def chosen(model: Model, target: Target) -> float | None:
    """Return log(time / time of aten) of the model's choice, or None if it was not timed."""
    expected = model.times(target.problem, padding=False)
    runnable = {config: time for config, time in expected.items() if target.few_rows or not config.kernel.few_rows}
    config = min(runnable, key=runnable.__getitem__, default=ATEN)
    clear = runnable.get(config, 1.0) * (1 + EXPECTED_GAIN) <= 1
    return target.times.get(config if clear else ATEN)


def gain(times: Iterable[float]) -> float:
    """Return the geometric mean of the gains, for logarithms of times over those of aten."""
    return math.exp(-fmean(times))


if __name__ == "__main__":
    main()
