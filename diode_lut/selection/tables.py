"""Tables as sources of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from diode_lut.domain.ops import MATMUL_SIZES, OP_SIZES
from diode_lut.domain.printable import printable
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import Config, baseline
from diode_lut.selection.sources import Answer, Threshold, shown, unmeasured_time
from diode_lut.table import Candidate, Entry, Table, of_kind

EXACT, RANGE = "exact", "range"
"""What an answer comes from: a row for one problem, a row for ranges of sizes."""


@dataclass(frozen=True)
class TableSource:
    """A table's rows."""

    table: Table
    _answers: dict[int, Answer] = field(default_factory=dict, compare=False, repr=False)
    """Per id of a row that has answered: the answer."""
    only_first: ClassVar = False

    @property
    def path(self) -> Path | None:
        """The table's file."""
        return self.table.path

    @property
    def rows(self) -> int:
        """Number of the table's rows."""
        return len(self.table.entries)

    @property
    def digest(self) -> str:
        """SHA-256 of the table's file, in hexadecimal."""
        return self.table.digest

    @property
    def identity(self) -> str:
        """A table of other hardware is never asked, so its content is all that its answers depend on."""
        return self.table.digest

    def ask(self, problem: Problem, threshold: Threshold, *, padding: bool) -> Answer | None:
        """The most specific row that covers the problem."""
        del threshold, padding
        entry = self.table.lookup(problem)
        if entry is None:
            return None
        known = self._answers.get(id(entry))
        return known or self._answers.setdefault(id(entry), Answer(entry.configs, entry=entry))

    def no_match(self, problem: Problem) -> str:
        """The first fields of the problem that no row has; else that no row has its sizes."""
        entries, kind = of_kind(self.table.entries, problem)
        if not entries:
            return f"no entry for {kind}"
        sizes = " ".join(f"{name}={getattr(problem, name)}" for name in _shown_sizes(problem.op))
        return f"no entry covers {sizes}, out of {len(entries)} for {kind}"

    def covering(self, problem: Problem) -> Sequence[Entry]:
        """The most specific row first."""
        return self.table.covering(problem)

    def times(self, problem: Problem, *, padding: bool) -> Mapping[Config, float]:
        """Those of the configs of the row that answers; without measurements, all count as faster, in their order."""
        entry = self.table.lookup(problem)
        if entry is None:
            return {}
        return {
            each.config: _time(each, place)
            for place, each in enumerate(entry.candidates)
            if padding or each.config.pad == 1
        }

    def borders(self, problem: Problem, fields: Sequence[str]) -> AbstractSet[int]:
        """Those of its rows."""
        return self.table.borders(problem, fields)

    def name(self, answer: Answer | None = None) -> str:
        """The file, and the line of the answer's row."""
        table = shown(self.path) if self.path else printable(f"table for {self.table.hardware.name}")
        line = self.table.line_of(answer.entry) if answer is not None and answer.entry is not None else None
        return table if line is None else f"{table}:{line}"

    def answers(self, answer: Answer) -> str:
        """The row, with its note."""
        assert answer.entry is not None
        note = f" ({answer.entry.note})" if answer.entry.note else ""
        return f"{self.name(answer)} answers{note}"

    def details(self, answer: Answer) -> list[str]:
        """The configs of the row, with their gains."""
        assert answer.entry is not None
        return [f"    {_candidate_text(candidate)}" for candidate in answer.entry.candidates]

    def origin(self, answer: Answer) -> str:
        """Whether the row is for one problem or for ranges."""
        assert answer.entry is not None
        return EXACT if answer.entry.is_exact else RANGE

    def description(self) -> str:
        """The number of rows, and which device they were measured on."""
        return printable(f"{self.rows} rows for {self.table.hardware.name}")


def _shown_sizes(op: str) -> tuple[str, ...]:
    """The sizes that messages name: those of GEMMs, and all that the op has."""
    return tuple(dict.fromkeys((*MATMUL_SIZES, *OP_SIZES[op])))


def _time(candidate: Candidate, place: int) -> float:
    """Time of a row's config over that of aten, given its place in the row; a gain of 0 is less than a permille."""
    gain = candidate.gain_permille
    return unmeasured_time(place) if gain is None else 1000 / max(gain, 1)


def _candidate_text(candidate: Candidate) -> str:
    if candidate.gain_permille is None:
        return str(candidate.config)
    usual = baseline(candidate.config.kernel.ops[0])
    return f"{candidate.config} ({candidate.gain_permille / 1000:.3f} times as fast as {usual})"
