"""Rows for generated kernels: ranges that cover all sizes, and rows for single problems."""

from __future__ import annotations

from diode_lut.build.generated import kernel_rows
from diode_lut.problem import Problem
from diode_lut.table.lookup import Index
from diode_lut.templates.config import DEFAULT, Config

SHORT, LONG = Config("looped_reduction", (8, 64, 2)), Config("looped_reduction", (1, 1024, 8))
KEPT = Config("persistent_reduction", (2, 2))


def kernel(x: int, r: int) -> Problem:
    return Problem.generated("reduction", "inner", x=x, r=r)


def test_sizes_are_divided_where_it_pays() -> None:
    """Each side of a border gets its config, nothing is missed, and gains are over Inductor's first config."""
    problems = [kernel(1024, 1 << power) for power in range(5, 15)]
    times = [
        {DEFAULT: 3.0, SHORT: 1.0 if each.r <= 512 else 2.0, LONG: 2.0 if each.r <= 512 else 1.0} for each in problems
    ]
    below, above = sorted(kernel_rows(problems, times), key=lambda row: row.r or (0, 0))
    assert (below.r, above.r) == ((1, 512), (513, 2**31 - 1))
    assert (below.best, above.best) == ((SHORT, 3000), (LONG, 3000))
    assert (below.x, below.problems, above.problems) == (None, 5, 5)
    assert Index([below, above]).find(kernel(1, 1)) == below


def test_a_problem_with_another_best_config_has_its_own_row() -> None:
    """The row has the best config of each form, because a kernel with several reductions keeps its form."""
    problems = [kernel(1024, 100 + number) for number in range(7)]
    times = [{DEFAULT: 2.0, SHORT: 1.0, KEPT: 1.5} for _ in problems]
    times[3] = {DEFAULT: 2.0, SHORT: 1.5, KEPT: 1.0}
    single, every = sorted(kernel_rows(problems, times), key=lambda row: row.volume)
    assert (single.x, single.r, single.configs) == ((1024, 1024), (103, 103), (KEPT, SHORT))
    assert (every.best.config, every.x, every.r) == (SHORT, None, None)
    assert Index([single, every]).find(problems[3]) == single
