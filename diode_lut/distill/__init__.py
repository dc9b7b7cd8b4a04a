"""Distill a model from datasets, and validate it on other problems than those of its training. This needs torch.

The validation is there as figures, as text, and as a picture of the training.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from diode_lut.build.measurements import Array
from diode_lut.dataset import Dataset
from diode_lut.decide.sources import THRESHOLD, Threshold
from diode_lut.distill.examples import Space, Target, choose, examples_of, targets_of, without_few_rows
from diode_lut.distill.training import Epoch, TrainingPlan, calibrate, one_thread, train_student
from diode_lut.errors import DatasetError, ModelError, as_lines, counted
from diode_lut.evaluate import geometric_mean
from diode_lut.files import write_figure
from diode_lut.hardware import architecture
from diode_lut.model import MIN_PROBLEMS, TEST, TRAIN, Split, family_name, kinds_of
from diode_lut.model.features import OF_BYTES_FEATURES, PROBLEM_FEATURES, families
from diode_lut.model.generated import fit_kernels
from diode_lut.model.ranking import GOOD, Model, PaddingModel, can_be_padded, padding_features, scaled, terms_of
from diode_lut.problem import GENERATED, NO_EPILOGUE, OF_BYTES, Problem
from diode_lut.process import __version__
from diode_lut.templates.config import ATEN, Config, pad_multiple
from diode_lut.templates.template import GROUP_M

MIN_TRAINING_PROBLEMS = 60
"""Minimum number of training problems."""

DEFAULT = TrainingPlan()


class Distilled(NamedTuple):
    """A model, its validation for each group of problems not in its training, and the histories of training."""

    model: Model
    training_problems: int
    validations: dict[str, Validation]
    histories: dict[str, list[Epoch]]


def distill(
    datasets: Sequence[Dataset],
    split: Split,
    plan: TrainingPlan = DEFAULT,
    report: Callable[[str], None] = lambda _: None,
) -> Distilled:
    """Train a model on the problems of the datasets, except those kept by ``split`` for testing.

    The same datasets, split and plan give the same model on the same machine, with any number of threads. ``report``
    gets a line of text for each stage. The model is for the hardware of the first dataset. Of a problem in several of
    its datasets, the first counts. Other datasets may be from hardware with the same architecture and SM count: the
    model learns how that differs, and is calibrated and validated on its own. DatasetError if the datasets are from
    other hardware, ModelError if there are too few problems, if a family to leave out has no problem, or if aten is the
    only candidate.
    """
    hardware = datasets[0].header.hardware
    for dataset in datasets:
        other = dataset.header.hardware
        if not other.same_arch(hardware):
            where = f"{datasets[0].path}: {hardware} (a model learns from devices of one architecture and SM count)"
            raise DatasetError(f"{dataset.path}: {other}, but {where}")
    own = [dataset for dataset in datasets if dataset.header.hardware.same_device(hardware)]
    foreign = targets_of(*(dataset for dataset in datasets if dataset not in own))
    groups: defaultdict[str, list[Target]] = defaultdict(list)
    for target in targets_of(*own):
        groups[split.group(target.problem)].append(target)
    for name in map(family_name, split.families):
        if name not in groups:
            reason = "no problem belongs to this family, or all of its problems belong to families before it"
            raise ModelError(f"{name}: {reason}")
    found = groups.pop(TRAIN, [])
    found += (target._replace(foreign=True) for target in foreign if split.group(target.problem) == TRAIN)
    kinds = kinds_of(target.problem for target in found)
    known = {kind.key for kind in kinds}
    training = [target for target in found if target.problem.kind in known]
    if rare := len(found) - len(training):
        report(
            f"left out: {counted(rare, 'problem')}, as fewer than {MIN_PROBLEMS} have the same op, dtype, layout, "
            "align and epilogue"
        )
    if len(training) < MIN_TRAINING_PROBLEMS:
        few = f"are too few (at least {MIN_TRAINING_PROBLEMS})"
        raise ModelError(f"{len(training)} training problems with a time of aten {few}")
    candidates = choose(training)
    if candidates == [ATEN]:
        reason = f"no config with group_m={GROUP_M}, or without tiles, was faster than aten"
        raise ModelError(f"no candidate besides aten: {reason}")
    of_bytes = any(target.problem.op in OF_BYTES for target in training)
    features = len(PROBLEM_FEATURES) - (0 if of_bytes else len(OF_BYTES_FEATURES))
    space = Space.of(*families(candidates, architecture(hardware.arch)), hardware, features)
    held_out = groups.get(TEST, [])
    test = examples_of([each.problem for each in held_out], space, held_out) if held_out else None
    report(f"{len(training)} training problems, {len(candidates)} candidates")
    again = [each for each in map(without_few_rows, training) if each is not None]  # the best where sizes may change
    trained = train_student([*training, *again], test, space, plan, report)
    with one_thread():
        doubts, alone, followed = calibrate(trained)
        weights = trained.student.weights(*doubts)
    provenance = {
        "datasets": sorted(f"sha256:{dataset.digest}" for dataset in datasets),
        "torch": ", ".join(sorted({dataset.header.torch for dataset in datasets})),
        "triton": ", ".join(sorted({dataset.header.triton for dataset in datasets})),
        "measured_on": max(dataset.header.measured_on for dataset in datasets),
        "diode_lut": __version__,
        **plan._asdict(),
        "problems": len(training),
    }
    kernels = [each for dataset in datasets for each in dataset if each.problem.op in GENERATED and each.times]
    known_kernels = [(each.problem, each.times) for each in kernels if split.group(each.problem) == TRAIN]
    generated = fit_kernels(known_kernels, hardware)
    model = Model(
        *(hardware, weights, candidates, kinds, alone, split, provenance),
        fused_calibration=followed,
        padding=fit_padding(training, plan.seed),
        kernels=generated if generated.regressions else None,
    )
    by_epilogue: defaultdict[str, list[Target]] = defaultdict(list)
    for name, targets in groups.items():
        for target in targets:
            epilogue = target.problem.epilogue
            by_epilogue[name if epilogue == NO_EPILOGUE else f"{name} with epilogue {epilogue}"].append(target)
    validations = {name: validate(model, group) for name, group in sorted(by_epilogue.items())}
    for name, group in sorted(groups.items()):
        if model.padding is not None and (padded := [target for target in group if target.padded]):
            validations[f"{name} with padding"] = validate(model, padded, padding=True)
    return Distilled(model, len(training), validations, trained.histories)


MIN_PADDED_PROBLEMS = 60
"""Minimum number of problems for the regression."""

_MIN_OF_KIND = 10
"""Minimum number of problems of a pair of op and dtype that the model knows."""

_L2_WEIGHT = 30.0
"""Weight of the squared weights, of all terms but 1, in the sum of squared errors."""

_LARGE, _ROUNDS = 0.1, 8
"""The error from which the loss grows linearly, as Huber's does, because some times are far off; and the number of
fits, each weighted by the errors of the one before."""

_PARTS = 8
"""Number of parts in the cross-validation of the error. Problems of the same sizes are in the same part."""

_ERRORS = tuple(percent / 100 for percent in range(1, 101))
"""The errors that are tried."""

_DIGITS = 6
"""Number of digits after the point of rounded numbers."""


def fit_padding(targets: Sequence[Target], seed: int) -> PaddingModel | None:
    """Fit the regression, or return None if too few problems were timed with padding.

    ``seed`` draws the parts for its error, with which the chances fit best of the own device's problems that a
    regression was not fitted to.
    """
    known = [target for target in targets if _padded_time(target) is not None]
    counts = Counter((target.problem.op, target.problem.dtype) for target in known)
    kinds = tuple(sorted(kind for kind, count in counts.items() if count >= _MIN_OF_KIND))
    known = [target for target in known if (target.problem.op, target.problem.dtype) in kinds]
    if len(known) < MIN_PADDED_PROBLEMS:
        return None
    features = np.array([padding_features(target.problem) for target in known])
    mean, deviation = features.mean(0).round(_DIGITS), features.std(0).round(_DIGITS)
    deviation[deviation == 0] = 1
    terms = np.array([terms_of(scaled(row, mean, deviation)) for row in features])
    times = np.array([_padded_time(target) for target in known])
    weights = tuple(_fitted(terms, times).round(_DIGITS).tolist())
    sizes = [target.problem.sizes for target in known]
    numbers = {each: number for number, each in enumerate(dict.fromkeys(sizes))}
    parts = np.random.default_rng(seed).permutation(len(numbers))[[numbers[each] for each in sizes]] % _PARTS
    expected = np.empty(len(times))
    for part in range(_PARTS):
        unseen = parts == part
        expected[unseen] = terms[unseen] @ _fitted(terms[~unseen], times[~unseen])
    own = np.array([not target.foreign for target in known])
    lost = np.where(expected < 0, times, 0.0) - np.minimum(times, 0)
    right, leads = lost[own] <= math.log1p(GOOD), np.abs(expected[own]) + math.log1p(GOOD)

    def likelihood(error: float) -> float:
        model = PaddingModel((), (), (), (), error)
        chances = np.array([min(model.chance(lead), 1 - 10**-_DIGITS) for lead in leads.tolist()])
        return float(np.log(np.where(right, chances, 1 - chances)).sum())

    return PaddingModel(tuple(mean.tolist()), tuple(deviation.tolist()), weights, kinds, max(_ERRORS, key=likelihood))


def _padded_time(target: Target) -> float | None:
    """Return log(best time with padding / best time without), or None unless aten was timed both ways."""
    is_known = can_be_padded(target.problem) and ATEN.padded(pad_multiple(target.problem.dtype)) in target.padded
    return min(target.padded.values()) - target.best if is_known else None


def _fitted(terms: Array, times: Array) -> Array:
    """Return the weights of a ridge regression."""
    penalty = _L2_WEIGHT * np.eye(terms.shape[1])
    penalty[0, 0] = 0
    shares = np.ones(len(times))
    for _ in range(_ROUNDS):
        weighted = terms.T * shares
        weights: Array = np.linalg.solve(weighted @ terms + penalty, weighted @ times)
        shares = _LARGE / np.maximum(np.abs(terms @ weights - times), _LARGE)
    return weights


TOPS = (1, 2, 3, 5, 10)
"""Numbers of first configs whose best is compared with the best measured config."""

SLOW = 1.1
"""First choices are slow if they take more than this many times as long as aten."""

_WORST_COUNT = 10
"""Number of choices in the list of the worst."""

UNTIMED = math.log(1.5)
"""log(time / time of aten) assumed for a choice that was not timed or failed."""


class Choice(NamedTuple):
    """The first choice on a problem, with its confidence.

    ``time``, ``expected`` and ``best`` are times over aten's: of the choice as measured and as expected, and of the
    best config. If the choice ``failed`` when it was measured, its time follows from UNTIMED. If it was not ``timed``,
    ``time`` is the target's estimate, or UNTIMED. ``tops`` has for each of TOPS the best time among so many first
    configs over the best time. ``errors`` are log(expected time / measured time) of the first configs.
    """

    problem: Problem
    config: Config
    best_config: Config
    time: float
    expected: float
    best: float
    confidence: float
    tops: tuple[float, ...]
    errors: tuple[float, ...]
    failed: bool
    timed: bool

    @property
    def good(self) -> bool:
        """Whether the choice is within GOOD of the best, which the confidence is about."""
        return self.tops[0] <= 1 + GOOD

    def replaced_by_aten(self) -> Choice:
        """Return aten instead, unless this is aten, perhaps with padded operands."""
        if self.config.template == ATEN.template:
            return self
        regret = 1 / self.best
        tops = (regret, *(min(regret, top) for top in self.tops[1:]))
        return self._replace(config=ATEN, time=1.0, expected=1.0, tops=tops, failed=False, timed=True)


class Validation(NamedTuple):
    """The choices on the problems known to the model, worst first. ``unknown`` is the number of other problems."""

    choices: tuple[Choice, ...]
    unknown: int

    @property
    def rmse(self) -> float:
        """Root mean squared error of the logarithms of times over aten's, of the first configs of each ranking."""
        errors = [error for choice in self.choices for error in choice.errors]
        return math.sqrt(fmean(error * error for error in errors)) if errors else math.nan

    @property
    def tops(self) -> dict[int, float]:
        """Geometric mean of the best time among so many first configs over the best time, for each of TOPS."""
        return {top: _mean(choice.tops[index] for choice in self.choices) for index, top in enumerate(TOPS)}

    @property
    def gain(self) -> float:
        """Geometric mean of aten's times over the choices' times."""
        return _mean(1 / choice.time for choice in self.choices)

    @property
    def best_gain(self) -> float:
        """Geometric mean of aten's times over the best times."""
        return _mean(1 / choice.best for choice in self.choices)

    @property
    def slow(self) -> list[Choice]:
        """The choices that work, but are much slower than aten."""
        return [choice for choice in self.choices if choice.time > SLOW and not choice.failed]

    @property
    def failed(self) -> list[Choice]:
        """The choices that failed: no kernel, or wrong results."""
        return [choice for choice in self.choices if choice.failed]

    @property
    def worst(self) -> tuple[Choice, ...]:
        """The failed choices, then those with the largest regret."""
        return self.choices[:_WORST_COUNT]

    def sure(self, confidence: float = THRESHOLD.confidence) -> Validation:
        """Return the validation of the choices with at least this confidence."""
        return Validation(tuple(choice for choice in self.choices if choice.confidence >= confidence), self.unknown)

    def answered(self, threshold: Threshold = THRESHOLD) -> Validation:
        """Return the validation of the choices that reach the threshold, with aten where the hook takes it."""
        met = (choice for choice in self.choices if threshold.reached(choice.confidence, choice.expected))
        used = (choice if threshold.is_clear(choice.expected) else choice.replaced_by_aten() for choice in met)
        return Validation(tuple(used), self.unknown)


def validate(model: Model, targets: Sequence[Target], *, padding: bool = False) -> Validation:
    """Validate the model on the problems it knows, and count the others.

    With ``padding`` it chooses among configs with a ``pad`` as well, of which the targets need times.
    """
    choices = []
    for target in targets:
        ranking = model.rank(target.problem, padding=padding)
        if ranking is None:
            continue
        measured = {**target.times, **target.padded} if padding else target.times
        best = min(measured, key=measured.__getitem__)
        expected = {**target.estimated, **measured}
        times = [expected.get(config, UNTIMED) for config in ranking.configs]
        ranked = islice(zip(ranking.configs, ranking.times, strict=True), TOPS[-1])
        pairs = ((measured.get(config), time) for config, time in ranked)
        choice = Choice(
            problem=target.problem,
            config=ranking.configs[0],
            best_config=best,
            time=math.exp(times[0]),
            expected=ranking.times[0],
            best=math.exp(measured[best]),
            confidence=ranking.confidence,
            tops=tuple(math.exp(min(times[:top]) - measured[best]) for top in TOPS),
            errors=tuple(math.log(time) - log_time for log_time, time in pairs if log_time is not None),
            failed=ranking.configs[0] in target.failed,
            timed=ranking.configs[0] in measured,
        )
        choices.append(choice)
    choices.sort(key=lambda choice: (not choice.failed, -choice.tops[0], choice.problem))
    return Validation(tuple(choices), len(targets) - len(choices))


def _mean(factors: Iterable[float]) -> float:
    return geometric_mean(factors) or math.nan


def as_text(name: str, validation: Validation) -> str:
    """Return all figures of a group of problems, and its worst, slow and failed choices."""
    count, unknown = len(validation.choices), validation.unknown
    lines = [f"{name}: {counted(count, 'problem')}{f', and {unknown} that the model does not know' if unknown else ''}"]
    if not count:
        return as_lines(lines)
    tops = ", ".join(f"top {top}: {factor:.4f}" for top, factor in validation.tops.items())
    lines += [f"  RMSE of log time: {validation.rmse:.3f}", f"  time over the best measured: {tops}"]
    lines.append(f"  first choice: {_figures(validation)}")
    parts = {
        f"with confidence {THRESHOLD.confidence}": validation.sure(),
        f"or where a gain of {THRESHOLD.gain:.0%} is expected": validation.answered(),
    }
    for which, part in parts.items():
        if part.choices:
            lines.append(f"  {which}: {len(part.choices) / count:.1%} answered, {_figures(part)}")
    lines += ["  worst:", *(f"    {_choice_text(choice)}" for choice in validation.worst)]
    if validation.slow:
        lines.append(f"  more than {SLOW} times as long as aten: {len(validation.slow)}, of which answered:")
        lines += (f"    {_choice_text(choice)}" for choice in validation.answered().slow)
    if validation.failed:
        lines.append(f"  failed: {len(validation.failed)}, of which answered: {len(validation.answered().failed)}")
        lines += (f"    {_choice_text(choice)}" for choice in validation.failed)
    return as_lines(lines)


def _figures(validation: Validation) -> str:
    good = sum(choice.good for choice in validation.choices) / len(validation.choices)
    untimed = sum(not choice.timed for choice in validation.choices)
    worst = max((choice.time for choice in validation.choices if not choice.failed), default=math.nan)
    return (
        f"{good:.1%} within {GOOD:.0%} of the best, gain over aten {validation.gain:.3f}, "
        f"of the best {validation.best_gain:.3f}, worst {worst:.2f} times as long as aten"
        f"{f', {untimed} without a time of their own' if untimed else ''}"
    )


def _choice_text(choice: Choice) -> str:
    regret, time = f"{choice.tops[0] - 1:.1%}", f"{choice.time:.3f} of aten's time"
    return (
        f"{'failed' if choice.failed else regret} on {choice.problem}: {choice.config}, "
        f"{'no time' if choice.failed else time} (expected {choice.expected:.3f}, confidence {choice.confidence:.3f}), "
        f"best {choice.best_config}, {choice.best:.3f}"
    )


_PANELS = (("loss", "mean loss in training"), ("regret", "mean regret on the test problems"))
"""Fields of Epoch with the labels of their axes."""


def save_history(histories: Mapping[str, list[Epoch]], path: Path, title: str) -> None:
    """Draw the loss and, if there is a test, the regret by epoch. The suffix is the format, such as ``.png``."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter, ScalarFormatter

    figure = Figure(figsize=(10, 4), layout="constrained")
    figure.suptitle(title)
    tested = not all(math.isnan(epoch.regret) for history in histories.values() for epoch in history)
    panels = [_PANELS[0], *([_PANELS[1]] if tested else [])]
    for axes, (field, label) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name, history in histories.items():
            values = [getattr(epoch, field) for epoch in history]
            axes.plot(range(1, len(history) + 1), values, marker=".", label=name)
        axes.set(xlabel="epoch", ylabel=label, yscale="log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(PercentFormatter(1) if field == "regret" else ScalarFormatter())
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
    write_figure(figure, path)
