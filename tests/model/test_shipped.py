"""The shipped models are worth what the documentation says, on problems that they have not seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from diode_lut.dataset import Dataset, read_dataset
from diode_lut.distill.targets import targets_of
from diode_lut.distill.validation import Validation, validate
from diode_lut.model.ranking import Model
from diode_lut.model.split import TRAIN
from diode_lut.model.weights import read_model

TABLES = Path(__file__).parent.parent.parent / "tables"


@pytest.fixture(scope="module")
def shipped() -> Model:
    return read_model(TABLES / "nvidia-h200.mlp.safetensors")


@pytest.fixture(scope="module")
def validation(shipped: Model) -> Validation:
    records = (record for dataset in datasets(shipped) for record in dataset)
    return validate(shipped, targets_of(record for record in records if shipped.split.group(record.problem) != TRAIN))


def datasets(model: Model) -> list[Dataset]:
    """Those that the model names."""
    found = {f"sha256:{each.digest}": each for each in map(read_dataset, (TABLES / "datasets").glob("nvidia-h200*"))}
    return [found[digest] for digest in model.provenance["datasets"]]


def good(validation: Validation) -> float:
    return sum(choice.good for choice in validation.choices) / len(validation.choices)


def test_first_choices_are_near_the_best(validation: Validation) -> None:
    """The figures to reach: regret, share within 5 %, gain, and the best of five."""
    assert validation.tops[1] < 1.03
    assert validation.tops[5] < 1.01
    assert good(validation) > 0.9
    assert validation.gain - 1 > 0.8 * (validation.best_gain - 1)


def test_confidence_is_what_it_says(validation: Validation) -> None:
    """Of the answers given with a confidence of 0.95, so many are good, and most problems get one."""
    sure = validation.sure(0.95)
    assert good(sure) >= 0.945
    assert len(sure.choices) > 0.75 * len(validation.choices)


def test_models_are_small(shipped: Model) -> None:
    """The weights file stays under 200 kB."""
    assert shipped.path is not None
    assert shipped.path.stat().st_size < 200_000
