"""What the parts of the collector pass to each other: tasks, shards of tasks, and what became of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from diode_lut.dataset import Record, Timing
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import Config

if TYPE_CHECKING:
    from diode_lut.collect.watch import Watch


class Task(NamedTuple):
    """One problem to measure at one stage.

    ``configs`` are those to try, none for the stage's own choice. ``failed`` are those not to try again, because each
    of them cost a worker its life.
    """

    problem: Problem
    configs: tuple[Config, ...] = ()
    failed: tuple[Timing, ...] = ()


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
    """Tasks of one stage and one family, for one worker."""

    stage: str
    tasks: tuple[Task, ...]

    @property
    def family(self) -> Family:
        """The family of all its problems."""
        return Family.of(self.tasks[0].problem)


class Outcome(NamedTuple):
    """What became of one problem at one stage.

    ``measured`` comes with the timings just written, ``skipped`` with a reason in words, ``present`` was in the file
    before. ``ignored`` counts candidates of Inductor's that no config can express.
    """

    problem: Problem
    status: Literal["measured", "present", "skipped"]
    record: Record | None = None
    reason: str = ""
    ignored: int = 0


class Measurer(Protocol):
    """Measures one stage."""

    def __call__(self, tasks: Sequence[Task], device: str, watch: Watch, search_space: str) -> Iterator[Outcome]:
        """One outcome for each task, each yielded as soon as it is known, in any order.

        ``tasks`` are of one family. ``device`` is ``cuda`` or ``cpu``. ``watch`` is told of every kernel that could
        hang or fault. No config in a task's ``failed`` is tried; the caller puts them into the record. CollectError
        if the device cannot be used at all, which ends the whole collection.
        """
