"""The configs to try on a problem: candidates in the sweep, and finalists among them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import orjson

from diode_lut.dataset import Record
from diode_lut.hardware import Hardware, architecture
from diode_lut.measure.tasks import Task
from diode_lut.problem import FLOAT8, FUSED, ITEMSIZES, JOINED, NO_VARIANT, ROW_BYTES, SCALED, Problem
from diode_lut.templates.config import (
    ATEN,
    PADDED_OPS,
    TEMPLATES,
    Config,
    baseline,
    is_copied,
    on_its_own,
    pad_multiple,
    padded,
)

PATH = Path(__file__).with_name("default_search_space.json")  # by architecture: configs as in tables


@cache
def read_default_search_space() -> Mapping[str, frozenset[Config]]:
    """Read the configs of the default search space, by architecture. A missing architecture has all configs."""
    document = orjson.loads(PATH.read_bytes())
    return {arch: frozenset(map(Config.from_json, configs)) for arch, configs in document.items()}


_ROCM_STAGES = 2  # the depth of the pipeline of all Inductor's kernels on AMD GPUs
_SWEPT_BYTES = 2  # the size of an element in most sweeps behind the default search space


def candidates(problem: Problem, hardware: Hardware, search_space: str = "default") -> list[Config]:
    """Return the baseline and all configs of the search space that may be the fastest on the problem.

    ``exhaustive`` holds all configs of the templates' ``search``. ``default`` holds those with a chance in earlier
    sweeps on the same architecture, or all if none would be left or there was no sweep. All configs of newer templates
    are in it. Configs of GEMMs too large for the device are included. For attention, whose configs are compiled for
    each problem, they are left out. Kernels for few rows of a single matmul, whose sizes are constants, come with the
    finalists.
    """
    known = architecture(hardware.arch)
    found: list[Config] = []
    for template in TEMPLATES.values():
        if problem.op in template.ops and template.runs_on(known) and (problem.op in JOINED or not template.few_rows):
            tried = (params for params in template.search(problem, hardware) if template.suits(params, problem, known))
            configs = [Config(template.name, tuple(params)) for params in tried]
            if known.triton == "hip" and template.tiled:
                configs = [each.with_tiles(each.tiles._replace(num_stages=_ROCM_STAGES)) for each in configs]
            found += dict.fromkeys(configs)
    usual = baseline(problem.op)
    kernels = [config for config in found if config != usual]
    if search_space == "default" and hardware.arch in read_default_search_space():
        kernels = in_default_search_space(problem, kernels, read_default_search_space()[hardware.arch]) or kernels
    return [usual, *sorted(kernels, key=lambda config: not config.kernel.tiled)]


def in_default_search_space(problem: Problem, kernels: Iterable[Config], known: frozenset[Config]) -> list[Config]:
    """Return the ``known`` kernels, and all kernels of templates without a known config."""
    swept = {config.template for config in known}
    return [each for each in kernels if each.template not in swept or not known.isdisjoint(_equivalents(problem, each))]


def padded_candidates(problem: Problem, hardware: Hardware, search_space: str = "default") -> list[Config]:
    """Return the candidates of the padded problem, with Inductor's ``pad``, or none if padding aligns nothing."""
    multiple = pad_multiple(problem.dtype)
    if problem.op not in PADDED_OPS or not any(is_copied(problem, multiple)):
        return []
    if problem.align == ROW_BYTES and problem.n % multiple == 0:
        return []
    found = candidates(padded(problem, multiple), hardware, search_space)
    return [config.padded(multiple) for config in found if config.padded(multiple) != config]


def _equivalents(problem: Problem, config: Config) -> Iterator[Config]:
    """Yield the configs of two-byte elements for a config: as many bytes a tile, and itself if it is wider.

    In exhaustive sweeps of ten scaled_mm on an H200 the best config with as many bytes was within 0.2 % of the best
    of all 304 kernels each time. The configs with the same numbers lost up to 14 %.
    """
    if ITEMSIZES[problem.dtype] > _SWEPT_BYTES:
        yield config
    yield of_two_bytes(problem.dtype, config)


def of_two_bytes(dtype: str, config: Config) -> Config:
    """Return the config of two-byte elements with as many bytes a tile as this config of ``dtype``."""
    if not config.kernel.tiled:
        return config
    tiles = config.tiles
    return config.with_tiles(tiles._replace(block_k=tiles.block_k * ITEMSIZES[dtype] // _SWEPT_BYTES))


def variations(problem: Problem, config: Config, hardware: Hardware) -> list[Config]:
    """Return configs that may be even faster than the fastest config of a sweep."""
    found = config.kernel.variations(config.params, problem, hardware)
    return [Config(config.template, tuple(params)) for params in found]


def apart(problem: Problem, hardware: Hardware) -> list[Config]:
    """Return the configs for matmuls on their own: the library's, and those of the joined kernels.

    For one with the work after it they are the library's and Triton's with the largest tiles, which fuse the work.
    """
    if problem.op in FUSED:
        tiled = [
            each for each in candidates(problem._replace(op="mm", variant=NO_VARIANT), hardware) if each.kernel.tiled
        ]
        return [ATEN, *(each for each in tiled if each.tiles.block_m * each.tiles.block_n >= _LARGE)]
    op = SCALED[0] if problem.dtype in FLOAT8 else "mm"
    own = filter(None, map(on_its_own, candidates(problem, hardware)))
    return [ATEN, *(config for config in own if op in config.kernel.ops)]


_LARGE = 128 * 256  # the least elements of a large tile

_CLOSE_FACTOR = {16: 1.12, 2: 1.3}
"""By align: the largest time of a finalist over the best time in the sweep. Kernels with constant sizes are up to 10 %
faster than in the sweep. If rows are not aligned, they are from 15 % faster to 45 % slower."""

_MAX_BEST = {16: 4, 2: 10}  # by align: maximum number of finalists among the best of a problem
_MAX_SHARED = 3  # maximum number of finalists that serve many problems
_SERVING_FACTOR = 1.04  # a config serves a problem if the sweep timed it within this factor of the best
_RankedConfigs = list[tuple[Config, float]]  # with times over the best time, the fastest first
_CLOSE_FUSED = {"light": 1.15, "medium": 1.3, "heavy": 1.6}  # by epilogue: finalists' time over the best without it
_MAX_FUSED = 6  # maximum number of finalists of a problem with an epilogue, besides aten


def finalists(records: Iterable[Record], problems: Iterable[Problem], hardware: Hardware) -> list[Task]:
    """Return the tasks of the final stage for ``problems`` in the sweep's ``records``, there without their epilogue.

    The configs are the baseline, the problem's best, and those among its good configs which are good for most problems
    of the same op, dtype and layout, so few rows can serve many problems. With an epilogue, the configs are ``aten``
    and the best for each size of tiles and number of warps, which decide the cost of an epilogue.
    """
    wanted: dict[Problem, list[Problem]] = defaultdict(list)
    for problem in problems:
        wanted[problem.alone].append(problem)
    kinds: dict[tuple[str, str, str], dict[Problem, _RankedConfigs]] = defaultdict(dict)
    for record in records:
        if record.problem in wanted:
            times = sorted((timing.ns, timing.config) for timing in record.timings if timing.ns is not None)
            ranking = [(config, ns / times[0][0]) for ns, config in times]
            kinds[record.problem.op, record.problem.dtype, record.problem.layout][record.problem] = ranking
    tasks = []
    for ranked in kinds.values():
        served = Counter(
            config for ranking in ranked.values() for config, factor in ranking if factor <= _SERVING_FACTOR
        )
        for alone, ranking in ranked.items():
            for each in wanted[alone]:
                chosen = _alone(each, ranking, served, hardware) if each == alone else _fused(each, ranking)
                tasks.append(Task(each, tuple(dict.fromkeys([baseline(each.op), *chosen]))))
    return tasks


def _alone(problem: Problem, ranking: _RankedConfigs, served: Mapping[Config, int], hardware: Hardware) -> list[Config]:
    def near_best(some: _RankedConfigs, align: int) -> list[Config]:
        return [config for config, factor in some if factor <= _CLOSE_FACTOR[align]][: _MAX_BEST[align]]

    padding = [(config, factor) for config, factor in ranking if config.pad > 1]
    best = near_best([(config, factor) for config, factor in ranking if config.pad == 1], problem.align)
    best += near_best(padding, 16) or [config for config, _ in padding[:1]]  # a row may have to say: padding is slower
    serving = [config for config, factor in ranking if factor <= _SERVING_FACTOR and config not in best]
    serving.sort(key=lambda config: -served[config])
    (fastest, _), *_ = ranking
    return [*best, *serving[:_MAX_SHARED], *variations(problem, fastest, hardware), *_for_few_rows(problem, hardware)]


def _for_few_rows(problem: Problem, hardware: Hardware) -> Iterator[Config]:
    known = architecture(hardware.arch)
    for template in TEMPLATES.values():
        if template.few_rows and problem.op in template.ops and template.runs_on(known):
            for params in template.search(problem, hardware):
                if template.suits(params, problem, known):
                    yield Config(template.name, params)


def _fused(problem: Problem, ranking: _RankedConfigs) -> list[Config]:
    kernels = [(config, factor) for config, factor in ranking if config.kernel.tiled and config.pad == 1]
    best: dict[tuple[int, int, int], Config] = {}
    limit = _CLOSE_FUSED[problem.epilogue] * min((factor for _, factor in kernels), default=0.0)
    for config, factor in kernels:
        if factor <= limit:
            tiles = config.tiles
            best.setdefault((tiles.block_m, tiles.block_n, tiles.num_warps), config)
    return list(best.values())[:_MAX_FUSED]
