"""Models as sources of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from diode_lut.domain.hardware import Hardware
from diode_lut.domain.printable import printable
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import ATEN, Config
from diode_lut.selection.sources import EXPECTED_GAIN, Answer, Threshold, shown
from diode_lut.settings import MODEL
from diode_lut.table import Entry

if TYPE_CHECKING:
    from diode_lut.model.ranking import Model

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
