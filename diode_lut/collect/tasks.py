"""Work for the collector: tasks, shards of them for one worker each, outcomes, and kernels that ruin the process."""

from __future__ import annotations

import math
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, Protocol

from diode_lut.dataset import Record, Timing
from diode_lut.domain.problem import Problem
from diode_lut.inductor.names import failure_reason
from diode_lut.kernels.config import Config


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
