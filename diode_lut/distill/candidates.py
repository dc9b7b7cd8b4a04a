"""The configs that a model chooses from, and what it is to learn about them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diode_lut.build.measurements import config_order
from diode_lut.dataset import Record
from diode_lut.dataset.pack import combined
from diode_lut.domain.problem import BATCHED, Problem
from diode_lut.kernels.config import ATEN, Config
from diode_lut.kernels.triton_gemm import GROUP_M

MOST = 80
"""Candidates of one kind of product, with a batch or without."""

_LOST = 0.7
"""The logarithm of the time that counts for a config that was not timed: twice the best."""

_Matrix = npt.NDArray[np.float64]


def choose(targets: Sequence[Target]) -> list[Config]:
    """The candidates, those that are tiled first, then in the fixed order."""
    chosen = {ATEN}
    for batched in (False, True):
        family = [target for target in targets if (target.problem.op in BATCHED) is batched]
        if family:
            chosen.update(_cover(family))
    return sorted(chosen, key=lambda config: (not config.kernel.tiled, config_order(config)))


def _cover(targets: Sequence[Target]) -> list[Config]:
    """Greedily, the configs that lower the summed time of the best candidate most."""
    configs = sorted({config for target in targets for config in target.times if _eligible(config)}, key=config_order)
    losses = _losses(targets, configs)
    best = losses[:, configs.index(ATEN)]
    chosen: list[int] = []
    while len(chosen) < MOST - 1:
        with_each = np.minimum(best[:, None], losses)
        number = int(np.expm1(with_each).sum(axis=0).argmin())
        if number in chosen or not (with_each[:, number] < best).any():
            break
        chosen.append(number)
        best = with_each[:, number]
    return [configs[number] for number in chosen]


def _eligible(config: Config) -> bool:
    return not config.kernel.tiled or config.tiles.group_m == GROUP_M


def _losses(targets: Sequence[Target], configs: Sequence[Config]) -> _Matrix:
    """A row for each problem: logarithms of times over the best."""
    losses = np.full((len(targets), len(configs)), np.inf)
    column = {config: number for number, config in enumerate(configs)}
    for row, target in enumerate(targets):
        for config, time in target.times.items():
            if config in column:
                losses[row, column[config]] = time - target.best
    np.minimum(losses, _LOST, out=losses)
    return losses


class Target(NamedTuple):
    """``times`` are logarithms of times over aten's, ``best`` is the least of them; ``failed`` configs have none."""

    problem: Problem
    times: dict[Config, float]
    best: float
    failed: frozenset[Config] = frozenset()


def targets_of(records: Iterable[Record]) -> list[Target]:
    """One for each problem on which aten was timed, in order."""
    return [target for record in combined(records) if (target := _target(record)) is not None]


def _target(record: Record) -> Target | None:
    times = {timing.config: timing.ns for timing in record.timings if timing.ns is not None}
    if ATEN not in times:
        return None
    relative = {config: math.log(ns / times[ATEN]) for config, ns in times.items()}
    failed = frozenset(timing.config for timing in record.timings if timing.ns is None)
    return Target(record.problem, relative, min(relative.values()), failed)
