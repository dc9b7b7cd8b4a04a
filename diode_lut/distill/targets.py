"""The configs that a model chooses from, and their times as training targets."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diode_lut.build.measurements import config_order
from diode_lut.dataset import Record
from diode_lut.dataset.pack import combined
from diode_lut.domain.ops import BATCHED
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import ATEN, Config
from diode_lut.kernels.tiles import GROUP_M

MAX_CANDIDATES = 80
"""Maximum number of candidates for problems with a batch, and for those without one."""

_MAX_LOSS = 0.7
"""Cap on log(time / best time), about log(2). A config that was not timed counts with the cap."""

_Matrix = npt.NDArray[np.float64]


def choose(targets: Sequence[Target]) -> list[Config]:
    """The candidates: tiled ones first, then the others, each in the order of ``config_order``."""
    chosen = {ATEN}
    for batched in (False, True):
        family = [target for target in targets if (target.problem.op in BATCHED) is batched]
        if family:
            chosen.update(_cover(family))
    return sorted(chosen, key=lambda config: (not config.kernel.tiled, config_order(config)))


def _cover(targets: Sequence[Target]) -> list[Config]:
    """The configs chosen greedily: each lowers most the summed time of the best candidate per problem."""
    configs = sorted(
        {config for target in targets for config in target.expected if _eligible(config)}, key=config_order
    )
    losses = _losses(targets, configs)
    best = losses[:, configs.index(ATEN)]
    chosen: list[int] = []
    while len(chosen) < MAX_CANDIDATES - 1:
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
    """log(time / best time), capped: a row per problem, a column per config."""
    losses = np.full((len(targets), len(configs)), np.inf)
    column = {config: number for number, config in enumerate(configs)}
    for row, target in enumerate(targets):
        for config, time in target.expected.items():
            if config in column:
                losses[row, column[config]] = time - target.best
    np.minimum(losses, _MAX_LOSS, out=losses)
    return losses


class Target(NamedTuple):
    """The measurements of one problem.

    ``times`` are log(time / time of aten) per config; ``best`` is the least of them. ``failed`` configs have no time.
    With an epilogue, only the best config of each tile and number of warps was timed; ``estimated`` are the others.
    ``padded`` are the times of configs with a ``pad``, on which the network is not trained.
    """

    problem: Problem
    times: dict[Config, float]
    best: float
    failed: frozenset[Config] = frozenset()
    estimated: Mapping[Config, float] = MappingProxyType({})
    padded: Mapping[Config, float] = MappingProxyType({})

    @property
    def expected(self) -> dict[Config, float]:
        """The times, and the estimates for configs without one."""
        return {**self.estimated, **self.times}


def targets_of(*datasets: Iterable[Record]) -> list[Target]:
    """A target for each problem on which aten was timed, in order.

    Of a problem in several datasets the times in the first count, and the times with padding in the last that has them:
    problems are measured again, with padding.
    """
    by_problem: dict[Problem, Target] = {}
    for dataset in datasets:
        for target in filter(None, map(_target, combined(dataset))):
            known = by_problem.setdefault(target.problem, target)
            if target.padded:
                by_problem[target.problem] = known._replace(padded=target.padded)
    targets = [by_problem[problem] for problem in sorted(by_problem)]
    return [_with_estimates(target, by_problem.get(target.problem.alone, target)) for target in targets]


def _target(record: Record) -> Target | None:
    times = {timing.config: timing.ns for timing in record.timings if timing.ns is not None}
    if ATEN not in times:
        return None
    relative = {config: math.log(ns / times[ATEN]) for config, ns in times.items()}
    alone = {config: time for config, time in relative.items() if config.pad == 1}
    padded = {config: time for config, time in relative.items() if config.pad > 1}
    failed = frozenset(timing.config for timing in record.timings if timing.ns is None and timing.config.pad == 1)
    return Target(record.problem, alone, min(alone.values()), failed, padded=padded)


def _with_estimates(target: Target, alone: Target) -> Target:
    """The target with estimates for configs that were timed only on the GEMM without its epilogue, ``alone``.

    An epilogue costs kernels with the same tile and number of warps about the same factor.
    """
    factors: defaultdict[tuple[object, ...], list[float]] = defaultdict(list)
    for config in target.times.keys() & alone.times.keys():
        if config.kernel.tiled:
            factors[_accumulators(config)].append(target.times[config] - alone.times[config])
    known = target.times.keys() | target.failed
    estimated = {
        config: max(time + fmean(factors[_accumulators(config)]), target.best)
        for config, time in alone.times.items()
        if config.kernel.tiled and config not in known and _accumulators(config) in factors
    }
    return target._replace(estimated=estimated)


def _accumulators(config: Config) -> tuple[object, ...]:
    """What the accumulators of a tiled config are like, on which the cost of an epilogue depends."""
    return config.template, config.tiles.block_m, config.tiles.block_n, config.tiles.num_warps
