"""What a matmul gets instead of its own kernel, per class of epilogue: made when the scheduler asks about a class.

A Triton choice takes Inductor some 10 ms to make. Of the classes at most one is fused, and often none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from torch._inductor.ir import Layout
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.select_algorithm import TritonTemplateCaller
from torch._inductor.virtualized import V

from diode_lut.domain.problem import Problem
from diode_lut.inductor.answer import Build, CannotRun, runnable
from diode_lut.inductor.dispatch import Branches, branches
from diode_lut.inductor.snapshot import snapshot
from diode_lut.kernels.config import Config
from diode_lut.selection.dynamic import Piece
from diode_lut.selection.samples import Axis
from diode_lut.selection.selector import Decision


class Alternative(NamedTuple):
    """What a class of epilogue gets: the decision, the config that can run, and the kernel; None if none is fused.

    ``branches`` are the kernels for parts of a dynamic size's range that run instead; ``pieces`` what is decided there.
    """

    decision: Decision
    config: Config
    kernel: TritonTemplateCaller | None
    branches: Branches | None = None
    pieces: tuple[Piece, ...] = ()


class Alternatives:
    """What a matmul gets instead, per class of epilogue; a kernel is made when the scheduler asks about its class.

    ``problem`` is the matmul alone, ``branches`` are its own kernels for parts of a dynamic size's range. Inputs whose
    layouts are not decided yet are in ``assumed``, with the layouts that kernels take them to have. The library takes
    any layout, so it is not for a kernel that may never run to decide on them.
    """

    def __init__(
        self,
        problem: Problem,
        answers: dict[str, Decision],
        make: Callable[[Decision], Alternative | None],
        assumed: list[tuple[Any, Layout]],
        branches: Branches | None,
    ) -> None:
        self.problem, self.assumed, self.branches = problem, assumed, branches
        self._answers, self._make = answers, make
        self._made: dict[str, Alternative | None] = {}

    def of_class(self, name: str) -> Alternative | None:
        """That of a class of epilogues, or None where no config of an answer for it can run."""
        if name not in self._made:
            answer = self._answers.get(name)
            with as_in_lowering():
                self._made[name] = None if answer is None else self._make(answer)
        return self._made[name]


@contextmanager
def as_in_lowering() -> Iterator[None]:
    """No scheduler in the graph: where there is one, a template being made asks it about a buffer that is not there."""
    graph: Any = V.graph
    scheduler, graph.scheduler = graph.scheduler, None
    try:
        yield
    finally:
        graph.scheduler = scheduler


def alternative_of(decision: Decision, build: Build) -> Alternative | None:
    """That of the first config that can run, or None; ``build`` makes its choice."""
    config, choice = next(runnable(decision, build), (None, None))
    if config is None:
        return None
    return Alternative(decision, config, choice if isinstance(choice, TritonTemplateCaller) else None)


def in_branches(
    alternative: Alternative, changing: tuple[Axis, ...], inputs: MMKernelInputs, build: Build
) -> Alternative:
    """The alternative with several kernels, each with the epilogue, where that is better than one."""
    pieces = snapshot().pieces(alternative.decision.problem, inputs.device(), changing, library=False)
    with suppress(CannotRun):
        found = branches(pieces, changing[0], inputs, build) if pieces else None
        if found is not None:
            return alternative._replace(kernel=found.triton[0], branches=found, pieces=pieces)
    return alternative
