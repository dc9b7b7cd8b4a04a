"""The work of a stage: tasks, outcomes, shards for a worker, kernels that ruin the process, and the setup."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pkgutil import resolve_name
from typing import Any, Literal, NamedTuple, Protocol

from diode_lut.dataset import SOFTWARE, Header, Record, Timing
from diode_lut.errors import HardwareError
from diode_lut.hardware import detect_hardware
from diode_lut.hook.versions import failure_reason
from diode_lut.measure.problems import RecordedKernel
from diode_lut.problem import Problem
from diode_lut.templates.config import Config


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


def difference(one: Setup, other: Setup) -> str:
    """Return the reason why timings of the two setups cannot be mixed, or an empty text."""
    for name in ("hardware", *SOFTWARE):
        mine, others = getattr(one.header, name), getattr(other.header, name)
        if mine != others:
            return f"{name} {mine} and {others}"
    return ""


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
        benchmarker=f"inductor max_autotune {search_space}" if method == "autotune" else "diode_lut sweep 1",
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
