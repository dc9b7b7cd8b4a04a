"""Decide about a problem: as it is, with each class of epilogue, and for each part of a size's range.

``decide`` makes every decision. The hook, ``select``, ``explain``, ``report`` and ``evaluate`` call it. It asks sources
tier by tier, and uses the first answer.

If sizes may change, it asks the sources at samples of their range, and chooses the config with the least loss. Samples
are the sizes where rows begin and end, and the powers of two between. A time is relative to aten's at the same sizes.
The loss of a config is the sum of the logarithms of its times, weighted by each sample's part of the range.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from itertools import accumulate, chain, combinations, pairwise, product
from math import inf, isqrt, log, log2
from operator import itemgetter
from typing import Any, NamedTuple

from diode_lut.decide.sources import ABSTAIN, THRESHOLD, Decision, Source, Step, Threshold
from diode_lut.hardware import Hardware
from diode_lut.problem import GENERATED, JOINED, MAX_SIZE, Problem
from diode_lut.settings import CHOOSER, MODEL, USER
from diode_lut.templates.config import Config, baseline

NOT_AS_TIMED = "a size that may change was a constant when it was timed"  # the reason to leave out a config

UNNAMED_TIME = 1.1
"""Least assumed time, over the slowest config of the answering row, of a config that the row does not name.

``build`` names the best configs that it knows. ``tools/score_dynamic.py`` prints what this costs and saves.
"""


class Tier(NamedTuple):
    """Sources of equal rank, in the order of asking, and the reasons why others are left out."""

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
        """The first n steps, by n. All decisions after n steps share a tuple."""
        self._asked = [(number, step.tier, step.source) for number, step in enumerate(steps) if step.source is not None]

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the identities of all sources, with their order and tiers.

        Besides it, answers depend on the problem and the threshold alone.
        """
        identities = (f"{tier.name} {source.identity}\n" for tier in self.tiers for source in tier.sources)
        return hashlib.sha256("".join(identities).encode()).hexdigest()

    @cached_property
    def has_own_kernels(self) -> bool:
        """Whether the user has rows for generated kernels, or a model or function that answers about them."""
        own = (tier for tier in self.tiers if tier.name in (USER, CHOOSER, MODEL))
        return any(source.has_own_kernels for tier in own for source in tier.sources)

    @classmethod
    def only(cls, source: Source) -> Sources:
        """Return the sources of the source's hardware that are this source alone."""
        return cls(source.hardware, [Tier("", (source,))])

    def first_answer(
        self, problem: Problem, threshold: Threshold, *, padding: bool, over: Axis | None = None
    ) -> Decision:
        """Decide by the first source with configs.

        With ``over``, decide about a generated kernel for all x in this range. Kernels have 32-bit indices, so x ends
        where there would be too many elements.
        """
        source, answer, configs = None, None, tuple[Config, ...]()
        tier, tried = ABSTAIN, self._before[-1]
        abstained: dict[int, Step] = {}
        for number, name, asked in self._asked:
            if over is None:
                found = asked.ask(problem, threshold, padding=padding)
            else:
                high = min(over.high or MAX_SIZE, MAX_SIZE // (problem.y * problem.r))
                found = asked.ask_over(problem, over.low, max(over.low, high), threshold)
            if found is None:
                continue
            source, answer, configs = asked, found, found.configs
            if configs:
                tier, tried = name, self._before[number]
                break
            abstained[number] = Step(name, asked, found.reason)
        if abstained:
            tried = tuple(abstained.get(number, step) for number, step in enumerate(tried))
        least = threshold.min_gain or (UNCLEAR_LOSS if problem.op in GENERATED else 0)
        gain = None if answer is None else answer.gain
        if configs and gain is not None and gain < least:
            usual = baseline(problem.op)
            if configs[0].template != usual.template:  # The first of its configs in the answer may be padded
                configs = (next((config for config in configs if config.template == usual.template), usual),)
        named = "" if over is None else str(over)
        return Decision(problem, self.hardware, tier, configs, source, answer, tried, named)

    def times(
        self, problem: Problem, threshold: Threshold = THRESHOLD, *, padding: bool
    ) -> tuple[Decision, Mapping[Config, float]]:
        """Decide for a problem of fixed sizes, and return the known times of configs over aten's.

        Configs of the decision have the times of the source that answers. Other configs have the time of the first
        source that knows one. A row for ranges of sizes has the mean gain of its problems. If a later source expects a
        smaller gain for this problem, the smaller gain counts.

        Configs that are not in the decision come from sources that are asked later or are not confident. So they count
        as no faster than the slowest config of the decision, or than aten without an answer. If a row answers, they
        count as slower still.
        """
        decision = self.first_answer(problem, threshold, padding=padding)
        averaged = decision.entry is not None and not decision.entry.is_exact
        times: dict[Config, float] = {}
        own: Mapping[Config, float] = {}
        for _, _, source in reversed(self._asked):
            known = source.times(problem, padding=padding)
            if source is decision.source:
                if averaged:
                    known = {config: max(time, min(times.get(config, time), 1.0)) for config, time in known.items()}
                own = known
            times.update(known)
        times.update({config: own[config] for config in decision.configs if config in own})
        usual = {baseline(problem.op): 1.0}
        times.update(usual)
        named = {config: times[config] for config in decision.configs if config in times} or usual
        least = max(named.values()) * (1 if decision.entry is None else UNNAMED_TIME)
        return decision, {config: max(time, least) for config, time in times.items()} | usual | named

    def borders(self, problem: Problem, fields: Sequence[str]) -> set[int]:
        """Return the sizes at which rows of the problem's kind begin or end in ``fields``."""
        return {size for _, _, source in self._asked for size in source.borders(problem, fields)}


UNCLEAR_LOSS = -0.02
"""Least gain over Inductor's first config with which a config for a generated kernel is used.

Two measurements differ by as much, and without an answer Inductor would benchmark.
"""


def decide(
    sources: Sources,
    problem: Problem,
    threshold: Threshold = THRESHOLD,
    *,
    axes: tuple[Axis, ...] = (),
    padding: bool = True,
) -> Answers:
    """Decide about a problem. The result is the same in every process with the same tables and models.

    ``axes`` are the sizes that may change. ``padding`` says whether operands may be padded, or already are.
    """
    return Answers(sources, problem, threshold, axes, padding)


class Answers:
    """The decisions about a problem. Each is made at the first request."""

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

        Return none if a single config is as good, if several axes may change, and for generated kernels. Leave out
        configs whose kernels cannot be branches, and unless ``library`` the baseline, such as aten.
        """
        if len(self.axes) != 1 or most == 1 or self.problem.op in GENERATED:
            return ()
        name = epilogue or self.problem.epilogue
        key = name, most, library
        if key not in self._pieces:
            problem, (axis,) = self.problem._replace(epilogue=name), self.axes
            usual = baseline(problem.op)

            def dispatches(config: Config) -> bool:
                kernel = config.kernel
                return config == usual or (kernel.tiled and not kernel.tma) or problem.op in JOINED

            samples = self.samples(problem, padding=False, keeps=dispatches)
            if not library:
                kernels = [{key: time for key, time in each.times.items() if key != usual} for each in samples]
                samples = [each._replace(times=times) for each, times in zip(samples, kernels, strict=True)]
            self._pieces[key] = pieces_of(samples, axis, most, library=library)
        return self._pieces[key]

    def samples(
        self, problem: Problem, *, padding: bool, keeps: Callable[[Config], bool] = lambda _: True
    ) -> list[SampledSizes]:
        """Return samples of the axes' ranges, by size, with the times of configs, or none if no source answers.

        Leave out configs that ``keeps`` rejects, and those whose kernel was timed with a constant that may change.
        """
        kept = cache(lambda config: keeps(config) and not self._loses_constants(config))
        along = []
        for axis in self.axes:
            inside = sorted(self._sources.borders(problem, axis.fields))
            inside = inside[:: len(inside) // MAX_BORDERS + 1]
            high = max([axis.low, MAX_SIZE_SAMPLED, *inside]) if axis.high is None else axis.high
            powers = (1 << exponent for exponent in range(0, high.bit_length(), 1 if len(self.axes) == 1 else 2))
            ends = [axis.low] if axis.high is None else [axis.low, high]
            sizes = sorted({*ends, *(size for size in (*powers, *inside) if axis.low <= size <= high)})
            most = int(MAX_SAMPLES ** (1 / len(self.axes)))
            if len(self.axes) > 1 and len(sizes) > most:  # the first, the last, and even steps between them
                sizes = [sizes[round(place * (len(sizes) - 1) / (most - 1))] for place in range(most)]
            places = list(map(log2, sizes))
            edges = [places[0], *((a + b) / 2 for a, b in pairwise(places)), places[-1]]
            widths = [after - before for before, after in pairwise(edges)]
            along.append(list(zip(sizes, widths if any(widths) else [1.0], strict=True)))
        samples = []
        for points in product(*along):
            named: dict[str, Any] = {
                name: size for axis, (size, _) in zip(self.axes, points, strict=True) for name in axis.fields
            }
            decision, times = self._sources.times(problem._replace(**named), self._threshold, padding=padding)
            at, weights = zip(*points, strict=True)
            times = {config: time for config, time in times.items() if kept(config)}
            samples.append(SampledSizes(at, decision, times, min(weights)))
        return _completed(_that_count(samples, self.axes))

    def _over(self, problem: Problem) -> Decision:
        """Choose a config for the whole range: the cheapest over all samples.

        The problem's own sizes matter only if no source answers at any size. If most measurements did not compare with
        padding, a model's expectations of padding do not count. For a generated kernel, sources answer for the range.
        """
        if problem.op in GENERATED:
            (axis,) = self.axes
            return self._sources.first_answer(problem, self._threshold, padding=False, over=axis)
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
                name: max(axis.low, min(getattr(problem, name), axis.high or MAX_SIZE))
                for axis in self.axes
                for name in axis.fields
            }
            found = self._sources.first_answer(problem._replace(**inside), self._threshold, padding=self._padding)
            return found._replace(tier=ABSTAIN, configs=(), over=over)
        first = dict.fromkeys(sample.decision.configs[0] for sample in samples if sample.decision.configs)
        return best_over(samples, over)._replace(left_out=tuple(filter(self._loses_constants, first)))

    def _loses_constants(self, config: Config) -> bool:
        """Return whether a size that may change was a constant in the timed kernel."""
        constants = config.kernel.constants(self.problem.layout)
        return any(name in constants for axis in self.axes for name in axis.fields)


MAX_SIZE_SAMPLED = 1 << 16  # the largest size of a sample, unless a bound or a row is larger
MAX_SAMPLES = 256  # maximum number of samples if several sizes may change. Estimating times takes its square
MAX_BORDERS = 64  # maximum number of samples along an axis for rows that begin or end there
PER_OCTAVE = 1.1  # assumed slowdown, over the fastest config, for each factor of two from sizes with a known time
SAFE_TIME = 1.01  # maximum time of a chosen config, over aten's, at any sample
WORTH_A_KERNEL = 0.005  # least gain, on average over the range, to compile another kernel
_NEAR = 2.0  # sizes without an answer do not count if sizes with an answer are this near, in log2
_FASTEST = 8  # number of fastest configs at each sample that are considered for all samples
_UNIT = 1e-9  # Unit of losses. Sums of whole numbers are exact, and the same on every machine
_MAX_CONFIGS = 5  # maximum number of configs in a decision. The first that can run is used


class Axis(NamedTuple):
    """Fields of a problem with the same size, which may change from ``low`` to ``high``. None is no bound."""

    fields: tuple[str, ...]
    low: int
    high: int | None

    def __str__(self) -> str:
        names = " = ".join(self.fields)
        return f"{names} from {self.low}" if self.high is None else f"{names} from {self.low} to {self.high}"


class SampledSizes(NamedTuple):
    """The decision at some sizes, the times of configs over aten's, and the sizes' part of the range in log2."""

    sizes: tuple[int, ...]
    decision: Decision
    times: Mapping[Config, float]
    weight: float

    def distance(self, other: SampledSizes) -> float:
        """Return the distance in log2, summed over the axes, and rounded to be the same on every machine."""
        return round(sum(abs(log2(one / two)) for one, two in zip(self.sizes, other.sizes, strict=True)), 9)

    def loss(self, config: Config) -> int:
        """Return the weighted logarithm of a config's time, in multiples of _UNIT."""
        return round(self.weight * log(self.times[config]) / _UNIT)


class Piece(NamedTuple):
    """A part of an axis' range: its largest size, its decision and its config. The last part has None as size."""

    high: int | None
    decision: Decision
    config: Config


def _that_count(samples: list[SampledSizes], axes: Sequence[Axis]) -> list[SampledSizes]:
    """Return the samples that count for a decision.

    Without an answer, a sample counts only if it is far from all answers, and not beyond them on an axis without bound.
    If several sizes may change, all samples count if all axes have bounds, or else those with an answer.
    """
    answered = [sample for sample in samples if sample.decision.configs or len(sample.times) > 1]
    if len(axes) > 1:
        return samples if answered and all(axis.high is not None for axis in axes) else answered
    known, counting = {sample.sizes for sample in answered}, []
    for sample in samples if answered else []:
        beyond = axes[0].high is None and sample.sizes > answered[-1].sizes
        if sample.sizes in known or not (beyond or min(map(sample.distance, answered)) <= _NEAR):
            counting.append(sample)
    return counting


def _completed(samples: Sequence[SampledSizes]) -> list[SampledSizes]:
    """Give each sample a time of every config that is among the fastest at some sample. Estimate unknown times.

    Only configs of decisions count, so no model's if tables answer. A config has no time at unsuitable sizes, as when
    tiles are far larger than the matrix. There, assume it to be slower, relative to the fastest, than at the nearest
    sizes with a time.
    """
    named = {config for sample in samples for config in sample.decision.configs}
    fastest = (
        sorted(filter(named.__contains__, sample.times), key=sample.times.__getitem__)[:_FASTEST] for sample in samples
    )
    configs = dict.fromkeys((*chain(*fastest), *(baseline(sample.decision.problem.op) for sample in samples)))
    least = {sample.sizes: min(sample.times.values()) for sample in samples}
    completed = []
    for sample in samples:
        others = [sample] if configs.keys() <= sample.times.keys() else samples
        away = sorted(((sample.distance(other), other) for other in others), key=itemgetter(0))
        nearest = [
            (other.times, PER_OCTAVE**distance * least[sample.sizes] / least[other.sizes]) for distance, other in away
        ]
        times = {}
        for config in configs:
            known, slower = next(each for each in nearest if config in each[0])
            times[config] = known[config] * slower
        completed.append(sample._replace(times=times))
    return completed


def _configs(samples: Iterable[SampledSizes]) -> dict[Config, None]:
    return dict.fromkeys(config for sample in samples for config in sample.times)


def best_over(samples: Sequence[SampledSizes], over: str) -> Decision:
    """Choose the safe configs with the least loss over the samples. The baseline is always safe.

    The decision names the source that answers the first of them at the widest sample.
    """
    safe = (config for config in _configs(samples) if all(sample.times[config] <= SAFE_TIME for sample in samples))
    losses = {config: sum(sample.loss(config) for sample in samples) for config in safe}
    usual = baseline(samples[0].decision.problem.op)
    configs = sorted(losses, key=lambda config: (losses[config], config != usual))[:_MAX_CONFIGS]
    configs = configs[: configs.index(usual) + 1] if usual in configs else configs
    by_weight = sorted(samples, key=lambda sample: -sample.weight)
    answering = [each.decision for each in by_weight if each.decision.configs]
    if not answering:  # all sources abstain everywhere
        return by_weight[0].decision._replace(over=over)
    agreeing = (each for each in answering if each.configs[0] == configs[0])
    return next(agreeing, answering[0])._replace(configs=tuple(configs), over=over)


def pieces_of(samples: Sequence[SampledSizes], axis: Axis, most: int, *, library: bool) -> tuple[Piece, ...]:
    """Cut the range into at most ``most`` pieces with the least loss. Return none if a single config is as good.

    Without ``library``, return none if any piece would have no config.
    """
    ends = _partition(samples, most)
    if len(ends) < 2:
        return ()
    pieces: list[Piece] = []
    low = axis.low
    for start, end in zip((0, *ends), ends, strict=False):
        part = samples[start:end]
        high = None
        if end < len(samples):
            ((below,), (above,)) = part[-1].sizes, samples[end].sizes
            # Sizes up to the next power of two take as many tiles as the power
            high = below if above <= 2 * below else isqrt(below * above)
        decision = best_over(part, str(axis._replace(low=low, high=high or axis.high)))
        low = (high or 0) + 1
        if not decision.configs and not library:
            return ()
        usual = baseline(decision.problem.op)
        pieces.append(Piece(high, decision, decision.configs[0] if decision.configs else usual))
    return tuple(pieces) if len({piece.config for piece in pieces}) > 1 else ()


def _partition(samples: Sequence[SampledSizes], most: int) -> tuple[int, ...]:
    """Return the ends of at most ``most`` pieces with the least loss, or nothing if some sample has no safe config.

    Each piece costs the price of a kernel.
    """
    count, price = len(samples), round(WORTH_A_KERNEL * sum(sample.weight for sample in samples) / _UNIT)
    # The least loss of a safe config on samples[start:end], by (start, end). It is inf if no config is safe there
    losses = defaultdict[tuple[int, int], float](lambda: inf)
    for config in _configs(samples):
        before = list(accumulate((sample.loss(config) for sample in samples), initial=0))
        unsafe = list(accumulate((sample.times[config] > SAFE_TIME for sample in samples), initial=0))
        for start, end in combinations(range(count + 1), 2):
            if unsafe[start] == unsafe[end]:
                losses[start, end] = min(losses[start, end], before[end] - before[start])
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for _ in range(most):
        longer = [
            (loss + losses[start, end] + price, end, (*ends, end))
            for start, (loss, ends) in best.items()
            for end in range(start + 1, count + 1)
        ]
        for loss, end, ends in longer:
            if loss < best.get(end, (inf, ()))[0]:
                best = {**best, end: (loss, ends)}
    return best.get(count, (inf, ()))[1]
