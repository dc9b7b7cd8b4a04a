"""Distill a model from datasets, and validate it on other problems than those of its training. This needs torch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from diode_lut.build.measurements import Array
from diode_lut.dataset import Dataset
from diode_lut.distill.examples import Space, Target, choose, examples_of, targets_of
from diode_lut.distill.training import Epoch, TrainingPlan, calibrate, one_thread, train_student
from diode_lut.distill.validation import Validation, validate
from diode_lut.errors import DatasetError, ModelError
from diode_lut.hardware import architecture
from diode_lut.model import MIN_PROBLEMS, TEST, TRAIN, Split, family_name, kinds_of
from diode_lut.model.features import OF_BYTES_FEATURES, PROBLEM_FEATURES, families
from diode_lut.model.ranking import Model, PaddingModel, can_be_padded, padding_features, scaled, terms_of
from diode_lut.problem import NO_EPILOGUE, OF_BYTES
from diode_lut.process import __version__
from diode_lut.templates.config import ATEN, pad_multiple
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
    gets a line of text for each stage. DatasetError if the datasets are from different hardware, ModelError if there
    are too few problems, if a family to leave out has no problem, or if aten is the only candidate.
    """
    hardware = datasets[0].header.hardware
    for dataset in datasets:
        other = dataset.header.hardware
        if not other.same_device(hardware):
            where = f"{datasets[0].path}: {hardware} (a model is for one device)"
            raise DatasetError(f"{dataset.path}: {other}, but {where}")
    groups: defaultdict[str, list[Target]] = defaultdict(list)
    for target in targets_of(*datasets):
        groups[split.group(target.problem)].append(target)
    for name in map(family_name, split.families):
        if name not in groups:
            reason = "no problem belongs to this family, or all of its problems belong to families before it"
            raise ModelError(f"{name}: {reason}")
    found = groups.pop(TRAIN, [])
    kinds = kinds_of(target.problem for target in found)
    known = {kind.key for kind in kinds}
    training = [target for target in found if target.problem.kind in known]
    if rare := len(found) - len(training):
        report(
            f"{rare} problems are left out: their op, dtype, layout, align and epilogue have fewer than {MIN_PROBLEMS} "
            "problems"
        )
    if len(training) < MIN_TRAINING_PROBLEMS:
        raise ModelError(
            f"{len(training)} training problems with a time of aten are too few (at least {MIN_TRAINING_PROBLEMS})"
        )
    candidates = choose(training)
    if candidates == [ATEN]:
        raise ModelError(
            f"no candidate besides aten: no config with group_m={GROUP_M}, or without tiles, was faster than aten"
        )
    of_bytes = any(target.problem.op in OF_BYTES for target in training)
    features = len(PROBLEM_FEATURES) - (0 if of_bytes else len(OF_BYTES_FEATURES))
    space = Space.of(*families(candidates, architecture(hardware.arch)), hardware.sm_count, features)
    held_out = groups.get(TEST, [])
    test = examples_of([each.problem for each in held_out], space, held_out) if held_out else None
    report(f"{len(training)} training problems, {len(candidates)} candidates")
    trained = train_student(training, test, space, plan, report)
    with one_thread():
        calibrated = calibrate(trained)
        weights = trained.student.weights(calibrated.weights, calibrated.bias)
    provenance = {
        "datasets": sorted(f"sha256:{dataset.digest}" for dataset in datasets),
        "torch": ", ".join(sorted({dataset.header.torch for dataset in datasets})),
        "triton": ", ".join(sorted({dataset.header.triton for dataset in datasets})),
        "measured_on": max(dataset.header.measured_on for dataset in datasets),
        "diode_lut": __version__,
        **plan._asdict(),
        "problems": len(training),
    }
    model = Model(
        *(hardware, weights, candidates, kinds, calibrated.calibration, split, provenance),
        fused_calibration=calibrated.fused_calibration,
        padding=fit_padding(training, plan.seed),
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

_PARTS = 8
"""Number of parts in the cross-validation of the error."""

_DIGITS = 6
"""Number of digits after the point of rounded numbers."""


def fit_padding(targets: Sequence[Target], seed: int) -> PaddingModel | None:
    """Fit the regression, or return None if too few problems were timed with padding.

    ``seed`` draws the parts for its error, the root mean squared error on problems that a regression was not fitted to.
    """
    known = [target for target in targets if _padded_aten(target) is not None]
    counts = Counter((target.problem.op, target.problem.dtype) for target in known)
    kinds = tuple(sorted(kind for kind, count in counts.items() if count >= _MIN_OF_KIND))
    known = [target for target in known if (target.problem.op, target.problem.dtype) in kinds]
    if len(known) < MIN_PADDED_PROBLEMS:
        return None
    features = np.array([padding_features(target.problem) for target in known])
    mean, deviation = features.mean(0).round(_DIGITS), features.std(0).round(_DIGITS)
    deviation[deviation == 0] = 1
    terms = np.array([terms_of(scaled(row, mean, deviation)) for row in features])
    times = np.array([_padded_aten(target) for target in known])
    weights = tuple(_fitted(terms, times).round(_DIGITS).tolist())
    parts = np.random.default_rng(seed).permutation(len(times)) % _PARTS
    errors = np.empty(len(times))
    for part in range(_PARTS):
        unseen = parts == part
        errors[unseen] = terms[unseen] @ _fitted(terms[~unseen], times[~unseen]) - times[unseen]
    error = round(float(np.sqrt((errors**2).mean())), _DIGITS)
    return PaddingModel(tuple(mean.tolist()), tuple(deviation.tolist()), weights, kinds, error)


def _padded_aten(target: Target) -> float | None:
    """Return log(time of aten with padding / best time without), or None."""
    problem = target.problem
    time = target.padded.get(ATEN.padded(pad_multiple(problem.dtype))) if can_be_padded(problem) else None
    return None if time is None else time - target.best


def _fitted(terms: Array, times: Array) -> Array:
    """Return the weights of a ridge regression."""
    penalty = _L2_WEIGHT * np.eye(terms.shape[1])
    penalty[0, 0] = 0
    weights: Array = np.linalg.solve(terms.T @ terms + penalty, terms.T @ times)
    return weights
