"""What can answer a problem: tables, models and choosers. Each is a Source to the selector, and describes itself.

A new kind of source is a class in a module of its own, and a tier in ``decide/catalog.py``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from diode_lut.errors import printable
from diode_lut.hardware import Hardware
from diode_lut.problem import MATMUL_SIZES, OP_SIZES, Problem
from diode_lut.settings import CONFIDENCE, GAIN, MODEL, Settings
from diode_lut.table import Candidate, Entry, Table, of_kind
from diode_lut.templates.config import ATEN, Config, baseline

if TYPE_CHECKING:
    from diode_lut.model.ranking import Model, Ranking


EXPECTED_GAIN = 0.05
"""Least gain over aten that a model must expect of another config for that to be taken: less may be none.

With 5 % as without, the answers of shipped models gain as much, and fewer are slower than aten by over 3 %: on held-out
GEMMs of real models 2 instead of 3, on random ones 1 instead of 2, in float8 and int8 1 of 1,470 instead of 5, and of
the H200's on an H100 none instead of 2. Of the kernels on real models, one in seven need not be compiled.
"""

_UNMEASURED_TIME = 0.9
"""What a config without a measurement is taken to need, over aten's time: whoever wrote it down prefers it."""


class Threshold(NamedTuple):
    """What an answer must reach to be used.

    A model's must reach one of two: ``confidence``, from 0 to 1, is that its first config is within 5 % of the best.
    ``gain`` is the fraction by which the first config is expected to be faster than aten: another may be faster still,
    but aten hardly is. Where the first config of any answer gains less than ``min_gain``, aten is used instead.
    """

    confidence: float = CONFIDENCE
    gain: float = GAIN
    min_gain: float = 0.0

    @classmethod
    def of(cls, settings: Settings) -> Threshold:
        """The threshold that the user has set."""
        return cls(settings.confidence_threshold, settings.gain_threshold, settings.min_gain)

    def reached(self, confidence: float, time: float) -> bool:
        """Whether this confidence in a config, or its expected ``time`` over that of aten, is enough."""
        return confidence >= self.confidence or time * (1 + self.gain) <= 1

    def is_clear(self, time: float) -> bool:
        """Whether a model's expected ``time`` of a config over that of aten is so low that the gain is likely one."""
        return time * (1 + min(EXPECTED_GAIN, self.gain)) <= 1

    def missed_by(self, ranking: Ranking) -> str:
        """Why the ranking does not reach it."""
        expected = f"expected to be {1 / ranking.times[0]:.3f} times as fast as aten, not {1 + self.gain:g}"
        return f"confidence {ranking.confidence:.3f} is below {self.confidence:g}, and it is {expected}"


THRESHOLD = Threshold()
"""The threshold of the default settings."""


class Answer(NamedTuple):
    """What a source says about a problem; without configs it abstains, and ``reason`` says why.

    ``configs`` are the best first. ``entry`` is the row they are from; ``ranking`` is what a model expects, also where
    it abstains.
    """

    configs: tuple[Config, ...]
    reason: str = ""
    entry: Entry | None = None
    ranking: Ranking | None = None

    @property
    def expected_time(self) -> float | None:
        """Time that a model expects of its first config, over that of aten; None if no model said so."""
        if self.ranking is None:
            return None
        return self.ranking.times[self.ranking.configs.index(self.configs[0]) if self.configs else 0]

    @property
    def gain(self) -> float | None:
        """The fraction by which the first config is faster than aten, as measured or expected; None if not known."""
        if self.entry is not None:
            permille = self.entry.best.gain_permille
            return None if permille is None else permille / 1000 - 1
        return None if self.expected_time is None else 1 / self.expected_time - 1


class Source(Protocol):
    """Something that answers problems for one hardware."""

    @property
    def path(self) -> Path | None:
        """The file; None for one in memory."""

    @property
    def digest(self) -> str:
        """SHA-256 of its content, in hexadecimal."""

    @property
    def identity(self) -> str:
        """Everything that its answers depend on besides the problem and the threshold."""

    @property
    def rows(self) -> int:
        """Number of rows; 0 if it has none."""

    @property
    def only_first(self) -> bool:
        """Whether it vouches for its first config alone, so that none of the others may be used instead."""

    def ask(self, problem: Problem, threshold: Threshold, *, padding: bool) -> Answer | None:
        """The answer; None where there is no match, for which ``no_match`` has the reason.

        Without ``padding`` the operands stay as they are, so that no config with a ``pad`` can run.
        """

    def no_match(self, problem: Problem) -> str:
        """Why there is no match."""

    def covering(self, problem: Problem) -> Sequence[Entry]:
        """All rows that cover the problem, in the order in which they would answer."""

    def times(self, problem: Problem, *, padding: bool) -> Mapping[Config, float]:
        """Times of configs for the problem over that of aten, as far as it knows them; none without a match."""

    def borders(self, problem: Problem, fields: Sequence[str]) -> AbstractSet[int]:
        """The sizes in ``fields`` at which rows begin or end that cover the problem, but for these fields."""

    def name(self, answer: Answer | None = None) -> str:
        """What messages call it, or the part of it that the answer is from."""

    def answers(self, answer: Answer) -> str:
        """One line on an answer of its own."""

    def details(self, answer: Answer) -> list[str]:
        """Lines on the configs of an answer of its own, or on what it expects where it abstains."""

    def origin(self, answer: Answer) -> str:
        """What kind of answer it is, in a word."""

    def description(self) -> str:
        """What it is, in a few words."""


def shown(path: Path) -> str:
    """The path as messages show it: relative to the working directory where it lies below that."""
    with suppress(FileNotFoundError):  # the working directory may have been removed
        if path.is_relative_to(Path.cwd()):
            return printable(os.path.relpath(path))
    return printable(str(path))


def unmeasured_time(place: int) -> float:
    """Time over that of aten of a config whose time nobody has said, given its place, from 0, among others like it."""
    return _UNMEASURED_TIME * (1 + place / 100)


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


_RANKED = 5
"""Number of configs of a model's ranking that are shown."""


@dataclass(frozen=True)
class ModelSource:
    """A model that ranks for ``hardware``, which need not be what it was trained for."""

    model: Model
    hardware: Hardware
    only_first: ClassVar = True
    rows: ClassVar = 0

    @property
    def path(self) -> Path | None:
        """The weights file."""
        return self.model.path

    @property
    def digest(self) -> str:
        """SHA-256 of the weights file, in hexadecimal."""
        return self.model.digest

    @property
    def identity(self) -> str:
        """The weights, and the architecture and SM count for which they rank; on a CPU the number of threads.

        Compiled code keeps the number of threads that it was made for, or takes the process's, and Inductor's keys
        have neither under all of its settings.
        """
        return f"{self.model.digest} {self.hardware.arch} {self.hardware.sm_count}"

    def ask(self, problem: Problem, threshold: Threshold, *, padding: bool) -> Answer | None:
        """The ranking; without configs if it does not reach the threshold, aten alone if hardly more is expected."""
        ranking = self.model.rank(problem, self.hardware, padding=padding)
        if ranking is None:
            return None
        if not threshold.reached(ranking.confidence, ranking.times[0]):
            return Answer((), threshold.missed_by(ranking), ranking=ranking)
        is_clear = ranking.configs[0].template == ATEN.template or threshold.is_clear(ranking.times[0])
        return Answer(ranking.configs if is_clear else (ATEN,), ranking=ranking)

    def no_match(self, problem: Problem) -> str:
        """Which of the problem's fields or sizes the model was not trained for."""
        return self.model.unknown(problem)

    def covering(self, problem: Problem) -> Sequence[Entry]:
        """A model has no rows."""
        del problem
        return ()

    def times(self, problem: Problem, *, padding: bool) -> Mapping[Config, float]:
        """Those that it expects of all configs that it chooses from."""
        return self.model.times(problem, self.hardware, padding=padding)

    def borders(self, problem: Problem, fields: Sequence[str]) -> set[int]:
        """A model has no rows."""
        del problem, fields
        return set()

    def name(self, answer: Answer | None = None) -> str:
        """The file, and which hardware it was trained for where that is another; an answer has no place in it."""
        name = shown(self.path) if self.path else printable(f"model for {self.model.hardware.name}")
        return name if answer is not None else f"{name}{self._trained_for()}"

    def answers(self, answer: Answer) -> str:
        """The file, and the confidence."""
        assert answer.ranking is not None
        name = self.name()
        comma = "," if self._trained_for() else ""
        changed = answer.configs[0] != answer.ranking.configs[0]
        instead = f"; the expected gain is less than {EXPECTED_GAIN:.0%}, so {ATEN} is taken" if changed else ""
        return f"{name}{comma} answers, with confidence {answer.ranking.confidence:.3f}{instead}"

    def details(self, answer: Answer) -> list[str]:
        """The best configs of the ranking, with what is expected of them, and the confidence."""
        assert answer.ranking is not None
        best = islice(zip(answer.ranking.configs, answer.ranking.times, strict=True), _RANKED)
        lines = [f"    {config} ({1 / time:.3f} times as fast as aten, expected)" for config, time in best]
        return [*lines, f"    the first is within 5 % of the best with confidence {answer.ranking.confidence:.3f}"]

    def origin(self, answer: Answer) -> str:
        """A model."""
        del answer
        return MODEL

    def description(self) -> str:
        """That it is a model, and for which hardware it was trained where that is another."""
        return f"a model{self._trained_for()}"

    def _trained_for(self) -> str:
        trained = self.model.hardware
        return "" if trained.same_device(self.hardware) else f", trained for {trained}"
