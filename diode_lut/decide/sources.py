"""Sources of answers about problems: tables and models here, a user's function in ``choosers.py``.

A source returns an Answer about a problem, or None if it has no match. A Decision has the answer that is used, and the
steps before it. A new kind of source is a subclass of Source, with a tier in ``catalog.py``.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from diode_lut.errors import as_lines, counted, printable
from diode_lut.hardware import Hardware
from diode_lut.model import unknown
from diode_lut.problem import GENERATED, MATMUL_SIZES, OP_SIZES, TOGETHER, Problem
from diode_lut.settings import CONFIDENCE, GAIN, MODEL, Settings
from diode_lut.table import Entry, Table, of_kind
from diode_lut.templates.config import ATEN, Config, baseline

if TYPE_CHECKING:
    from diode_lut.model.ranking import Model, Ranking

EXPECTED_GAIN = 0.02
"""Least gain over aten that a model must expect of another config. A smaller gain may be none.

On 3,200 held-out GEMMs of the H100 and the H200, with limits of 0 %, 2 % and 5 %, answers are within 5 % of the best
for 91.1, 90.9 and 90.0 %. They use 1,779, 1,722 and 1,625 kernels, of which 37, 31 and 20 are slower than aten by over
3 %.
"""


class Threshold(NamedTuple):
    """Limits for the use of an answer.

    A model's answer must reach the ``confidence``, from 0 to 1, that its first config is within 5 % of the best, or the
    expected ``gain`` over aten. If the first config of any answer gains less than ``min_gain`` over aten, aten is used
    instead. Gains are fractions.
    """

    confidence: float = CONFIDENCE
    gain: float = GAIN
    min_gain: float = 0.0

    @classmethod
    def of(cls, settings: Settings) -> Threshold:
        """Return the user's threshold."""
        return cls(settings.confidence_threshold, settings.gain_threshold, settings.min_gain)

    def reached(self, confidence: float, time: float) -> bool:
        """Return whether a confidence, or the expected ``time`` over aten's, is enough."""
        return confidence >= self.confidence or time * (1 + self.gain) <= 1

    def is_clear(self, time: float) -> bool:
        """Return whether an expected ``time`` over aten's is low enough for a likely gain."""
        return time * (1 + min(EXPECTED_GAIN, self.gain)) <= 1


THRESHOLD = Threshold()  # the threshold of the default settings


class Answer(NamedTuple):
    """The answer of a source: its configs, best first.

    Without configs, the source abstains for the ``reason``. ``entry`` is the row. ``ranking`` is a model's, also if it
    abstains. ``gain`` is the gain of the first config over aten as a fraction, measured or expected. It is None if
    unknown.
    """

    configs: tuple[Config, ...]
    reason: str = ""
    entry: Entry | None = None
    ranking: Ranking | None = None
    gain: float | None = None


class Source(ABC):
    """A source of answers for ``hardware``.

    ``path`` is its file, or None if it has none, and ``rows`` the number of its rows. If ``only_first``, its first
    config alone may run, and no other config instead.
    """

    rows: int = 0
    only_first: ClassVar[bool] = False

    def __init__(self, hardware: Hardware, path: Path | None) -> None:
        self.hardware, self.path = hardware, path

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return (self.identity, self.hardware, self.path) == (other.identity, other.hardware, other.path)

    __hash__ = object.__hash__

    @property
    @abstractmethod
    def digest(self) -> str:
        """SHA-256 of its content, in hexadecimal."""

    @property
    def identity(self) -> str:
        """Everything that its answers depend on besides the problem and the threshold."""
        return self.digest

    @property
    def has_own_kernels(self) -> bool:
        """Whether the user has it answer about generated kernels."""
        return False

    @abstractmethod
    def ask(self, problem: Problem, threshold: Threshold, *, padding: bool) -> Answer | None:
        """Return the answer, or None without a match.

        Without ``padding`` the operands stay as they are, and no config with a ``pad`` can run.
        """

    def ask_over(self, problem: Problem, low: int, high: int, threshold: Threshold) -> Answer | None:
        """Return the answer about a generated kernel whose x may change from ``low`` to ``high``.

        Ask at all sizes where rows begin and end, and at powers of two. The answer has the configs of all these
        answers, and the least gain. Return None if their first configs differ.
        """
        ends = (size + step for size in self.borders(problem, ("x",)) for step in (-1, 0, 1))
        powers = (1 << power for power in range(high.bit_length()))
        inside = {size for size in (*ends, *powers) if low < size < high}
        found: Answer | None = None
        for size in (low, high, *sorted(inside)):
            answer = self.ask(problem._replace(x=size), threshold, padding=False)
            if answer is None or not answer.configs or (found and answer.configs[0] != found.configs[0]):
                return None
            configs = answer.configs if found is None else tuple(filter(answer.configs.__contains__, found.configs))
            gains = [each.gain for each in (found, answer) if each and each.gain is not None]
            found = answer._replace(configs=configs, gain=min(gains, default=None))
        return found

    @abstractmethod
    def no_match(self, problem: Problem) -> str:
        """Return why there is no match."""

    @abstractmethod
    def times(self, problem: Problem, *, padding: bool) -> Mapping[Config, float]:
        """Return the known times of configs for the problem over aten's, or nothing without a match."""

    def covering(self, problem: Problem) -> Sequence[Entry]:
        """Return all rows for the problem, in the order of answering."""
        return ()

    def borders(self, problem: Problem, fields: Sequence[str]) -> AbstractSet[int]:
        """Return the sizes at which rows of the problem's kind begin or end in ``fields``."""
        return set()

    @abstractmethod
    def name(self, answer: Answer | None = None) -> str:
        """Return the name for messages. For an answer, add its place."""

    def line_about(self, answer: Answer) -> str:
        """Return a line about an answer of its own."""
        return f"{self.name(answer)} answers"

    def details(self, answer: Answer) -> list[str]:
        """Return lines about the configs of an answer of its own."""
        return [f"    {config}" for config in answer.configs]

    @abstractmethod
    def origin(self, answer: Answer) -> str:
        """Return the kind of an answer, in a word."""

    @abstractmethod
    def description(self) -> str:
        """Return a description in a few words."""


def shown(path: Path) -> str:
    """Return the path as messages show it: relative to the working directory, if it lies below."""
    with suppress(FileNotFoundError):  # the working directory may have been removed
        if path.is_relative_to(Path.cwd()):
            return printable(os.path.relpath(path))
    return printable(str(path))


def unmeasured_time(place: int) -> float:
    """Return the assumed time, over aten's, of a config without a measurement, by its place in an answer."""
    return 0.9 * (1 + place / 100)


EXACT, RANGE = "exact", "range"  # origins of answers: a row for a single problem, and a row for ranges of sizes


class TableSource(Source):
    """The rows of a table. A table of other hardware is never asked."""

    def __init__(self, table: Table) -> None:
        super().__init__(table.hardware, table.path)
        self.table, self.rows = table, len(table.entries)
        self._answers: dict[int, Answer] = {}  # answers by the id of their row

    @property
    def digest(self) -> str:
        return self.table.digest

    @property
    def has_own_kernels(self) -> bool:
        """Whether there are rows for generated kernels. Do not ask this of shipped tables."""
        return any(entry.op in GENERATED for entry in self.table.entries)

    def ask(self, problem: Problem, threshold: Threshold, *, padding: bool) -> Answer | None:
        entry = self.table.lookup(problem)
        if entry is None:
            return None
        known = self._answers.get(id(entry))
        if known is None:
            permille = entry.best.gain_permille
            gain = None if permille is None else permille / 1000 - 1
            known = self._answers.setdefault(id(entry), Answer(entry.configs, entry=entry, gain=gain))
        return known

    def no_match(self, problem: Problem) -> str:
        """Return the first fields of the problem without a row, or else its sizes."""
        entries, kind = of_kind(self.table.entries, problem)
        if not entries:
            return f"no entry for {kind}"
        others = () if problem.op in GENERATED else MATMUL_SIZES
        names = dict.fromkeys((*others, *OP_SIZES[problem.op]))
        sizes = " ".join(f"{name}={getattr(problem, name)}" for name in names)
        return f"no entry covers {sizes}, out of {len(entries)} for {kind}"

    def covering(self, problem: Problem) -> Sequence[Entry]:
        return self.table.covering(problem)

    def times(self, problem: Problem, *, padding: bool) -> Mapping[Config, float]:
        entry = self.table.lookup(problem)
        times = {}
        for place, (config, permille) in enumerate(entry.candidates if entry is not None else ()):
            if padding or config.pad == 1:  # a gain of 0 is less than a permille
                times[config] = unmeasured_time(place) if permille is None else 1000 / max(permille, 1)
        return times

    def borders(self, problem: Problem, fields: Sequence[str]) -> AbstractSet[int]:
        return self.table.borders(problem, fields)

    def name(self, answer: Answer | None = None) -> str:
        """Return the file, and the line of the answer's row."""
        table = shown(self.path) if self.path else printable(f"table for {self.table.hardware.name}")
        line = self.table.line_of(answer.entry) if answer is not None and answer.entry is not None else None
        return table if line is None else f"{table}:{line}"

    def line_about(self, answer: Answer) -> str:
        assert answer.entry is not None
        note = f" ({answer.entry.note})" if answer.entry.note else ""
        return f"{self.name(answer)} answers{note}"

    def details(self, answer: Answer) -> list[str]:
        """Return the configs of the row with their gains."""
        assert answer.entry is not None
        lines = []
        for config, permille in answer.entry.candidates:
            op = answer.entry.op or config.kernel.ops[0]
            usual = baseline(op)
            gain = "" if permille is None else f" ({permille / 1000:.3f} times as fast as {usual})"
            if op in TOGETHER and config == usual:
                gain = f" ({_APART})"
            lines.append(f"    {config}{gain}")
        return lines

    def origin(self, answer: Answer) -> str:
        assert answer.entry is not None
        return EXACT if answer.entry.is_exact else RANGE

    def description(self) -> str:
        return printable(f"{counted(self.rows, 'row')} for {self.table.hardware.name}")


_APART = "each matmul is asked about on its own"
"""The text for TOGETHER without a common kernel: joined matmuls, and a matmul with the work after it."""

_RANKED = 5  # number of configs of a ranking in ``details``


class ModelSource(Source):
    """A model's rankings for ``hardware``, which it may not be trained for. ``own``: the user named its file."""

    only_first: ClassVar = True

    def __init__(self, model: Model, hardware: Hardware, *, own: bool = False) -> None:
        super().__init__(hardware, model.path)
        self.model, self.own = model, own
        trained = model.hardware
        self._trained_for = "" if trained.same_device(hardware) else f", trained for {trained}"
        self._kernels = model.kernels

    @property
    def digest(self) -> str:
        return self.model.digest

    @property
    def identity(self) -> str:
        """The weights, the architecture, and the number of SMs, or of threads on a CPU.

        Code for CPUs may depend on the number of threads, and Inductor's keys do not always have it.
        """
        return f"{self.model.digest} {self.hardware.arch} {self.hardware.sm_count}"

    @property
    def has_own_kernels(self) -> bool:
        return self.own and self._kernels is not None

    def ask(self, problem: Problem, threshold: Threshold, *, padding: bool) -> Answer | None:
        """Return the ranking, or no configs below the threshold, or aten alone if the expected gain is not clear.

        A generated kernel gets the ranking at any threshold, because Inductor would choose by a single benchmark.
        """
        if problem.op in GENERATED:
            configs = () if self._kernels is None else self._kernels.ranked(problem)
            return Answer(configs) if configs else None
        ranking = self.model.rank(problem, self.hardware, padding=padding)
        if ranking is None:
            return None
        first, time = ranking.configs[0], ranking.times[0]
        if not threshold.reached(ranking.confidence, time):
            expected = f"expected to be {1 / time:.3f} times as fast as aten, not {1 + threshold.gain:g}"
            reason = f"confidence {ranking.confidence:.3f} is below {threshold.confidence:g}, and it is {expected}"
            return Answer((), reason, ranking=ranking, gain=1 / time - 1)
        if first.template == ATEN.template or threshold.is_clear(time):
            return Answer(ranking.configs, ranking=ranking, gain=1 / time - 1)
        return Answer((ATEN,), ranking=ranking, gain=1 / ranking.times[ranking.configs.index(ATEN)] - 1)

    def ask_over(self, problem: Problem, low: int, high: int, threshold: Threshold) -> Answer | None:
        configs = () if self._kernels is None else self._kernels.ranked_over(problem, low, high)
        return Answer(configs) if configs else None

    def no_match(self, problem: Problem) -> str:
        """Return the fields or sizes of the problem that the model's training did not cover."""
        if problem.op in GENERATED:
            return f"too few kernels like {problem.op} {problem.variant} were measured for it"
        return unknown(self.model.kinds, problem)

    def times(self, problem: Problem, *, padding: bool) -> Mapping[Config, float]:
        return self.model.times(problem, self.hardware, padding=padding)

    def name(self, answer: Answer | None = None) -> str:
        """Return the file. Without an answer, add the hardware it was trained for, if that is another."""
        name = shown(self.path) if self.path else printable(f"model for {self.model.hardware.name}")
        return name if answer is not None else f"{name}{self._trained_for}"

    def line_about(self, answer: Answer) -> str:
        if answer.ranking is None:
            return f"{self.name()} answers, with the config of the least expected time"
        comma = "," if self._trained_for else ""
        changed = answer.configs[0] != answer.ranking.configs[0]
        instead = f"; the expected gain is less than {EXPECTED_GAIN:.0%}, so {ATEN} is taken" if changed else ""
        return f"{self.name()}{comma} answers, with confidence {answer.ranking.confidence:.3f}{instead}"

    def details(self, answer: Answer) -> list[str]:
        """Return the best configs of the ranking with their expected gains, and the confidence."""
        if answer.ranking is None:
            return super().details(answer)[:_RANKED]
        best = islice(zip(answer.ranking.configs, answer.ranking.times, strict=True), _RANKED)
        lines = [f"    {config} ({1 / time:.3f} times as fast as aten, expected)" for config, time in best]
        return [*lines, f"    the first is within 5 % of the best with confidence {answer.ranking.confidence:.3f}"]

    def origin(self, answer: Answer) -> str:
        return MODEL

    def description(self) -> str:
        return f"a model{self._trained_for}"


def source_of(opened: Table | Model, hardware: Hardware | None = None) -> Source:
    """Return the source for ``hardware``, by default the table's or the model's own."""
    return TableSource(opened) if isinstance(opened, Table) else ModelSource(opened, hardware or opened.hardware)


class Step(NamedTuple):
    """A source without an answer, or the ``reason`` why no source was asked."""

    tier: str
    source: Source | None
    reason: str = ""

    def describe(self, problem: Problem) -> str:
        """Return the step as text."""
        if self.source is None:
            return f"{self.tier}: {self.reason}"
        return f"{self.tier}: {self.source.name()}: {self.reason or self.source.no_match(problem)}"


ABSTAIN = "abstain"  # the tier of decisions without configs


class Decision(NamedTuple):
    """The configs of a problem, best first. Without configs, Inductor decides as without diode_lut.

    ``tier`` is the answering tier, or ABSTAIN. ``source`` and ``answer`` are used, or without configs they are those of
    the last source to abstain, or None. ``tried`` are the steps before. If sizes may change, ``over`` names their
    ranges, and the problem has sizes within. ``left_out`` are configs that were best for some sizes, but are not used,
    because a size that may change was a constant in their timings.
    """

    problem: Problem
    hardware: Hardware
    tier: str
    configs: tuple[Config, ...]
    source: Source | None
    answer: Answer | None
    tried: tuple[Step, ...]
    over: str = ""
    left_out: tuple[Config, ...] = ()

    @property
    def entry(self) -> Entry | None:
        """The row that answered, or None."""
        return None if self.answer is None else self.answer.entry

    def is_measured(self, config: Config) -> bool:
        """Return whether the answering row has a measured gain of this config."""
        candidates = () if self.entry is None else self.entry.candidates
        return any(each.config == config and each.gain_permille is not None for each in candidates)

    @property
    def only_first(self) -> bool:
        """Whether no config but the first may run."""
        return self.source is not None and self.source.only_first

    @property
    def expected_time(self) -> float | None:
        """A model's expected time over aten's, also if it abstains. None without a model."""
        ranking = None if self.answer is None else self.answer.ranking
        if self.answer is None or ranking is None:
            return None
        return ranking.times[ranking.configs.index(self.answer.configs[0]) if self.answer.configs else 0]

    @property
    def origin(self) -> str:
        """The kind of answer, in a word, or empty without configs."""
        return self.source.origin(self.answer) if self.source and self.answer and self.configs else ""

    @property
    def confidence(self) -> float | None:
        """Confidence of the answering model, from 0 to 1, or None without a model."""
        ranking = self.answer.ranking if self.answer is not None and self.configs else None
        return None if ranking is None else ranking.confidence

    @property
    def where(self) -> str:
        """The answering file, with the line of the row, or empty without an answer."""
        return self.source.name(self.answer) if self.source is not None and self.configs else ""

    @property
    def steps(self) -> tuple[str, ...]:
        """The sources asked, in order, as text, down to the answering tier."""
        if not self.configs:
            apart = self.problem.op in TOGETHER
            last = f"{ABSTAIN}: {_APART if apart else 'Inductor decides as it would without diode_lut'}"
        else:
            assert self.source is not None
            assert self.answer is not None
            last = f"{self.tier}: {self.source.line_about(self.answer)}"
            if self.over:
                last += f"; for {self.over}, {self.configs[0]} is taken"
            elif self.configs != self.answer.configs:
                last += f"; the gain is below the setting min_gain, so {self.configs[0]} is taken"
        return (*(step.describe(self.problem) for step in self.tried), last)

    def explain(self) -> str:
        """Return the decision as text: the problem, the steps, and the configs with their gains over aten."""
        return as_lines(self.lines())

    def lines(self) -> list[str]:
        """Return the lines of ``explain``, before characters are escaped."""
        over = f" for {self.over}" if self.over else ""
        return [f"{self.problem} on {self.hardware}{over}", *(f"  {step}" for step in self.steps), *self.details()]

    def details(self) -> list[str]:
        """Return lines about the configs of the answer, or the expectations of an abstaining model."""
        return self.source.details(self.answer) if self.source and self.answer else []
