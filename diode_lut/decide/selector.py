"""Which configs a problem gets: the sources of all tiers, asked in order, and the decision that comes out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from diode_lut.decide.sources import THRESHOLD, Answer, Source, Threshold
from diode_lut.errors import as_lines
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.table import Entry
from diode_lut.templates.config import Config, baseline

ABSTAIN = "abstain"
"""The tier of a decision that leaves everything to Inductor."""

NOT_AS_TIMED = "a size that may change was a constant when it was timed"
"""Why a config is left out of a decision for sizes that may change."""

UNNAMED_TIME = 1.02
"""Minimum time of a config that the row which answers does not name, over the longest of those that it names.

``build`` chooses among configs that are within this of the best.
"""


class Tier(NamedTuple):
    """Sources of one rank, in the order in which they are asked, and why others of that rank are not asked."""

    name: str
    sources: tuple[Source, ...] = ()
    left_out: tuple[str, ...] = ()


def switched_off(name: str) -> Tier:
    """A tier that the setting ``tiers`` leaves out."""
    return Tier(name, left_out=("switched off by the setting tiers",))


class Step(NamedTuple):
    """One thing that gave no answer: a source without a match or that abstained, or the reason why none was asked."""

    tier: str
    source: Source | None
    reason: str = ""

    def describe(self, problem: Problem) -> str:
        """The step as text."""
        if self.source is None:
            return f"{self.tier}: {self.reason}"
        return f"{self.tier}: {self.source.name()}: {self.reason or self.source.no_match(problem)}"


class Decision(NamedTuple):
    """What ``select`` answers: configs, best first; with none, Inductor decides as it would without diode_lut.

    ``tier`` is the one of TIERS that answered, or ABSTAIN. ``source`` and ``answer`` say what answered; if nothing did,
    the last source that abstained, None without one. ``tried`` is what was asked before. ``over`` says for which sizes
    it is, where sizes may change; the problem then has one of these. It is empty where none may. ``left_out`` are
    the first configs at some of these that are not taken, because a size that may change was a constant in timings.
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

    def left_to_inductor(self, over: str) -> Decision:
        """The decision for sizes that may change at none of which anything answers."""
        return self._replace(tier=ABSTAIN, configs=(), over=over)

    @property
    def entry(self) -> Entry | None:
        """The row that answered; None if no row did."""
        return None if self.answer is None else self.answer.entry

    def is_measured(self, config: Config) -> bool:
        """Whether the row that answered has a measured gain of this config of its own."""
        candidates = () if self.entry is None else self.entry.candidates
        return any(each.config == config and each.gain_permille is not None for each in candidates)

    @property
    def only_first(self) -> bool:
        """Whether the source vouches for its first config alone."""
        return self.source is not None and self.source.only_first

    @property
    def expected_time(self) -> float | None:
        """Time that a model expects, over that of aten, also where it abstains; None if no model was asked."""
        return None if self.answer is None else self.answer.expected_time

    @property
    def steps(self) -> tuple[str, ...]:
        """What was tried in which order, as text, down to the tier that answered."""
        return (*(step.describe(self.problem) for step in self.tried), self._last_step())

    def explain(self) -> str:
        """The decision as text: the problem, the steps, and the configs with their gains over aten."""
        return as_lines(self.lines())

    def lines(self) -> list[str]:
        """The lines of ``explain``, in which nothing is escaped yet."""
        over = f" for {self.over}" if self.over else ""
        lines = [f"{self.problem} on {self.hardware}{over}", *(f"  {step}" for step in self.steps)]
        return [*lines, *self.details()]

    def details(self) -> list[str]:
        """Lines on the configs of the answer, or on what a model expects where it abstains."""
        return self.source.details(self.answer) if self.source is not None and self.answer is not None else []

    @property
    def where(self) -> str:
        """The file that answered, with the line of the row; empty if nothing did."""
        return self.source.name(self.answer) if self.source is not None and self.configs else ""

    @property
    def confidence(self) -> float | None:
        """Confidence of the model that answered, from 0 to 1; None if none did."""
        ranking = self.answer.ranking if self.answer is not None and self.configs else None
        return None if ranking is None else ranking.confidence

    def _last_step(self) -> str:
        if not self.configs:
            return f"{ABSTAIN}: Inductor decides as it would without diode_lut"
        assert self.source is not None
        assert self.answer is not None
        if self.over:
            return f"{self.tier}: {self.source.answers(self.answer)}; for {self.over}, {self.configs[0]} is taken"
        dropped = self.configs != self.answer.configs
        instead = f"; the gain is below the setting min_gain, so {self.configs[0]} is taken" if dropped else ""
        return f"{self.tier}: {self.source.answers(self.answer)}{instead}"


class Selector:
    """Answers for one kind of hardware: asks the sources of all tiers in order and stops at the first answer.

    ``digest`` is a SHA-256 in hexadecimal over everything that an answer can depend on, but for the problem and the
    threshold: the identities of the sources, their order and their tiers.
    """

    def __init__(self, hardware: Hardware, tiers: Iterable[Tier]) -> None:
        self.hardware = hardware
        self.tiers = tuple(tiers)
        identities = (f"{tier.name} {source.identity}\n" for tier in self.tiers for source in tier.sources)
        self.digest = hashlib.sha256("".join(identities).encode()).hexdigest()
        steps = [
            step
            for tier in self.tiers
            for step in (
                *(Step(tier.name, None, reason) for reason in tier.left_out),
                *(Step(tier.name, source) for source in tier.sources),
            )
        ]
        self._before = [tuple(steps[:number]) for number in range(len(steps) + 1)]
        """Per number: that many of the first steps, where none has a match."""
        self._asked = [(number, step.tier, step.source) for number, step in enumerate(steps) if step.source is not None]

    def select(self, problem: Problem, threshold: Threshold = THRESHOLD, *, padding: bool = True) -> Decision:
        """The decision for one problem; the same in every process that has the same tables and models.

        ``padding`` says whether operands may be padded.
        """
        abstained: dict[int, Step] = {}
        source, answer = None, None
        for number, tier, asked in self._asked:
            found = asked.ask(problem, threshold, padding=padding)
            if found is None:
                continue
            source, answer = asked, found
            if found.configs:
                tried = self._tried(number, abstained)
                configs = _worthwhile(found, threshold.min_gain, baseline(problem.op))
                return Decision(problem, self.hardware, tier, configs, source, answer, tried)
            abstained[number] = Step(tier, asked, found.reason)
        return Decision(
            problem, self.hardware, ABSTAIN, (), source, answer, self._tried(len(self._before) - 1, abstained)
        )

    def times(
        self, problem: Problem, threshold: Threshold = THRESHOLD, *, padding: bool = True
    ) -> tuple[Decision, Mapping[Config, float]]:
        """The decision for one problem, and the times of configs over that of aten, as far as sources know them.

        The source that is asked first counts. Only where the row that answers is for ranges of sizes, whose gains are
        those of all its problems on average, a smaller gain that another source expects of this problem counts. No
        other config is faster than those of the decision, or than aten where that is left to Inductor: whatever says so
        was asked later, or is not confident. Where a row answers, others are slower, as UNNAMED_TIME has it.
        """
        decision = self.select(problem, threshold, padding=padding)
        averaged = decision.entry is not None and not decision.entry.is_exact
        times: dict[Config, float] = {}
        for _, _, source in reversed(self._asked):
            known = source.times(problem, padding=padding)
            if averaged and source is decision.source:
                known = {config: max(time, min(times.get(config, time), 1.0)) for config, time in known.items()}
            times.update(known)
        usual = {baseline(problem.op): 1.0}
        times.update(usual)
        named = {config: times[config] for config in decision.configs if config in times} or usual
        least = max(named.values()) * (1 if decision.entry is None else UNNAMED_TIME)
        return decision, {config: max(time, least) for config, time in times.items()} | usual | named

    def borders(self, problem: Problem, fields: Sequence[str]) -> set[int]:
        """The sizes in ``fields`` at which rows begin or end that cover the problem, but for these fields."""
        return {size for _, _, source in self._asked for size in source.borders(problem, fields)}

    def _tried(self, number: int, abstained: dict[int, Step]) -> tuple[Step, ...]:
        """The first ``number`` steps, with what those said that abstained."""
        before = self._before[number]
        return tuple(abstained.get(each, step) for each, step in enumerate(before)) if abstained else before


def _worthwhile(answer: Answer, min_gain: float, usual: Config) -> tuple[Config, ...]:
    """The configs of the answer; if the first is known to gain less than ``min_gain``, only the baseline, ``usual``."""
    gain = answer.gain
    if gain is None or gain >= min_gain or answer.configs[0].template == usual.template:
        return answer.configs
    return next(((config,) for config in answer.configs if config.template == usual.template), (usual,))
