"""Decide about a problem: as it is, with each class of epilogue, and for each part of a size's range.

``decide`` is the way to every decision. The hook, ``select``, ``explain``, ``report`` and ``evaluate`` call it.
Sources are asked tier by tier, and the first answer counts. If sizes may change, the sources are asked at samples of
their range, and ``dynamic.py`` chooses the config with the least loss.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from diode_lut.decide.dynamic import Axis, Piece, SampledSizes, best_over, only, pieces_of, samples_over
from diode_lut.decide.sources import ABSTAIN, THRESHOLD, Decision, Source, Step, Threshold
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config, baseline

NOT_AS_TIMED = "a size that may change was a constant when it was timed"
"""Why a config is left out of a decision for sizes that may change."""

UNNAMED_TIME = 1.02
"""Least time of a config outside the answering row, over the longest time of the row's configs.

``build`` chooses among configs within this factor of the best.
"""


class Tier(NamedTuple):
    """Sources of equal rank, in the order of asking, and why others are left out."""

    name: str
    sources: tuple[Source, ...] = ()
    left_out: tuple[str, ...] = ()


class Sources:
    """All sources for a device, tier by tier, in the order of asking."""

    def __init__(self, hardware: Hardware, tiers: Iterable[Tier]) -> None:
        self.hardware = hardware
        self.tiers = tuple(tiers)
        steps: list[Step] = []
        for tier in self.tiers:
            steps += (Step(tier.name, None, reason) for reason in tier.left_out)
            steps += (Step(tier.name, source) for source in tier.sources)
        self._before = [tuple(steps[:number]) for number in range(len(steps) + 1)]
        """By number: as many of the first steps."""
        self._asked = [(number, step.tier, step.source) for number, step in enumerate(steps) if step.source is not None]

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, over everything that answers depend on besides the problem and the threshold.

        These are the identities of the sources, their order and their tiers.
        """
        identities = (f"{tier.name} {source.identity}\n" for tier in self.tiers for source in tier.sources)
        return hashlib.sha256("".join(identities).encode()).hexdigest()

    @classmethod
    def only(cls, source: Source) -> Sources:
        """Return a single source as all there is."""
        return cls(source.hardware, [Tier("", (source,))])

    def first_answer(self, problem: Problem, threshold: Threshold, *, padding: bool) -> Decision:
        """Decide for a problem of fixed sizes by the first source with configs."""
        abstained: dict[int, Step] = {}
        source, answer = None, None
        for number, tier, asked in self._asked:
            found = asked.ask(problem, threshold, padding=padding)
            if found is None:
                continue
            source, answer = asked, found
            if found.configs:
                break
            abstained[number] = Step(tier, asked, found.reason)
        else:
            number, tier = len(self._before) - 1, ABSTAIN
        tried = self._before[number]
        if abstained:
            tried = tuple(abstained.get(each, step) for each, step in enumerate(tried))
        configs = () if answer is None else answer.configs
        if configs and answer is not None and answer.gain is not None and answer.gain < threshold.min_gain:
            usual = baseline(problem.op)  # its first config in the answer may be padded
            if configs[0].template != usual.template:
                configs = (next((config for config in configs if config.template == usual.template), usual),)
        return Decision(problem, self.hardware, tier, configs, source, answer, tried)

    def times(
        self, problem: Problem, threshold: Threshold = THRESHOLD, *, padding: bool
    ) -> tuple[Decision, Mapping[Config, float]]:
        """Decide for a problem of fixed sizes, and return the known times of configs over aten's.

        The first source counts. A row for ranges of sizes has the mean gain of its problems: if a later
        source expects a smaller gain for this problem, the smaller gain counts. No config outside the decision is
        faster than those in it, or than aten without an answer, because its source is asked later or is not confident.
        If a row answers, other configs are slower by UNNAMED_TIME.
        """
        decision = self.first_answer(problem, threshold, padding=padding)
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
        """Return the sizes at which rows for the problem begin or end, in ``fields``, whatever its own sizes are."""
        return {size for _, _, source in self._asked for size in source.borders(problem, fields)}


def decide(
    sources: Sources,
    problem: Problem,
    threshold: Threshold = THRESHOLD,
    *,
    axes: tuple[Axis, ...] = (),
    padding: bool = True,
) -> Answers:
    """Decide about a problem. The result is the same in every process with the same tables and models.

    ``axes`` are the sizes that may change. ``padding`` says whether operands may be padded, or are.
    """
    return Answers(sources, problem, threshold, axes, padding)


class Answers:
    """The decisions about a problem. Each is made when it is first asked for."""

    def __init__(
        self, sources: Sources, problem: Problem, threshold: Threshold, axes: tuple[Axis, ...], padding: bool
    ) -> None:
        self.problem, self.axes = problem, axes
        self._sources, self._threshold, self._padding = sources, threshold, padding
        self._decisions: dict[str, Decision] = {}
        self._pieces: dict[tuple[str, int, bool], tuple[Piece, ...]] = {}

    @property
    def decision(self) -> Decision:
        """The decision about the problem as it is."""
        return self.with_epilogue(self.problem.epilogue)

    def with_epilogue(self, name: str) -> Decision:
        """Return the decision about the problem with a class of epilogue, for all its sizes."""
        found = self._decisions.get(name)
        if found is None:
            problem = self.problem if name == self.problem.epilogue else self.problem._replace(epilogue=name)
            if self.axes:
                found = self._over(problem)
            else:
                found = self._sources.first_answer(problem, self._threshold, padding=self._padding)
            self._decisions[name] = found
        return found

    def pieces(self, most: int, *, library: bool, epilogue: str | None = None) -> tuple[Piece, ...]:
        """Return at most ``most`` parts of the range of the only axis, each with its config.

        There are none if a single config is as good, or if several axes may change. Configs whose kernels cannot be
        dispatched are left out. So is aten, unless ``library``.
        """
        if len(self.axes) != 1 or most == 1:
            return ()
        name = epilogue or self.problem.epilogue
        key = name, most, library
        if key not in self._pieces:
            problem, (axis,) = self.problem._replace(epilogue=name), self.axes

            def dispatches(config: Config) -> bool:
                kernel = config.kernel
                return kernel.tiled and not kernel.tma and not self._loses_constants(config)

            samples = only(
                self.samples(problem, padding=False),
                lambda config: library if config == ATEN else dispatches(config),
            )
            self._pieces[key] = pieces_of(samples, axis, most, library=library)
        return self._pieces[key]

    def samples(self, problem: Problem, *, padding: bool) -> list[SampledSizes]:
        """Return the times of configs at samples of the range, or nothing if no source answers."""

        def at(sizes: dict[str, Any]) -> tuple[Decision, Mapping[Config, float]]:
            return self._sources.times(problem._replace(**sizes), self._threshold, padding=padding)

        return samples_over(self.axes, lambda fields: self._sources.borders(problem, fields), at)

    def _over(self, problem: Problem) -> Decision:
        """Choose a config for the whole range: the cheapest over all samples.

        The problem's own sizes matter only if no source answers at any size. If most of the measurements are without
        padding, expectations of a model with padding do not count.
        """
        samples = self.samples(problem, padding=self._padding)
        if self._padding:
            compared = 0.0
            for sample in samples:
                answer = sample.decision.answer
                if answer is not None and answer.ranking is None:
                    compared += sample.weight if any(config.pad > 1 for config in answer.configs) else -sample.weight
            if compared < 0:
                samples = self.samples(problem, padding=False)
        over = ", ".join(map(str, self.axes))
        if not samples:
            inside: dict[str, Any] = {
                name: axis.nearest(getattr(problem, name)) for axis in self.axes for name in axis.fields
            }
            found = self._sources.first_answer(problem._replace(**inside), self._threshold, padding=self._padding)
            return found._replace(tier=ABSTAIN, configs=(), over=over)
        first = dict.fromkeys(sample.decision.configs[0] for sample in samples if sample.decision.configs)
        left_out = tuple(filter(self._loses_constants, first))
        samples = only(samples, lambda config: not self._loses_constants(config))
        return best_over(samples, over)._replace(left_out=left_out)

    def _loses_constants(self, config: Config) -> bool:
        """Return whether a size that may change was a constant in the timed kernel."""
        constants = config.kernel.constants(self.problem.layout)
        return any(name in constants for axis in self.axes for name in axis.fields)
