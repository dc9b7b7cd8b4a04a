"""Weights files: writing, reading, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from diode_lut.errors import ModelError
from diode_lut.model import KEY, MAX_WEIGHTS_BYTES, Split, metadata_of, parse_family, read_model_hardware
from diode_lut.model.ranking import PADDING_FEATURES
from diode_lut.model.weights import read_model, write_model
from tests.model.small import H200, MM, model, padding


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A valid weights file."""
    path = tmp_path / "x.mlp.safetensors"
    write_model(model(split=Split(3, 0.1, (parse_family("op=mm,m=1:64"),)), provenance={"seed": 3}), path)
    return path


def test_everything_is_read_as_it_was_written(path: Path) -> None:
    """A model that is written and read again has the same rankings and provenance."""
    written, found = model(), read_model(path)
    assert found.rank(MM) == written.rank(MM)
    assert (found.hardware, found.candidates, found.kinds) == (H200, written.candidates, written.kinds)
    assert (found.split, found.provenance) == (Split(3, 0.1, (parse_family("op=mm,m=1:64"),)), {"seed": 3})
    assert found.path == path
    assert read_model_hardware(path) == H200


def test_same_model_same_bytes(path: Path, tmp_path: Path) -> None:
    """Writing a model that was read gives the same file."""
    again = tmp_path / "again.safetensors"
    write_model(read_model(path), again)
    assert again.read_bytes() == path.read_bytes()


def test_padding_is_read_as_it_was_written(path: Path) -> None:
    """What a model knows about padding is in its file; a model without that has none."""
    assert read_model(path).padding is None
    write_model(model(padding=padding(-0.25)), path)
    assert read_model(path).padding == padding(-0.25)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("features", ["log_b"], "other features"),
        ("over", "aten", "another measure"),
        ("weights", [1.0], "a weight per term"),
        ("mean", [1e9] * len(PADDING_FEATURES), "a magnitude above"),
        ("error", 0.0, "not positive"),
        ("kinds", None, "incomplete or damaged"),
    ],
)
def test_damaged_padding_is_refused(path: Path, name: str, value: object, message: str) -> None:
    """A regression that is not for these features, or not of finite numbers, is a ModelError."""
    write_model(model(padding=padding(-0.25)), path)
    altered(path, lambda metadata: metadata["padding"].update({name: value}))
    with pytest.raises(ModelError, match=message):
        read_model(path)


def altered(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write the file again with other metadata."""
    data = path.read_bytes()
    metadata = metadata_of(data, path)
    change(metadata)
    path.write_bytes(save(load(data), {KEY: json.dumps(metadata)}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:100], "cut off: the header has"),
        (lambda data: data[:-4], "damaged: "),
        (lambda data: b"", "not a safetensors file: it begins with b''"),
        (lambda data: b"PK\x03\x04" + data, "not a safetensors file: it begins with b'PK"),
        (lambda data: data + bytes(MAX_WEIGHTS_BYTES), "cannot be read: too large (allowed: 976 KiB)"),
        (
            lambda data: save({"a": np.zeros(1)}),
            "a safetensors file, but not a model of diode_lut: it has no metadata 'diode_lut'",
        ),
        (lambda data: save({"a": np.zeros(1)}, {KEY: "[]"}), "metadata 'diode_lut': not an object"),
        (lambda data: save({"a": np.zeros(1)}, {KEY: "{}"}), "the metadata do not say which features it is for"),
    ],
)
def test_files_that_are_no_models(path: Path, change: Callable[[bytes], bytes], message: str) -> None:
    """A truncated, foreign or oversized file is an error that names it and says what is wrong."""
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ModelError) as caught:
        read_model(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, -np.inf, 1001])
def test_weights_are_numbers(path: Path, value: float) -> None:
    """A file with one NaN or one huge number among the weights is refused."""
    data = path.read_bytes()
    tensors = load(data)
    tensors["joint"][0, 3] = value
    path.write_bytes(save(tensors, {KEY: json.dumps(metadata_of(data, path))}))
    with pytest.raises(ModelError, match="joint: holds NaN, or a magnitude above 1000"):
        read_model(path)


def test_a_model_that_could_not_be_read_is_not_written(path: Path) -> None:
    """Writing a model with huge weights is an error, and the old file stays."""
    before, weights = path.read_bytes(), read_model(path).weights
    wrong = model(weights=weights._replace(joint=np.full_like(weights.joint, 1001)))
    with pytest.raises(ModelError, match="joint: holds NaN, or a magnitude above 1000"):
        write_model(wrong, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("joint", np.zeros((1, 3), np.float32), r"joint: float32 \(1, 3\), expected float32 \(1, 20\)"),
        ("joint", np.zeros((1, 20)), r"joint: float64 \(1, 20\), expected float32"),
        ("learned", np.zeros((1, 3), np.float32), r"learned: float32 \(1, 3\), expected float32 \(1, 5\)"),
        ("learned", np.zeros((2, 5), np.float32), r"config: float32 \(1, 14\), expected float32 \(1, 15\)"),
        ("learned", np.zeros(5, np.float32), r"learned: shape \(5,\), expected two sizes"),
        ("second", np.zeros((1, 999), np.float32), r"second: shape \(1, 999\), expected two sizes up to 256"),
    ],
)
def test_shapes_and_types_are_checked(path: Path, name: str, tensor: np.ndarray, message: str) -> None:
    """Tensors whose type or shape does not match the features and candidates are refused."""
    data = path.read_bytes()
    path.write_bytes(save({**load(data), name: tensor}, {KEY: json.dumps(metadata_of(data, path))}))
    with pytest.raises(ModelError, match=message):
        read_model(path)


@pytest.mark.parametrize("kind", ["BF16", "F8_E4M3", "F8_E5M2"])
def test_types_that_numpy_does_not_have(path: Path, kind: str) -> None:
    """A tensor of such a type is an error like any other."""
    data = path.read_bytes()
    length = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:length])
    name = next(name for name, tensor in header.items() if tensor.get("data_offsets", [9])[0] == 0)
    values = data[length:]
    _, end = header[name]["data_offsets"]
    header[name] |= {"dtype": kind, "shape": [end // (2 if kind == "BF16" else 1)]}
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + values)
    with pytest.raises(ModelError, match=f"damaged: '{kind}'"):
        read_model(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fields: fields["features"].update(version=3), "features.version: expected 6, found 3"),
        (lambda fields: fields["features"]["joint"].reverse(), "features.joint: other names or values; distill"),
        (lambda fields: fields["features"]["constants"].update(shared_memory=1), "features.constants: other names"),
        (lambda fields: fields.pop("kinds"), "metadata is incomplete or damaged: KeyError: 'kinds'"),
        (lambda fields: fields["kinds"][0].update(dtype={}), "metadata: dtype: {} is not one of float16"),
        (
            lambda fields: fields["kinds"][0].update(epilogue="all"),
            "metadata: epilogue: 'all' is not one of none, light",
        ),
        (lambda fields: fields["fused_calibration"].update(doubts=[1]), "calibration: not ascending doubts, each"),
        (lambda fields: fields["kinds"][0].update(m=""), "metadata is incomplete or damaged: ValueError"),
        (lambda fields: fields["candidates"][0].update(block_m=96), "metadata: block_m: 96 is not allowed"),
        (lambda fields: fields["kinds"][0].update(m=[100, 1]), "metadata: m: 100 to 1 is not a range of sizes"),
        (lambda fields: fields["kinds"][0].update(m="19"), "metadata: m: '1' to '9' is not a range of sizes"),
        (lambda fields: fields["kinds"].append(fields["kinds"][0]), "metadata: kinds: a kind is repeated"),
        (lambda fields: fields["candidates"].pop(3), "metadata: candidates: aten is not among them"),
        (lambda fields: fields["candidates"].append(fields["candidates"][3]), "candidates: a config is repeated"),
        (lambda fields: fields["candidates"].reverse(), "metadata: candidates: configs with tiles do not come first"),
        (
            lambda fields: fields["calibration"]["doubts"].append(1),
            "calibration: not ascending doubts, each with a confidence",
        ),
        (
            lambda fields: fields["calibration"].update(confidences=[7]),
            "calibration: not ascending doubts, each with a confidence",
        ),
        (
            lambda fields: fields["calibration"].update(doubts=[0, 1], confidences=[0.8, 0.9]),
            "calibration: not ascending doubts, each with a confidence",
        ),
        (lambda fields: fields["calibration"].update(doubts="0", confidences="1"), "incomplete or damaged: TypeError"),
        (lambda fields: fields["calibration"].update(per_lead="inf"), "incomplete or damaged: TypeError"),
        (lambda fields: fields["hardware"].update(sm_count=0), "metadata: sm_count: 0 is not a positive integer"),
    ],
)
def test_metadata_is_checked(path: Path, change: Callable[[dict[str, Any]], None], message: str) -> None:
    """Other features or invalid metadata are an error that names the field."""
    altered(path, change)
    with pytest.raises(ModelError) as caught:
        read_model(path)
    assert message in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    """A missing file is a ModelError, not an OSError."""
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        read_model(tmp_path / "none.safetensors")
