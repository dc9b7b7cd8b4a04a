"""Teachers compared: an ensemble of networks and gradient-boosted trees, on problems that neither has seen.

Needs ``pip install lightgbm``. Run ``python tools/compare_teachers.py DATASET...``; it takes minutes.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from diode_lut.dataset import read_dataset
from diode_lut.distill import UNTIMED
from diode_lut.distill.examples import MAX_LOSS, Examples, Space, Target, choose, examples_of, targets_of
from diode_lut.distill.training import TrainingPlan, answers, masked, train_student
from diode_lut.hardware import architecture
from diode_lut.model import TRAIN, Split
from diode_lut.model.features import families
from diode_lut.model.ranking import GOOD
from diode_lut.templates.config import Config

SEED, TEST = 0, 0.2
TREES = {"objective": "l2", "num_leaves": 63, "learning_rate": 0.05, "min_data_in_leaf": 20, "feature_fraction": 0.5}
BAGGING = {"bagging_fraction": 0.7, "bagging_freq": 1, "seed": SEED, "verbose": -1}
ROUNDS = 600
TOP, REST = 0.15, 0.05

Score = Callable[[Examples], Tensor]


def main(paths: Sequence[str]) -> None:
    """Train each on the training split, and print the regret of the first choices on the test split."""
    datasets = [read_dataset(Path(path)) for path in paths]
    split = Split(SEED, TEST)
    targets = targets_of(*datasets)
    training = [target for target in targets if split.group(target.problem) == TRAIN]
    unseen = [target for target in targets if split.group(target.problem) != TRAIN]
    hardware = datasets[0].header.hardware
    candidates = families(choose(training), architecture(hardware.arch))
    space = Space.of(*candidates, hardware)
    test = _examples(unseen, space)
    configs = [candidates[family].configs for family in test.family.tolist()]
    print(f"{'':10} {'seconds':>8} {'regret':>8} {'<= 5 %':>8} {'gain':>8} {'of best':>8} {'slowest':>8} {'top 5':>8}")
    for train in (_trees, _networks):
        started = time.perf_counter()
        for member, score in train(training, space).items():
            ranked = masked(score(test), test.applies, torch.inf).argsort(1)
            rankings = [
                [of[place] for place in places.tolist() if applies[place]]
                for of, places, applies in zip(configs, ranked, test.applies, strict=True)
            ]
            show(member, time.perf_counter() - started, rankings, unseen)


def _examples(targets: Sequence[Target], space: Space) -> Examples:
    return examples_of([target.problem for target in targets], space, targets)


def show(name: str, seconds: float, rankings: Sequence[Sequence[Config]], targets: Sequence[Target]) -> None:
    """A line of the report: regrets and gains as geometric means."""
    times = [
        [target.times.get(config, UNTIMED) for config in islice(ranking, 5)]
        for ranking, target in zip(rankings, targets, strict=True)
    ]
    best = [target.best for target in targets]
    first = [each[0] for each in times]
    regrets = [time - least for time, least in zip(first, best, strict=True)]
    of_five = [min(each) - least for each, least in zip(times, best, strict=True)]
    good = fmean(regret <= math.log1p(GOOD) for regret in regrets)
    print(
        f"{name:10} {seconds:8.0f} {math.expm1(fmean(regrets)):8.2%} {good:8.1%} {math.exp(-fmean(first)):8.3f} "
        f"{math.exp(-fmean(best)):8.3f} {math.exp(max(first)):8.2f} {math.expm1(fmean(of_five)):8.2%}",
        flush=True,
    )


def _trees(training: Sequence[Target], space: Space) -> dict[str, Score]:
    import lightgbm

    examples = _examples(training, space)
    losses = examples.losses[examples.applies].numpy()
    weights = np.exp(-losses / TOP) + REST
    best = torch.tensor([target.best for target in training])[:, None].expand_as(examples.losses)
    data = lightgbm.Dataset(_columns(examples, space), losses + best[examples.applies].numpy(), weight=weights)
    booster = lightgbm.train({**TREES, **BAGGING}, data, ROUNDS)

    def score(test: Examples) -> Tensor:
        scores = torch.full(test.applies.shape, MAX_LOSS * 10)
        scores[test.applies] = torch.tensor(booster.predict(_columns(test, space)), dtype=torch.float32)
        return scores

    return {"trees": score}


def _columns(examples: Examples, space: Space) -> np.ndarray:
    """All features of each candidate that applies, a row for each."""
    width = examples.applies.shape[1]
    of_problem = examples.features[:, None].expand(-1, width, -1)
    together = torch.cat([of_problem, space.configs[examples.family], examples.joint], dim=2)
    columns: np.ndarray = together[examples.applies].numpy()
    return columns


def _networks(training: Sequence[Target], space: Space) -> dict[str, Score]:
    trained = train_student(training, None, space, TrainingPlan(SEED))
    scale = trained.student.scale

    def student(test: Examples) -> Tensor:
        return answers(trained.student, scale.apply(test))

    def member(test: Examples) -> Tensor:
        return answers(trained.teacher.members[0], scale.apply(test))

    def teacher(test: Examples) -> Tensor:
        return trained.teacher.teach(scale.apply(test)).losses

    return {"one member": member, "ensemble": teacher, "student": student}


if __name__ == "__main__":
    main(sys.argv[1:])
