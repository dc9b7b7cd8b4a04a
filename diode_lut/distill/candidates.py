"""The candidates of a model: the few configs with which nearly every problem has one that is as good as any."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from diode_lut.build.measurements import config_order
from diode_lut.distill.targets import Target
from diode_lut.kernels.config import ATEN, Config
from diode_lut.kernels.triton_gemm import GROUP_M
from diode_lut.problem import BATCHED

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
