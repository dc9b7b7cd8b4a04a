"""The methods of measuring, their stages, and what measures each stage.

Nothing is imported for a stage before it is measured, so the command line can list the methods without torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diode_lut.collect.setup import Setup
    from diode_lut.collect.tasks import Outcome, Task
    from diode_lut.collect.watch import Watch
    from diode_lut.dataset import Record, Timing
    from diode_lut.domain.problem import Problem

METHODS = {"autotune": ("autotune",), "sweep": ("sweep", "final")}
"""The stages of each method, in order: all problems go through one stage before any goes through the next."""

MEASURERS = {
    "autotune": "diode_lut.collect.autotune:measure",
    "sweep": "diode_lut.collect.sweep:measure",
    "final": "diode_lut.collect.final:measure",
}
"""The Measurer of each stage."""

FINALISTS = "diode_lut.collect.final:finalists"
"""The function that makes the tasks of stage ``final`` from the records of stage ``sweep``."""


def final_tasks(records: Iterable[Record], problems: Sequence[Problem], sm_count: int) -> list[Task]:
    """The tasks of stage ``final``, from the records of stage ``sweep`` on a device of ``sm_count`` SMs."""
    tasks: list[Task] = resolve_name(FINALISTS)(records, problems, sm_count)
    return tasks


def measure_tasks(tasks: Sequence[Task], measurer: str, setup: Setup, watch: Watch) -> Iterator[Outcome]:
    """The outcomes of one of MEASURERS; records include the configs that failed before.

    ``tasks`` are of one family.
    """
    failed = {task.problem: task.failed for task in tasks}
    for outcome in resolve_name(measurer)(tasks, setup.device, watch, setup.search_space):
        yield _with_failures(outcome, failed[outcome.problem])


def _with_failures(outcome: Outcome, failed: tuple[Timing, ...]) -> Outcome:
    if outcome.record is None:
        return outcome
    configs = {timing.config for timing in failed}
    others = (timing for timing in outcome.record.timings if timing.config not in configs)
    return outcome._replace(record=outcome.record._replace(timings=(*others, *failed)))
