"""Work for the collector: tasks, shards of them for one worker each, outcomes, and kernels that ruin the process."""

from __future__ import annotations

import math
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import orjson

from diode_lut.dataset import Record, Timing
from diode_lut.files import write_atomically
from diode_lut.hardware import Hardware
from diode_lut.hook.versions import failure_reason
from diode_lut.problem import ITEMSIZES, ROW_BYTES, Problem
from diode_lut.templates.architecture import architecture
from diode_lut.templates.config import PADDED_OPS, TEMPLATES, Config, baseline, is_copied, pad_multiple, padded


class Task(NamedTuple):
    """One problem to measure at one stage.

    ``configs`` are the configs to try; empty, the stage chooses. ``failed`` are configs that must not be tried again,
    because each killed a worker.
    """

    problem: Problem
    configs: tuple[Config, ...] = ()
    failed: tuple[Timing, ...] = ()

    @property
    def remaining(self) -> list[Config]:
        """Its configs without those that failed."""
        failed = {timing.config for timing in self.failed}
        return [config for config in self.configs if config not in failed]


class Outcome(NamedTuple):
    """What became of one problem at one stage.

    ``measured`` has the record that was just measured, ``skipped`` a reason, ``present`` was in the file before.
    ``ignored`` counts Inductor's candidates that no config can express.
    """

    problem: Problem
    status: Literal["measured", "present", "skipped"]
    record: Record | None = None
    reason: str = ""
    ignored: int = 0


class Measurer(Protocol):
    """Measures one stage."""

    def __call__(self, tasks: Sequence[Task], device: str, watch: Watch, search_space: str) -> Iterator[Outcome]:
        """One outcome for each task, in any order, each yielded as soon as it is known.

        ``tasks`` are those of a shard. ``device`` is ``cuda`` or ``cpu``. Every kernel that could hang or fault runs
        within ``watch``. No config in a task's ``failed`` is tried; the caller adds these to the record. CollectError
        if the device cannot be used at all, which ends the whole collection.
        """


class Family(NamedTuple):
    """What problems have in common that share compiled kernels."""

    op: str
    dtype: str
    layout: str
    align: int

    @classmethod
    def of(cls, problem: Problem) -> Family:
        """The family of a problem."""
        return cls(problem.op, problem.dtype, problem.layout, problem.align)


class Shard(NamedTuple):
    """Tasks of one stage for one worker; of one family, where problems share kernels."""

    stage: str
    tasks: tuple[Task, ...]

    @property
    def family(self) -> Family | None:
        """The family of all its problems; None at a stage where they share no kernels."""
        return _family(self.stage, self.tasks[0])

    def halves(self) -> list[Shard]:
        """The shard in two, if it has two tasks."""
        middle = len(self.tasks) // 2
        return [Shard(self.stage, part) for part in (self.tasks[:middle], self.tasks[middle:]) if part]


def _family(stage: str, task: Task) -> Family | None:
    """That of a task at a stage. Kernels of stage ``final`` have constant sizes, so that no problems share them."""
    return None if stage == "final" else Family.of(task.problem)


MAX_SHARD_TASKS = 100
"""Most tasks in a shard."""

SHARDS_PER_WORKER = 4
"""Of several workers, each gets at least this many shards, so that all end at about the same time."""

OVERHEAD_FLOPS = 5e11
"""A GEMM of this many floating-point operations takes about twice as long to measure as the smallest GEMM."""


def make_shards(stage: str, tasks: Iterable[Task], workers: int) -> list[Shard]:
    """The tasks in shards: the family that takes longest first, in it the largest GEMMs first.

    A worker compiles a shard's kernels in the background, and waits at its end for the last of them. So shards are as
    large as they may be.
    """
    families: defaultdict[Family | None, list[Task]] = defaultdict(list)
    for task in sorted(tasks, key=_relative_duration, reverse=True):
        families[_family(stage, task)].append(task)
    shards = SHARDS_PER_WORKER * workers if workers > 1 else 1
    size = min(MAX_SHARD_TASKS, math.ceil(sum(map(len, families.values())) / shards))
    return [
        Shard(stage, tuple(family[start : start + size]))
        for family in sorted(families.values(), key=lambda family: sum(map(_relative_duration, family)), reverse=True)
        for start in range(0, len(family), size)
    ]


def _relative_duration(task: Task) -> float:
    """Estimated time of measuring, over that of the smallest GEMM."""
    return 1 + task.problem.operations / OVERHEAD_FLOPS


class Backlog:
    """The shards that no worker has."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._shards = list(shards)

    def __len__(self) -> int:
        return len(self._shards)

    def take(self, last: Family | None, in_progress: Collection[Family | None]) -> Shard:
        """The next shard for a worker whose last one was of family ``last``.

        A worker keeps its family, for which it has compiled kernels. Else it takes a family that no other worker has
        in progress, so that two workers do not compile the same kernels; else the first shard.
        """
        shard = min(self._shards, key=lambda each: (each.family != last, each.family in in_progress))
        self._shards.remove(shard)
        return shard

    def put_back(self, shards: Sequence[Shard]) -> None:
        """Put shards that were not finished before all others."""
        self._shards[:0] = shards

    def clear(self) -> None:
        """Drop all shards."""
        self._shards.clear()


LIMIT_S = 60.0
"""Seconds after which a watched block counts as hung, by default."""

_DEVICE_ERROR = re.compile(r"\b(CUDA|HIP) error\b|Triton Error")


class Crash(NamedTuple):
    """The measurement that made a process unusable; ``config`` is None if it is unknown.

    ``reason`` is one of ``dataset.REASONS``.
    """

    problem: Problem
    config: Config | None
    reason: str

    def __str__(self) -> str:
        what = f"{self.problem}, {self.config}" if self.config else str(self.problem)
        return f"{what}: {'hung' if self.reason == 'timeout' else f'died ({self.reason})'}"


class Watch:
    """Calls ``lost``, which must not return, when a kernel hangs or leaves the device unusable.

    ``lost`` is called in the thread that measures after a fault, and in a thread of its own after a hang.
    """

    def __init__(self, lost: Callable[[Crash], None]) -> None:
        self._lost = lost

    @contextmanager
    def __call__(
        self, problem: Problem, config: Config | None = None, what: str = "launch", limit_s: float = LIMIT_S
    ) -> Iterator[None]:
        """A block that runs a kernel and waits for it: the kernel of ``config``, or any kernel for the problem.

        If the block raises an error that leaves the device unusable, the process is lost for the reason ``what``. If
        it takes longer than ``limit_s`` seconds, the reason is ``timeout``. Other errors are raised.
        """
        timer = threading.Timer(limit_s, self._lost, [Crash(problem, config, "timeout")])
        timer.daemon = True
        timer.start()
        try:
            yield
        except RuntimeError as error:
            if _DEVICE_ERROR.search(str(error)) and not _device_answers():
                self._lost(Crash(problem, config, what))
            raise
        finally:
            timer.cancel()

    def failure(self, problem: Problem, config: Config, is_right: Callable[[], bool]) -> str | None:
        """Why a kernel does not count, one of ``dataset.REASONS``: its launch fails, or its result is not right.

        ``is_right`` launches it, and compares what it computes.
        """
        try:
            with self(problem, config):
                right = is_right()
        except RuntimeError as error:
            return failure_reason(error, "launch")
        return None if right else "wrong_result"


def _device_answers() -> bool:
    import torch

    try:
        torch.cuda.synchronize()
    except (AssertionError, RuntimeError):  # AssertionError: torch has no CUDA at all
        return False
    return True


PATH = Path(__file__).with_name("default_search_space.json")
"""A map from architectures to lists of configs, written as in tables, one config a line."""

DefaultSearchSpace = Mapping[str, frozenset[Config]]
"""The configs of the default search space, by architecture. An architecture that is missing has all configs."""


def read_default_search_space() -> DefaultSearchSpace:
    """The default search space of each architecture that was swept before."""
    document = orjson.loads(PATH.read_bytes())
    return {arch: frozenset(map(Config.from_json, configs)) for arch, configs in document.items()}


def write_default_search_space(spaces: DefaultSearchSpace) -> None:
    """Replace the file."""
    parts = [f"{orjson.dumps(arch).decode()}: [\n{_lines(configs)}\n]" for arch, configs in sorted(spaces.items())]
    write_atomically(PATH, ("{\n" + ",\n".join(parts) + "\n}\n").encode())


def _lines(configs: frozenset[Config]) -> str:
    return ",\n".join(orjson.dumps(config.to_json()).decode() for config in sorted(configs))


_default_search_space = cache(read_default_search_space)

_ROCM_STAGES = 2
"""The depth of the pipeline of all kernels that Inductor has on AMD GPUs."""

_SWEPT_BYTES = 2
"""The size of an element in most of the sweeps that the default search space comes from."""


def candidates(problem: Problem, hardware: Hardware, search_space: str = "default") -> list[Config]:
    """The baseline and all configs of the search space that may be the fastest on the problem.

    ``exhaustive`` holds all that the templates' ``search`` gives. ``default`` holds of these the configs that earlier
    sweeps on the same architecture found to matter, or all of them where none would be left or there was no sweep. Of
    a template that came after these sweeps it holds all configs. Configs of GEMMs that the device cannot launch are
    included; for attention, where each config is compiled for each problem, they are left out.
    """
    usual = baseline(problem.op)
    kernels = [config for config in _exhaustive(problem, hardware) if config != usual]
    if search_space == "default" and hardware.arch in _default_search_space():
        kernels = in_default_search_space(problem, kernels, _default_search_space()[hardware.arch]) or kernels
    return [usual, *sorted(kernels, key=lambda config: not config.kernel.tiled)]


def in_default_search_space(problem: Problem, kernels: Iterable[Config], known: frozenset[Config]) -> list[Config]:
    """Those of the ``kernels`` that are ``known`` to matter, and all of templates of which none is known."""
    swept = {config.template for config in known}
    return [
        config
        for config in kernels
        if config.template not in swept or not known.isdisjoint(_equivalents(problem, config))
    ]


def padded_candidates(problem: Problem, hardware: Hardware, search_space: str = "default") -> list[Config]:
    """The candidates of the padded problem, each with the ``pad`` that Inductor has; none where it would align nothing.

    That is so where all rows of A, B and C are multiples of 16 bytes, and for ``baddbmm``, which Inductor does not pad.
    """
    multiple = pad_multiple(problem.dtype)
    if problem.op not in PADDED_OPS or not any(is_copied(problem, multiple)):
        return []
    if problem.align == ROW_BYTES and problem.n % multiple == 0:
        return []
    found = candidates(padded(problem, multiple), hardware, search_space)
    return [config.padded(multiple) for config in found if config.padded(multiple) != config]


def _exhaustive(problem: Problem, hardware: Hardware) -> Iterator[Config]:
    known = architecture(hardware.arch)
    for template in TEMPLATES.values():
        if problem.op in template.ops and template.runs_on(known):
            tried = (params for params in template.search(problem, hardware) if template.suits(params, problem, known))
            found = (Config(template.name, tuple(params)) for params in tried)
            yield from dict.fromkeys(map(_as_on_rocm, found)) if known.triton == "hip" else found


def _as_on_rocm(config: Config) -> Config:
    """The config with as many stages as Inductor has on AMD GPUs."""
    return config.with_tiles(config.tiles._replace(num_stages=_ROCM_STAGES)) if config.kernel.tiled else config


def _equivalents(problem: Problem, config: Config) -> Iterator[Config]:
    """The configs of two-byte elements that stand for this one: as many bytes a tile, and for wide elements itself.

    In exhaustive sweeps of ten scaled_mm on an H200 the best of those with as many bytes was within 0.2 % of the best
    of all 304 kernels each time; the configs with the same numbers lost up to 14 %.
    """
    if ITEMSIZES[problem.dtype] > _SWEPT_BYTES:
        yield config
    yield of_two_bytes(problem.dtype, config)


def of_two_bytes(dtype: str, config: Config) -> Config:
    """The config of two-byte elements that has as many bytes a tile as this one of ``dtype``."""
    if not config.kernel.tiled:
        return config
    tiles = config.tiles
    return config.with_tiles(tiles._replace(block_k=tiles.block_k * ITEMSIZES[dtype] // _SWEPT_BYTES))


def variations(problem: Problem, config: Config, hardware: Hardware) -> list[Config]:
    """What may be faster still than a config that was the fastest in a sweep."""
    found = config.kernel.variations(config.params, problem, hardware)
    return [Config(config.template, tuple(params)) for params in found]


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
    """Configs near the best of a problem, or a part of them, for operands with one alignment."""
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
