"""The shipped model is as good as the documentation says, on problems that it was not trained on."""

import math
from functools import cache
from pathlib import Path

import pytest

from diode_lut.dataset import Record, read_dataset
from diode_lut.distill import Validation, validate
from diode_lut.distill.examples import targets_of
from diode_lut.model import TEST, TRAIN
from diode_lut.model.ranking import Model
from diode_lut.model.weights import read_model
from diode_lut.problem import NO_EPILOGUE

TABLES = Path(__file__).parent.parent.parent / "tables"
DATASETS = TABLES / "datasets"
PADDED = ("models", "random", "test")  # measured again with padding; nothing is trained on the last


@cache
def records(path: Path) -> list[Record]:
    """The records of a dataset, which several validations need."""
    return list(read_dataset(path))


@pytest.fixture(scope="module")
def shipped() -> Model:
    return read_model(TABLES / "nvidia-h200.mlp.safetensors")


def held_out(model: Model, path: Path) -> Validation:
    """The validation on those problems of one of its datasets that it was not trained on."""
    return validate(model, targets_of(r for r in records(path) if model.split.group(r.problem) != TRAIN))


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
    return validate(shipped, targets_of(records(DATASETS / "test" / "nvidia-h200.msgpack.zst")))


@pytest.fixture(scope="module")
def with_epilogues(shipped: Model) -> Validation:
    """The validation on problems with each class of epilogue, those without one left out."""
    alone = (*DATASETS.glob("nvidia-h200*"), DATASETS / "random" / "nvidia-h200.msgpack.zst")
    paths = (*alone, *sorted(DATASETS.joinpath("epilogues").glob("nvidia-h200*")))
    others = (r for path in paths for r in records(path) if shipped.split.group(r.problem) != TRAIN)
    return validate(shipped, [target for target in targets_of(others) if target.problem.epilogue != NO_EPILOGUE])


@pytest.fixture(scope="module")
def with_padding(shipped: Model) -> Validation:
    """The validation on problems of all sets that may be padded, as they are and padded."""
    padded = DATASETS / "padding"
    of_models, others, test = (records(padded / f"nvidia-h200-{name}.msgpack.zst") for name in PADDED)
    seen = ((r for r in each if shipped.split.group(r.problem) != TRAIN) for each in (of_models, others))
    return validate(shipped, targets_of(*seen, test), padding=True)


def good(validation: Validation) -> float:
    return sum(choice.good for choice in validation.choices) / len(validation.choices)


def gain_over_all(validation: Validation) -> float:
    """Geometric mean over all problems; the gain is 1 where the model abstains."""
    count = len(validation.choices) + validation.unknown
    return math.exp(-sum(math.log(choice.time) for choice in validation.answered().choices) / count)


@pytest.mark.slow
def test_the_test_split_was_not_trained_on(shipped: Model) -> None:
    """The model names its training datasets, and no problem of the test split is in them."""
    others = DATASETS / "random" / "nvidia-h200.msgpack.zst", *DATASETS.joinpath("epilogues").glob("nvidia-h200*")
    padded = (DATASETS / "padding" / f"nvidia-h200-{name}.msgpack.zst" for name in PADDED[:-1])
    paths = [*DATASETS.glob("nvidia-h200*"), *others, *padded]
    assert sorted(f"sha256:{read_dataset(path).digest}" for path in paths) == shipped.provenance["datasets"]
    unseen = {record.problem for record in records(DATASETS / "test" / "nvidia-h200.msgpack.zst")}
    assert len(unseen) == 300
    assert unseen.isdisjoint(record.problem for path in paths for record in records(path))


def test_first_choices_are_near_the_best(
    of_models: Validation, others_at_random: Validation, at_random: Validation
) -> None:
    """Time over the best is low, for the first choice and for the best of five; most choices are within 5 %."""
    assert of_models.tops[1] < 1.025
    assert of_models.tops[5] < 1.005
    assert good(of_models) > 0.92
    for each in (others_at_random, at_random):
        assert each.tops[1] < 1.03
        assert each.tops[5] < 1.007
        assert good(each) > 0.85


def test_most_of_the_possible_gain_is_reached(
    of_models: Validation, others_at_random: Validation, at_random: Validation
) -> None:
    """The first choices have about 80 % or more of the best configs' gain over aten."""
    for each in (of_models, others_at_random, at_random):
        assert each.gain - 1 > 0.79 * (each.best_gain - 1)


def test_confidence_is_about_what_it_says(
    of_models: Validation, others_at_random: Validation, at_random: Validation
) -> None:
    """About 95 % of the answers with a confidence of 0.95 are good, as far as a thousand answers can tell."""
    sure = [each.sure(0.95) for each in (of_models, others_at_random, at_random)]
    choices = [choice for each in sure for choice in each.choices]
    assert len(choices) > 950
    assert sum(choice.good for choice in choices) > 0.945 * len(choices)
    assert good(sure[0]) > 0.95
    assert good(sure[2]) > 0.95
    assert len(sure[0].choices) > 0.75 * len(of_models.choices)
    assert len(sure[2].choices) > 0.59 * len(at_random.choices)
    assert all(len(each.slow) <= 2 for each in sure)


def test_what_is_answered_gains_over_all(of_models: Validation, at_random: Validation) -> None:
    """With the default thresholds the gain over all problems is above 1.10, and at most two answers are slow."""
    assert gain_over_all(of_models) > 1.10
    assert gain_over_all(at_random) > 1.12
    assert len(of_models.answered().slow) <= 2
    assert len(at_random.answered().slow) <= 2


def test_classes_of_epilogues_are_known(with_epilogues: Validation) -> None:
    """With epilogues, nearly all choices are near the best, most of the gain is reached, and few answers are slow."""
    assert with_epilogues.tops[1] < 1.03
    assert good(with_epilogues) > 0.88
    assert with_epilogues.gain - 1 > 0.75 * (with_epilogues.best_gain - 1)
    assert good(with_epilogues.sure(0.95)) > 0.9
    assert good(with_epilogues.answered()) > 0.88
    slow = with_epilogues.answered().slow
    assert len(slow) <= 6
    assert sum(choice.timed for choice in slow) <= 2


def test_padding_is_known(with_padding: Validation) -> None:
    """Where Inductor may pad, answers reach most of the gain of the best. Those without a time count as slow."""
    assert len(with_padding.choices) == 98
    assert with_padding.gain - 1 > 0.77 * (with_padding.best_gain - 1)
    assert gain_over_all(with_padding) > 1.53
    slow = with_padding.answered().slow
    assert len(slow) <= 6
    assert not any(choice.timed for choice in slow)


def test_no_first_choice_failed(of_models: Validation, others_at_random: Validation, at_random: Validation) -> None:
    """No first choice is a config that had wrong results, or no kernel, when it was measured."""
    assert [each.failed for each in (of_models, others_at_random, at_random)] == [[], [], []]


def test_few_rows_are_known() -> None:
    """On GEMMs of few rows that it was not trained on, it answers, near the best, and no answer is slow."""
    model = read_model(TABLES / "nvidia-h200-few-rows.mlp.safetensors")
    dataset = read_dataset(DATASETS / "few-rows" / "nvidia-h200-masked.msgpack.zst")
    assert [f"sha256:{dataset.digest}"] == model.provenance["datasets"]
    assert {(kind.dtype, kind.layout, kind.k_multiple, max(kind.m) <= 8) for kind in model.kinds} == {
        ("bfloat16", "nt", 8, True)
    }
    held_out = [each for each in targets_of(dataset) if model.split.group(each.problem) == TEST]
    found = validate(model, held_out)
    answered = found.answered()
    assert len(answered.choices) > 60
    assert good(answered) > 0.98
    assert gain_over_all(found) > 1.13
    assert found.failed == []
    assert max(choice.time for choice in answered.choices) < 1.03


@pytest.mark.slow
def test_layers_of_bytes_are_known() -> None:
    """On layers in float8 and int8 that it was not trained on, it answers, near the best, and no answer is slow."""
    model = read_model(TABLES / "nvidia-h200-float8-int8.mlp.safetensors")
    names = (
        "few-rows/nvidia-h200-exhaustive",
        "between/nvidia-h200",
        *(f"{kind}/nvidia-h200{which}" for kind in ("float8", "int8") for which in ("", "-layers")),
    )
    datasets = [read_dataset(DATASETS / f"{name}.msgpack.zst") for name in names]
    assert sorted(f"sha256:{each.digest}" for each in datasets) == model.provenance["datasets"]
    more = read_dataset(DATASETS / "between" / "nvidia-h200-test.msgpack.zst")
    found = validate(model, [each for each in targets_of(*datasets, more) if model.split.group(each.problem) != TRAIN])
    assert found.tops[1] < 1.01
    answered = found.answered()
    assert len(answered.choices) > 200
    assert good(answered) > 0.96
    assert gain_over_all(found) > 1.09
    assert found.failed == []
    assert max(choice.time for choice in answered.choices) < 1.08


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.safetensors")), ids=lambda path: path.name)
def test_models_are_small(path: Path) -> None:
    """Each weights file stays under 200 kB."""
    assert path.stat().st_size < 200_000
