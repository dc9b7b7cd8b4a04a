"""Stage ``autotune``: Inductor's max-autotune, on one problem at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from diode_lut.collect.gemm import make_gemm, matmul_precision
from diode_lut.collect.tasks import Outcome, Task, Watch
from diode_lut.dataset import Record
from diode_lut.domain.errors import CollectError
from diode_lut.domain.problem import Problem
from diode_lut.inductor.autotune import Round, autotune
from diode_lut.settings import config

LIMIT_S = 3600.0
"""Seconds after which a problem counts as hung; an exhaustive search takes minutes."""


def measure(tasks: Sequence[Task], device: str, watch: Watch, search_space: str) -> Iterator[Outcome]:
    """A Measurer. Inductor chooses the configs, so the tasks' own are ignored; the hook is off meanwhile."""
    for task in tasks:
        with watch(task.problem, limit_s=LIMIT_S):
            outcome = _measure(task.problem, device, search_space)
            if outcome.status == "skipped" and device == "cuda":
                torch.cuda.synchronize()  # an unusable device raises here, where the watch sees it
        yield outcome


def _measure(problem: Problem, device: str, search_space: str) -> Outcome:
    try:
        with config.patch(policy="off"), matmul_precision(problem.dtype):
            gemm = make_gemm(problem, device)
            rounds = autotune(gemm.function, gemm.arguments, search_space=search_space, freeze=gemm.frozen)
    except CollectError as error:
        return Outcome(problem, "skipped", reason=str(error))
    found = next((each for each in rounds if each.problem == problem), None)
    if found is None:
        return Outcome(problem, "skipped", reason=_other_problems(rounds))
    return Outcome(problem, "measured", Record(problem, found.timings), ignored=found.ignored)


def _other_problems(rounds: list[Round]) -> str:
    if not rounds:
        return "Inductor does not autotune it as a GEMM"
    return f"reached Inductor as {', '.join(str(each.problem or each.name) for each in rounds)}"
