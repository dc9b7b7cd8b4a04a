"""The work of a stage: the configs to try, tasks, outcomes, shards, kernels that ruin the process, and the setup."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, NamedTuple, Protocol

import orjson

from diode_lut.dataset import SWEEP, Header, Record, Timing
from diode_lut.errors import HardwareError
from diode_lut.hardware import Hardware, architecture, detect_hardware
from diode_lut.hook.versions import failure_reason
from diode_lut.measure.problems import RecordedKernel
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
from diode_lut.templates.template import Template


class Measurer(Protocol):
    """Measures a stage."""

    def __call__(self, tasks: Sequence[Task], device: str, watch: Watch, search_space: str) -> Iterator[Outcome]:
        """Yield an outcome for each task of a shard, in any order, as soon as it is known.

        ``device`` is ``cuda`` or ``cpu``. Every kernel runs within ``watch``, because it may hang or fault. Configs in
        a task's ``failed`` are not tried, and the caller adds them to the record. CollectError if the device cannot be
        used at all, which ends the whole collection.
        """


class Task(NamedTuple):
    """A problem to measure at a stage.

    ``configs`` are the configs to try. If it is empty, the stage chooses. ``failed`` are configs not to be tried again,
    because each killed a worker. ``kernel`` is a generated kernel with this problem.
    """

    problem: Problem
    configs: tuple[Config, ...] = ()
    failed: tuple[Timing, ...] = ()
    kernel: RecordedKernel | None = None

    @property
    def remaining(self) -> list[Config]:
        """Its configs without those that failed."""
        failed = {timing.config for timing in self.failed}
        return [config for config in self.configs if config not in failed]


class Outcome(NamedTuple):
    """The result for a problem at a stage.

    If it was ``measured``, there is a record. If it was ``skipped``, there is a reason. A ``present`` problem was in
    the file before. ``ignored`` counts Inductor's candidates without a config.
    """

    problem: Problem
    status: Literal["measured", "present", "skipped"]
    record: Record | None = None
    reason: str = ""
    ignored: int = 0


Family = tuple[Any, ...]  # the op, dtype, layout and alignment of problems that share compiled kernels


def family_of(problem: Problem) -> Family:
    """Return the family of a problem."""
    return problem.op, problem.dtype, problem.layout, problem.align


class Shard(NamedTuple):
    """Tasks of a stage for a worker. They are of the same family if problems share kernels at the stage."""

    stage: str
    tasks: tuple[Task, ...]

    @property
    def family(self) -> Family | None:
        """The family of all its problems, or None at stage ``final``, whose kernels are for a single problem."""
        return None if self.stage == "final" else family_of(self.tasks[0].problem)

    def halves(self) -> list[Shard]:
        """Return the shard in two, if it has two tasks."""
        middle = len(self.tasks) // 2
        return [Shard(self.stage, part) for part in (self.tasks[:middle], self.tasks[middle:]) if part]


MAX_SHARD_TASKS = 100  # maximum number of tasks in a shard
SHARDS_PER_WORKER = 4  # minimum number of shards for each of several workers, so all end at about the same time
OVERHEAD_FLOPS = 5e11  # operations of a GEMM that takes about twice as long to measure as the smallest GEMM


def make_shards(stage: str, tasks: Iterable[Task], workers: int) -> list[Shard]:
    """Return the tasks in shards: the family with the longest time first, and in it the largest GEMMs first.

    A worker compiles a shard's kernels in the background, and waits at its end for the last of them. So shards are as
    large as they may be.
    """

    def duration(task: Task) -> float:
        return 1 + task.problem.operations / OVERHEAD_FLOPS

    families: defaultdict[Family | None, list[Task]] = defaultdict(list)
    for task in sorted(tasks, key=duration, reverse=True):
        families[Shard(stage, (task,)).family].append(task)
    shards = SHARDS_PER_WORKER * workers if workers > 1 else 1
    size = min(MAX_SHARD_TASKS, math.ceil(sum(map(len, families.values())) / shards))
    return [
        Shard(stage, tuple(family[start : start + size]))
        for family in sorted(families.values(), key=lambda family: sum(map(duration, family)), reverse=True)
        for start in range(0, len(family), size)
    ]


def next_shard(shards: Iterable[Shard], last: Family | None, in_progress: Collection[Family | None]) -> Shard:
    """Return the shard for a worker: of its ``last`` family, or one not in progress elsewhere, or the first."""
    return min(shards, key=lambda each: (each.family != last, each.family in in_progress))


LIMIT_S = 60.0  # seconds after which a watched block counts as hung, by default

_DEVICE_ERROR = re.compile(r"\b(CUDA|HIP) error\b|Triton Error")


class Crash(NamedTuple):
    """A measurement that made a process unusable, its reason in ``dataset.REASONS``, and its config, if known."""

    problem: Problem
    config: Config | None
    reason: str

    def __str__(self) -> str:
        what = f"{self.problem}, {self.config}" if self.config else str(self.problem)
        return f"{what}: {'hung' if self.reason == 'timeout' else f'died ({self.reason})'}"


class Watch:
    """Calls ``lost``, which must not return, after a fault of a kernel, or in another thread if a kernel hangs."""

    def __init__(self, lost: Callable[[Crash], None]) -> None:
        self._lost = lost

    @contextmanager
    def __call__(
        self, problem: Problem, config: Config | None = None, stage: str = "launch", limit_s: float = LIMIT_S
    ) -> Iterator[None]:
        """Watch a block with the kernel of ``config``, or any kernel for the problem, until the kernel ends.

        If it raises an error and the device is unusable, the process is lost for the reason ``stage``. If it takes
        longer than ``limit_s`` seconds, the reason is ``timeout``. Other errors are raised.
        """
        timer = threading.Timer(limit_s, self._lost, [Crash(problem, config, "timeout")])
        timer.daemon = True
        timer.start()
        try:
            yield
        except RuntimeError as error:
            if _DEVICE_ERROR.search(str(error)) and not _device_answers():
                self._lost(Crash(problem, config, stage))
            raise
        finally:
            timer.cancel()

    def failure(self, problem: Problem, config: Config, is_right: Callable[[], bool]) -> str | None:
        """Return why a kernel does not count, as in ``dataset.REASONS``: it fails, or ``is_right`` is false."""
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


class Setup(NamedTuple):
    """How a collection measures. ``device`` is ``cuda`` or ``cpu``, ``method`` a key of METHODS."""

    device: str
    method: str
    search_space: str
    header: Header


def find_setup(device: str | None, method: str | None, search_space: str) -> Setup:
    """Return this process's setup. The defaults are CUDA if there is any, ``sweep`` on CUDA and ``autotune`` elsewhere.

    HardwareError if there is no such device, or the method is not for it.
    """
    import torch

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    method = method or ("sweep" if device == "cuda" else "autotune")
    if method == "sweep" and device == "cpu":
        raise HardwareError("cpu: method sweep times Triton kernels, which need CUDA: use --method autotune")
    return Setup(device, method, search_space, _make_header(device, method, search_space))


def _make_header(device: str, method: str, search_space: str) -> Header:
    import torch

    try:
        import triton
    except ImportError:
        triton = None
    driver = ""
    program = None if device == "cpu" else shutil.which("nvidia-smi")
    if program is not None:
        query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(query, capture_output=True, text=True, check=False)  # noqa: S603 - a fixed program
        driver = answer.stdout.strip().splitlines()[0] if answer.returncode == 0 else ""
    return Header(
        hardware=detect_hardware(device),
        torch=torch.__version__,
        triton="" if triton is None else str(triton.__version__),
        cuda="" if device == "cpu" else torch.version.cuda or torch.version.hip or "",
        driver=driver,
        benchmarker=f"inductor max_autotune {search_space}" if method == "autotune" else SWEEP,
        measured_on=today(),
    )


def today() -> str:
    """Return the ISO date for a header, or an empty text if the clock says a year before the first release."""
    day = date.today()
    return day.isoformat() if day.year >= 2026 else ""


def measure_tasks(tasks: Sequence[Task], measurer: str, setup: Setup, watch: Watch) -> Iterator[Outcome]:
    """Yield the outcomes of the tasks of a shard. Records include configs with an earlier failure."""
    failed = {task.problem: task.failed for task in tasks}
    for outcome in resolve_name(measurer)(tasks, setup.device, watch, setup.search_space):
        if outcome.record is not None:
            before = failed[outcome.problem]
            configs = {timing.config for timing in before}
            others = (timing for timing in outcome.record.timings if timing.config not in configs)
            outcome = outcome._replace(record=outcome.record._replace(timings=(*others, *before)))
        yield outcome


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
    found: list[Config] = []
    for template in TEMPLATES.values():
        if problem.op in JOINED or not template.few_rows:
            configs = _of_template(template, problem, hardware)
            if architecture(hardware.arch).triton == "hip" and template.tiled:
                configs = [each.with_tiles(each.tiles._replace(num_stages=_ROCM_STAGES)) for each in configs]
            found += dict.fromkeys(configs)
    usual = baseline(problem.op)
    kernels = [config for config in found if config != usual]
    if search_space == "default" and hardware.arch in read_default_search_space():
        kernels = in_default_search_space(problem, kernels, read_default_search_space()[hardware.arch]) or kernels
    return [usual, *sorted(kernels, key=lambda config: not config.kernel.tiled)]


def _of_template(template: Template, problem: Problem, hardware: Hardware) -> list[Config]:
    """Return the configs of a template's search space that suit the problem."""
    known = architecture(hardware.arch)
    if problem.op not in template.ops or not template.runs_on(known):
        return []
    found = (params for params in template.search(problem, hardware) if template.suits(params, problem, known))
    return [Config(template.name, tuple(params)) for params in found]


def in_default_search_space(problem: Problem, kernels: Iterable[Config], known: frozenset[Config]) -> list[Config]:
    """Return the kernels ``known`` for two-byte elements, and all kernels of templates without a known config.

    Kernels for wider elements also count as known with the same numbers.
    """
    swept, dtype = {config.template for config in known}, problem.dtype
    wide = ITEMSIZES[dtype] > _SWEPT_BYTES
    return [
        each
        for each in kernels
        if each.template not in swept or of_two_bytes(dtype, each) in known or (wide and each in known)
    ]


def padded_candidates(problem: Problem, hardware: Hardware, search_space: str = "default") -> list[Config]:
    """Return the candidates of the padded problem, with Inductor's ``pad``, or none if padding aligns nothing."""
    multiple = pad_multiple(problem.dtype)
    if problem.op not in PADDED_OPS or not any(is_copied(problem, multiple)):
        return []
    if problem.align == ROW_BYTES and problem.n % multiple == 0:
        return []
    found = candidates(padded(problem, multiple), hardware, search_space)
    return [config.padded(multiple) for config in found if config.padded(multiple) != config]


def of_two_bytes(dtype: str, config: Config) -> Config:
    """Return the config of two-byte elements with as many bytes a tile as this config of ``dtype``.

    In exhaustive sweeps of ten scaled_mm on an H200 the best config with as many bytes was within 0.2 % of the best
    of all 304 kernels each time. The configs with the same numbers lost up to 14 %.
    """
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
    few_rows = [each for each in TEMPLATES.values() if each.few_rows]
    for_few_rows = (config for each in few_rows for config in _of_template(each, problem, hardware))
    return [*best, *serving[:_MAX_SHARED], *variations(problem, fastest, hardware), *for_few_rows]


def _fused(problem: Problem, ranking: _RankedConfigs) -> list[Config]:
    kernels = [(config, factor) for config, factor in ranking if config.kernel.tiled and config.pad == 1]
    best: dict[tuple[int, int, int], Config] = {}
    limit = _CLOSE_FUSED[problem.epilogue] * min((factor for _, factor in kernels), default=0.0)
    for config, factor in kernels:
        if factor <= limit:
            tiles = config.tiles
            best.setdefault((tiles.block_m, tiles.block_n, tiles.num_warps), config)
    return list(best.values())[:_MAX_FUSED]
