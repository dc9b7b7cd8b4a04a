"""Tables of single problems, which is what other tools have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from diode_lut.domain.hardware import Hardware
from diode_lut.domain.problem import BATCHED, Problem
from diode_lut.exchange.formats import Skipped
from diode_lut.kernels.config import Config
from diode_lut.table import Candidate, Entry, Table


def exact_table(hardware: Hardware, answers: Mapping[Problem, Sequence[Config]]) -> Table:
    """A table with a row for each problem."""
    return Table(hardware, [_exact_entry(problem, configs) for problem, configs in answers.items() if configs])


def exact_problems(table: Table, skipped: Skipped) -> list[Problem]:
    """The problems that rows for a single one are about; the other rows are skipped."""
    exact = [entry for entry in table.entries if entry.volume == 1]
    if len(exact) < len(table.entries):
        skipped["rows for more than one problem (say which problems: --problems)"] += len(table.entries) - len(exact)
    return [_problem(entry) for entry in exact]


def answers(table: Table, problems: Iterable[Problem], skipped: Skipped) -> Iterator[tuple[Problem, Entry]]:
    """What the table answers for each problem; those that it does not cover are skipped."""
    for problem in problems:
        entry = table.lookup(problem)
        if entry is None:
            skipped["problems that the table does not cover"] += 1
        else:
            yield problem, entry


def _exact_entry(problem: Problem, configs: Sequence[Config]) -> Entry:
    b, m, n, k = ((size, size) for size in problem.sizes)
    batch = b if problem.op in BATCHED else None
    return Entry(*problem.kind, batch, m, n, k, tuple(map(Candidate, configs)))


def _problem(entry: Entry) -> Problem:
    sizes = (1 if size is None else size[0] for size in entry.sizes)
    return Problem(*entry.kind, *sizes)  # type: ignore[arg-type]  # one of volume 1 leaves nothing out but b
