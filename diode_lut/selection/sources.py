"""What can answer a problem: tables, models and choosers. Each is a Source to the selector, and describes itself.

A new kind of source is a class in a module of its own, and a tier in ``selection/tiers.py``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from diode_lut.domain.printable import printable
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import Config
from diode_lut.settings import CONFIDENCE, GAIN, Settings
from diode_lut.table import Entry

if TYPE_CHECKING:
    from diode_lut.model.ranking import Ranking

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
