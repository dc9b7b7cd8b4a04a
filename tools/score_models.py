"""Scores the models that answer on a GPU on timings of it: each alone, and two of them one after the other.

``python tools/score_models.py DATASET...`` prints the gain over ``aten`` of the answers by default thresholds, beside
that of the fastest config, for GEMMs that no model was trained on. The models are those that a compile asks on the
datasets' GPU, and that know some of the GEMMs; of two, the second answers where the first abstains. What none answers
counts as ``aten``; a GEMM whose answer was not timed is left out.
"""

import math
import sys
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from statistics import fmean

from diode_lut.dataset import read_dataset
from diode_lut.decide.catalog import tiers_for
from diode_lut.decide.sources import THRESHOLD, ModelSource
from diode_lut.distill.examples import Target, targets_of
from diode_lut.model import TRAIN
from diode_lut.settings import MODEL
from diode_lut.templates.config import ATEN, Config

SLOWER = math.log(1.03)  # of the time of an answer over that of aten, from which on the answer counts as slower


def main(paths: Sequence[str]) -> None:
    """Print the scores for all datasets together."""
    datasets = [read_dataset(Path(path)) for path in paths]
    (tier,) = tiers_for(datasets[0].header.hardware, (), (MODEL,))[-1:]
    targets = targets_of(record for dataset in datasets for record in dataset)
    models = [
        source
        for source in tier.sources
        if isinstance(source, ModelSource) and not all(source.no_match(target.problem) for target in targets)
    ]
    unseen = [
        target for target in targets if all(source.model.split.group(target.problem) != TRAIN for source in models)
    ]
    for count in (1, 2):
        for asked in permutations(models, count):
            names = ", then ".join(str(source.path and source.path.name) for source in asked)
            print(f"{names}: {_score(asked, unseen)}")


def _score(models: Sequence[ModelSource], targets: Sequence[Target]) -> str:
    choices = [(target, _choice(models, target)) for target in targets]
    timed = [(target, config) for target, config in choices if config is None or config in _times(target)]
    times = [_times(target)[config or ATEN] for target, config in timed]
    gain, best = (math.exp(-fmean(each)) for each in (times, [min(_times(target).values()) for target, _ in timed]))
    answered = sum(config is not None for _, config in choices)
    slower = sum(time > SLOWER for time in times)
    return (
        f"{answered} of {len(choices)} answered; {len(timed)} timed: gain {gain:.3f} of {best:.3f}, {slower} slower "
        "than aten by over 3 %"
    )


def _times(target: Target) -> dict[Config, float]:
    """Logarithms of times over that of aten."""
    return {**target.times, **target.padded}


def _choice(models: Sequence[ModelSource], target: Target) -> Config | None:
    """The first config of the first model that answers; None if all abstain."""
    answers = (source.ask(target.problem, THRESHOLD, padding=True) for source in models)
    return next((answer.configs[0] for answer in answers if answer is not None and answer.configs), None)


if __name__ == "__main__":
    main(sys.argv[1:])
