"""The shipped model is as good as the documentation says, on problems that it was not trained on."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from diode_lut.dataset import read_dataset
from diode_lut.distill.targets import targets_of
from diode_lut.distill.validation import Validation, validate
from diode_lut.model.ranking import Model
from diode_lut.model.training_set import TRAIN
from diode_lut.model.weights import read_model

TABLES = Path(__file__).parent.parent.parent / "tables"
DATASETS = TABLES / "datasets"


@pytest.fixture(scope="module")
def shipped() -> Model:
    return read_model(TABLES / "nvidia-h200.mlp.safetensors")


def held_out(model: Model, path: Path) -> Validation:
    """The validation on those problems of one of its datasets that it was not trained on."""
    return validate(model, targets_of(r for r in read_dataset(path) if model.split.group(r.problem) != TRAIN))


@pytest.fixture(scope="module")
def of_models(shipped: Model) -> Validation:
    """The validation on problems of real models."""
    (path,) = DATASETS.glob("nvidia-h200*")
    return held_out(shipped, path)


@pytest.fixture(scope="module")
def others_at_random(shipped: Model) -> Validation:
    """The validation on random problems like those that it was trained on."""
    return held_out(shipped, DATASETS / "random" / "nvidia-h200.msgpack.zst")


@pytest.fixture(scope="module")
def at_random(shipped: Model) -> Validation:
    """The validation on the random problems of the test split."""
    return validate(shipped, targets_of(read_dataset(DATASETS / "test" / "nvidia-h200.msgpack.zst")))


def good(validation: Validation) -> float:
    return sum(choice.good for choice in validation.choices) / len(validation.choices)


def gain_over_all(validation: Validation) -> float:
    """Geometric mean over all problems; the gain is 1 where the model abstains."""
    count = len(validation.choices) + validation.unknown
    return math.exp(-sum(math.log(choice.time) for choice in validation.answered().choices) / count)


def test_the_test_split_was_not_trained_on(shipped: Model) -> None:
    """The model names its training datasets, and no problem of the test split is in them."""
    paths = [*DATASETS.glob("nvidia-h200*"), DATASETS / "random" / "nvidia-h200.msgpack.zst"]
    found = [read_dataset(path) for path in paths]
    assert sorted(f"sha256:{each.digest}" for each in found) == shipped.provenance["datasets"]
    unseen = {record.problem for record in read_dataset(DATASETS / "test" / "nvidia-h200.msgpack.zst")}
    assert len(unseen) == 300
    assert unseen.isdisjoint(record.problem for dataset in found for record in dataset)


def test_first_choices_are_near_the_best(
    of_models: Validation, others_at_random: Validation, at_random: Validation
) -> None:
    """Time over the best is low, for the first choice and for the best of five; most choices are within 5 %."""
    assert of_models.tops[1] < 1.025
    assert of_models.tops[5] < 1.005
    assert good(of_models) > 0.92
    for each in (others_at_random, at_random):
        assert each.tops[1] < 1.03
        assert each.tops[5] < 1.006
        assert good(each) > 0.855


def test_most_of_the_possible_gain_is_reached(
    of_models: Validation, others_at_random: Validation, at_random: Validation
) -> None:
    """The first choices have over 80 % of the best configs' gain over aten."""
    for each in (of_models, others_at_random, at_random):
        assert each.gain - 1 > 0.8 * (each.best_gain - 1)


def test_confidence_is_about_what_it_says(
    of_models: Validation, others_at_random: Validation, at_random: Validation
) -> None:
    """About 95 % of the answers with a confidence of 0.95 are good, as far as a thousand answers can tell."""
    sure = [each.sure(0.95) for each in (of_models, others_at_random, at_random)]
    choices = [choice for each in sure for choice in each.choices]
    assert len(choices) > 1000
    assert sum(choice.good for choice in choices) > 0.945 * len(choices)
    assert good(sure[0]) > 0.95
    assert good(sure[2]) > 0.95
    assert len(sure[0].choices) > 0.78 * len(of_models.choices)
    assert len(sure[2].choices) > 0.6 * len(at_random.choices)
    assert all(len(each.slow) <= 2 for each in sure)


def test_what_is_answered_gains_over_all(of_models: Validation, at_random: Validation) -> None:
    """With the default thresholds the gain over all problems is above 1.10, and at most two answers are slow."""
    assert gain_over_all(of_models) > 1.10
    assert gain_over_all(at_random) > 1.10
    assert len(of_models.answered().slow) <= 2
    assert at_random.answered().slow == []


def test_no_first_choice_failed(of_models: Validation, others_at_random: Validation, at_random: Validation) -> None:
    """No first choice is a config that had wrong results, or no kernel, when it was measured."""
    assert [each.failed for each in (of_models, others_at_random, at_random)] == [[], [], []]


def test_models_are_small(shipped: Model) -> None:
    """The weights file stays under 200 kB."""
    assert shipped.path is not None
    assert shipped.path.stat().st_size < 200_000
