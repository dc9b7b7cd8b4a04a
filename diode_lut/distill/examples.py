"""Training data: targets from measurements, the candidates chosen from them, problems as tensors, drawn problems."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diode_lut.build.measurements import combined, config_order
from diode_lut.dataset import Record
from diode_lut.hardware import Hardware
from diode_lut.model import Kind, drawn_as
from diode_lut.model.features import (
    PROBLEM_FEATURES,
    Candidates,
    config_features,
    family_of,
    problem_features,
    tiles_of,
)
from diode_lut.problem import BATCHED, NO_EPILOGUE, OF_BYTES, Problem, contiguous_align
from diode_lut.templates.config import ATEN, Config
from diode_lut.templates.template import GROUP_M


class Target(NamedTuple):
    """The measurements of a problem.

    ``times`` are log(time / time of aten) of configs, and ``best`` is the least. ``failed`` configs have no time. With
    an epilogue, only the best config for each tile and number of warps was timed, and ``estimated`` are the others.
    ``padded`` are the times of configs with a ``pad``, which are not in the network's training. A ``foreign`` problem
    was measured on another device than the model's. Without ``few_rows``, the kernels for few rows are no candidates.
    """

    problem: Problem
    times: dict[Config, float]
    best: float
    failed: frozenset[Config] = frozenset()
    estimated: Mapping[Config, float] = MappingProxyType({})
    padded: Mapping[Config, float] = MappingProxyType({})
    foreign: bool = False
    few_rows: bool = True

    @property
    def expected(self) -> dict[Config, float]:
        """The times, and the estimates for configs without one."""
        return {**self.estimated, **self.times}


def targets_of(*datasets: Iterable[Record]) -> list[Target]:
    """Return a target for each problem on which aten was timed, in order.

    If several datasets have a problem, the times in the first count, and the times with padding in the last that has
    any: problems are measured again, with padding.
    """
    by_problem: dict[Problem, Target] = {}
    for dataset in datasets:
        for record in combined(dataset):
            times = record.times
            if ATEN not in times:
                continue
            relative = {config: math.log(ns / times[ATEN]) for config, ns in times.items()}
            alone = {config: time for config, time in relative.items() if config.pad == 1}
            padded = {config: time for config, time in relative.items() if config.pad > 1}
            failed = frozenset(each.config for each in record.timings if each.ns is None and each.config.pad == 1)
            target = Target(record.problem, alone, min(alone.values()), failed, padded=padded)
            known = by_problem.setdefault(target.problem, target)
            if target.padded:
                by_problem[target.problem] = known._replace(padded=target.padded)
    targets = []
    for _, target in sorted(by_problem.items()):
        # An epilogue costs kernels with the same tile and number of warps about the same factor
        unfused = by_problem.get(target.problem.alone, target)
        factors: defaultdict[tuple[object, ...], list[float]] = defaultdict(list)
        for config in target.times.keys() & unfused.times.keys():
            if config.kernel.tiled:
                factors[_accumulators(config)].append(target.times[config] - unfused.times[config])
        measured = target.times.keys() | target.failed
        estimated = {
            config: max(time + fmean(factors[_accumulators(config)]), target.best)
            for config, time in unfused.times.items()
            if config.kernel.tiled and config not in measured and _accumulators(config) in factors
        }
        targets.append(target._replace(estimated=estimated))
    return targets


def without_few_rows(target: Target) -> Target | None:
    """Return the target without the kernels for few rows, which take constant sizes, or None if it has none."""
    times = {config: time for config, time in target.times.items() if not config.kernel.few_rows}
    if len(times) == len(target.times):
        return None
    return target._replace(times=times, best=min(times.values()), few_rows=False)


def _accumulators(config: Config) -> tuple[object, ...]:
    """Return the shape of a tiled config's accumulators, which decides the cost of an epilogue."""
    return config.template, config.tiles.block_m, config.tiles.block_n, config.tiles.num_warps


MAX_CANDIDATES = 80  # maximum number of candidates for problems with a batch, and for problems without
_MAX_LOSS = 0.7  # Cap on log(time / best time), about log(2). A config without a time counts with the cap


def choose(targets: Sequence[Target]) -> list[Config]:
    """Return the candidates: first configs with tiles, then others, each in the order of ``config_order``."""
    chosen = {ATEN}
    for batched in (False, True):
        family = [target for target in targets if (target.problem.op in BATCHED) is batched]
        if family:
            chosen.update(_cover(family))
    return sorted(chosen, key=lambda config: (tiles_of(config) is None, config_order(config)))


def _cover(targets: Sequence[Target]) -> list[Config]:
    """Choose configs greedily: each lowers most the summed time of the best candidate of each problem."""
    timed = {config for target in targets for config in target.expected}
    usual = (config for config in timed if not config.kernel.tiled or config.tiles.group_m == GROUP_M)
    configs = sorted(usual, key=config_order)
    column = {config: number for number, config in enumerate(configs)}
    losses = np.full((len(targets), len(configs)), np.inf)  # log(time / best time), capped
    for row, target in enumerate(targets):
        for config, time in target.expected.items():
            if config in column:
                losses[row, column[config]] = time - target.best
    np.minimum(losses, _MAX_LOSS, out=losses)
    best = losses[:, column[ATEN]]
    chosen: list[int] = []
    while len(chosen) < MAX_CANDIDATES - 1:
        with_each = np.minimum(best[:, None], losses)
        number = int(np.expm1(with_each).sum(axis=0).argmin())
        if number in chosen or not (with_each[:, number] < best).any():
            break
        chosen.append(number)
        best = with_each[:, number]
    return [configs[number] for number in chosen]


MAX_LOSS = 0.5  # Cap on losses, log(time / best time). A config without a time counts with the cap


class Space(NamedTuple):
    """The candidates of both families, padded to the same number.

    ``numbers`` are their indices among all candidates (families x candidates). ``configs`` are their CONFIG_FEATURES
    (families x candidates x features). The network takes the first ``features`` of PROBLEM_FEATURES.
    """

    families: tuple[Candidates, Candidates]
    numbers: Tensor
    configs: Tensor
    hardware: Hardware
    features: int

    @classmethod
    def of(
        cls, plain: Candidates, batched: Candidates, hardware: Hardware, features: int = len(PROBLEM_FEATURES)
    ) -> Space:
        """Return the space of two families."""
        width = max(len(plain.configs), len(batched.configs))
        numbers = [_padded(np.array([family.numbers]), width)[0] for family in (plain, batched)]
        columns = [_padded(config_features(family.configs), width) for family in (plain, batched)]
        configs = torch.from_numpy(np.stack(columns)).transpose(1, 2).contiguous()
        return cls((plain, batched), torch.from_numpy(np.stack(numbers)), configs, hardware, features)


class Examples(NamedTuple):
    """Problems as tensors, with a row for each problem.

    ``gemm`` numbers from 0 the problems that are ``drawn_as`` the same: those that differ only in their epilogues have
    the same number. ``fused`` flags problems with an epilogue, ``foreign`` those of another device. ``features`` are
    the first PROBLEM_FEATURES and ``foreign``, as a number (problems x features). The network learns how the devices
    differ, and its weights for inference are for its own. ``family`` is 0 without a batch, 1 with a batch. ``joint``
    are JOINT_FEATURES (problems x candidates x features). ``applies`` flags the applicable candidates, ``known`` those
    of them with a loss, and ``losses`` are log(time / best time), capped at MAX_LOSS (all problems x candidates). The
    loss of others is MAX_LOSS.
    """

    gemm: Tensor
    fused: Tensor
    foreign: Tensor
    features: Tensor
    family: Tensor
    joint: Tensor
    applies: Tensor
    known: Tensor
    losses: Tensor

    def take(self, rows: Tensor) -> Examples:
        """Return the problems with these row numbers."""
        return Examples(*(tensor[rows] for tensor in self))

    def to(self, device: str) -> Examples:
        """Return the problems on a device."""
        return Examples(*(tensor.to(device) for tensor in self))

    @property
    def size(self) -> int:
        """The number of problems."""
        return self.family.shape[0]


def examples_of(problems: Sequence[Problem], space: Space, targets: Sequence[Target] = ()) -> Examples:
    """Return the problems as tensors. Without targets, all losses are known and 0.

    With targets, losses are known of the configs that were timed, were estimated or failed, and of those that no sweep
    tries, because they only lose there. Others were not in the search space of the dataset.
    """
    width = space.configs.shape[1]
    members = [family_of(problem) for problem in problems]
    joint, applies = [], []
    for problem, member, target in zip_longest(problems, members, targets):
        family = space.families[member]
        joint.append(_padded(family.tiling.features(problem, space.hardware.sm_count), width))
        applicable = family.applicable(problem)
        if target is not None and not target.few_rows:
            applicable &= np.array([not config.kernel.few_rows for config in family.configs])
        applies.append(_padded(applicable[None], width)[0])
    losses, known = [], []
    for target, member in zip(targets, members, strict=False):
        times, configs = target.expected, space.families[member].configs
        own = [times.get(config, np.inf) - target.best for config in configs]
        losses.append(np.minimum([*own, *[MAX_LOSS] * (width - len(own))], MAX_LOSS).astype(np.float32))
        measured = times.keys() | target.failed
        tried = {
            (kernel.name, *params)
            for kernel in {config.kernel for config in configs}
            for params in kernel.search(target.problem, space.hardware)
        }
        own_known = [config in measured or (config.template, *config.params) not in tried for config in configs]
        known.append(_padded(np.array([own_known]), width)[0])
    numbers = {gemm: number for number, gemm in enumerate(dict.fromkeys(map(drawn_as, problems)))}
    features = np.hstack([problem_features(problem, space.hardware.sm_count) for problem in problems])
    foreign = np.array([target.foreign for target in targets] or [False] * len(problems))
    applied = np.stack(applies)
    return Examples(
        torch.tensor([numbers[drawn_as(problem)] for problem in problems]),
        torch.tensor([problem.epilogue != NO_EPILOGUE for problem in problems]),
        torch.from_numpy(foreign),
        torch.from_numpy(np.vstack((features[: space.features], foreign.astype(np.float32))).T.copy()),
        torch.tensor(members),
        torch.from_numpy(np.stack(joint)).transpose(1, 2).contiguous(),
        torch.from_numpy(applied),
        torch.from_numpy(applied & np.stack(known) if known else applied),
        torch.from_numpy(np.stack(losses)) if losses else torch.zeros(len(problems), width),
    )


def _padded(columns: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    """Return the columns, followed by columns of zeros up to ``width``."""
    return np.pad(columns, ((0, 0), (0, width - columns.shape[1])))


_MIX_PROBABILITY, _JITTER_PROBABILITY = 0.4, 0.4  # for a size from another problem, and for up to twice or half of it

_SIZE_MULTIPLE, _SIZE_MULTIPLE_OF_BYTES = 8, 128
"""Jittered sizes stay multiples of this if they were, in float8 and int8 of the second. Smaller sizes stay as they
are."""

_MAX_DRAWS = 50  # maximum number of draws for each drawn problem


def draw_problems(problems: Sequence[Problem], kinds: Sequence[Kind], count: int, seed: int) -> list[Problem]:
    """Draw up to ``count`` new problems of known kinds, with sizes mixed from problems of the same kind."""
    draw = random.Random(seed)  # noqa: S311 (no secret)
    known = {kind.key: kind for kind in kinds}
    groups = {key: [problem for problem in problems if problem.kind == key] for key in known}
    largest = {key: max(problem.nbytes for problem in group) for key, group in groups.items()}
    parents = [problem for group in groups.values() for problem in group]
    taken = set(problems)
    drawn: list[Problem] = []
    for _ in range(_MAX_DRAWS * count):
        if len(drawn) == count:
            break
        parent = draw.choice(parents)
        multiple = _SIZE_MULTIPLE_OF_BYTES if parent.op in OF_BYTES else _SIZE_MULTIPLE
        sizes = []
        for place, size in enumerate(parent.sizes):
            chance = draw.random()
            if chance < _MIX_PROBABILITY:
                sizes.append(draw.choice(groups[parent.kind]).sizes[place])
            elif chance < _MIX_PROBABILITY + _JITTER_PROBABILITY and size >= multiple and place > 0:
                jittered = round(size * 2 ** draw.uniform(-1, 1))
                sizes.append(-(-jittered // multiple) * multiple if size % multiple == 0 else jittered)
            else:
                sizes.append(size)
        b, m, n, k = sizes
        child = parent._replace(b=b, m=m, n=n, k=k)
        packed = contiguous_align(child.dtype, child.layout, child.m, child.n, child.k, child.b)
        plausible = child.align == packed and child.nbytes <= largest[child.kind]
        if plausible and child not in taken and not known[child.kind].outside(child):
            taken.add(child)
            drawn.append(child)
    return drawn
