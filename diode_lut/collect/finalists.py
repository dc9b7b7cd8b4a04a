"""What stage ``final`` measures: the configs of each problem that may be its best, from the times of the sweep."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from diode_lut.collect.search_space import variations
from diode_lut.collect.tasks import Task
from diode_lut.dataset import Record
from diode_lut.domain.hardware import Hardware
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import Config, baseline

_CLOSE_FACTOR = {16: 1.12, 2: 1.3}
"""By align: the largest time of a finalist over the best time in the sweep. Kernels with constant sizes are up to 10 %
faster than those of the sweep. Where rows are not aligned, they are from 15 % faster to 45 % slower."""

_MAX_BEST = {16: 4, 2: 10}
"""By align: most finalists that are chosen because they are the problem's best."""

_MAX_SHARED = 3
"""Most finalists that are chosen because they serve many problems."""

_SERVING_FACTOR = 1.04
"""A config serves a problem if the sweep timed it within this factor of the best."""

_Ranking = list[tuple[Config, float]]
"""Configs of a problem with their times over the best time, fastest first."""

_CLOSE_FUSED = {"light": 1.15, "medium": 1.3, "heavy": 1.6}
"""By class of epilogue: the largest time of a finalist over that of the best kernel, both in the sweep without one."""

_MAX_FUSED = 6
"""Most finalists of a problem with an epilogue, besides aten."""


def finalists(records: Iterable[Record], problems: Iterable[Problem], hardware: Hardware) -> list[Task]:
    """The tasks of this stage, one for each of ``problems`` that the sweep's ``records`` have, without its epilogue.

    Its configs are the baseline, the problem's best, and those of the configs that serve it which serve most problems
    of the same op, dtype and layout, so that few rows can serve many problems. With an epilogue, its configs are
    ``aten`` and the best of each size of tiles and number of warps, by which the cost of an epilogue differs.
    """
    wanted: dict[Problem, list[Problem]] = defaultdict(list)
    for problem in problems:
        wanted[problem.alone].append(problem)
    kinds: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.problem in wanted:
            kinds[record.problem.op, record.problem.dtype, record.problem.layout].append(record)
    return [task for kind in kinds.values() for task in _finalists(kind, wanted, hardware)]


def _finalists(records: list[Record], wanted: Mapping[Problem, list[Problem]], hardware: Hardware) -> Iterator[Task]:
    ranked = {record.problem: _ranked(record) for record in records}
    served = Counter(config for ranking in ranked.values() for config, factor in ranking if factor <= _SERVING_FACTOR)
    for problem, ranking in ranked.items():
        for each in wanted[problem]:
            chosen = _alone(problem, ranking, served, hardware) if each == problem else _fused(each, ranking)
            yield Task(each, tuple(dict.fromkeys([baseline(problem.op), *chosen])))


def _alone(problem: Problem, ranking: _Ranking, served: Mapping[Config, int], hardware: Hardware) -> list[Config]:
    best = _best([(config, factor) for config, factor in ranking if config.pad == 1], problem.align)
    padded = [(config, factor) for config, factor in ranking if config.pad > 1]
    best += _best(padded, 16) or [config for config, _ in padded[:1]]  # so that a row can say that padding is slower
    serving = [config for config, factor in ranking if factor <= _SERVING_FACTOR and config not in best]
    serving.sort(key=lambda config: -served[config])
    (fastest, _), *_ = ranking
    return [*best, *serving[:_MAX_SHARED], *variations(problem, fastest, hardware)]


def _best(ranking: _Ranking, align: int) -> list[Config]:
    """Those configs of a problem that are near its best, or a part of them, whose operands have this alignment."""
    return [config for config, factor in ranking if factor <= _CLOSE_FACTOR[align]][: _MAX_BEST[align]]


def _fused(problem: Problem, ranking: _Ranking) -> list[Config]:
    kernels = [(config, factor) for config, factor in ranking if config.kernel.tiled and config.pad == 1]
    best: dict[tuple[int, int, int], Config] = {}
    limit = _CLOSE_FUSED[problem.epilogue] * min((factor for _, factor in kernels), default=0.0)
    for config, factor in kernels:
        if factor <= limit:
            tiles = config.tiles
            best.setdefault((tiles.block_m, tiles.block_n, tiles.num_warps), config)
    return list(best.values())[:_MAX_FUSED]


def _ranked(record: Record) -> _Ranking:
    """Configs with their times over the best time, fastest first."""
    times = sorted((timing.ns, timing.config) for timing in record.timings if timing.ns is not None)
    fastest = min((ns for ns, _ in times), default=1.0)
    return [(config, ns / fastest) for ns, config in times]
