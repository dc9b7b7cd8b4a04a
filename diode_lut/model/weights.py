"""Weights files: safetensors, with one JSON document in the metadata for everything but the tensors."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from safetensors import SafetensorError
from safetensors.numpy import load, save

from diode_lut.errors import ModelError, ProblemError
from diode_lut.files import read_finished, write_atomically
from diode_lut.hardware import Hardware, architecture
from diode_lut.model import KEY, MAX_WEIGHTS_BYTES, Kind, Split, metadata_of, ranking, read_bytes
from diode_lut.model.features import CONFIG_FEATURES, JOINT_FEATURES, PROBLEM_FEATURES, VERSION, tiles_of
from diode_lut.model.generated import KernelModel
from diode_lut.templates.config import ATEN, Config


def _features(arch: Any) -> dict[str, Any]:
    """Return the features of the weights, and the architecture's constants behind them."""
    shared_memory = architecture(arch).shared_memory if isinstance(arch, str) else None
    names = {"problem": PROBLEM_FEATURES, "config": CONFIG_FEATURES, "joint": JOINT_FEATURES}
    lists = {name: list(features) for name, features in names.items()}
    return {"version": VERSION, **lists, "constants": {"shared_memory": shared_memory}}


def write_model(model: ranking.Model, path: Path) -> None:
    """Write the weights file. The same model gives the same bytes. ModelError if the file would not be readable."""
    metadata = {
        "features": _features(model.hardware.arch),
        "hardware": model.hardware._asdict(),
        "candidates": [config.to_json() for config in model.candidates],
        "kinds": [kind.to_json() for kind in model.kinds],
        "calibration": model.calibration._asdict(),
        "fused_calibration": model.fused_calibration._asdict(),
        "padding": None if model.padding is None else model.padding.to_json(),
        "split": model.split.to_json(),
        "provenance": dict(model.provenance),
        **({} if model.kernels is None else {"kernels": model.kernels.to_json()}),
    }
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in model.weights._asdict().items()}
    data = save(tensors, {KEY: orjson.dumps(metadata).decode()})
    if len(data) > MAX_WEIGHTS_BYTES:
        raise ModelError(f"{path}: {len(data)} bytes are more than a weights file may have ({MAX_WEIGHTS_BYTES})")
    _decoded(data, path)
    write_atomically(path, data)


def read_model(path: Path) -> ranking.Model:
    """Read the model in a file. ModelError if it is unreadable, or for other features."""
    return read_finished(path, lambda path: _decoded(read_bytes(path), path))


def _decoded(data: bytes, path: Path) -> ranking.Model:
    """Return the model in a weights file's bytes. ModelError names ``path``."""
    metadata = metadata_of(data, path)
    features, hardware = metadata.get("features"), metadata.get("hardware")
    if not isinstance(features, dict):
        raise ModelError(f"{path}: the metadata do not say which features it is for")
    for name, expected in _features(hardware.get("arch") if isinstance(hardware, dict) else None).items():
        if features.get(name) != expected:
            versions = f"expected {expected}, found {features.get(name)!r}"
            difference = versions if name == "version" else "other names or values"
            raise ModelError(f"{path}: features.{name}: {difference}; distill the model again with this diode_lut")
    try:
        tensors = load(data)
    except (SafetensorError, KeyError) as error:  # KeyError: a dtype that NumPy does not have
        raise ModelError(f"{path}: damaged: {error}") from error
    try:
        candidates = [Config.from_json(fields) for fields in metadata["candidates"]]
        if ATEN not in candidates:
            raise ProblemError("candidates: aten is not among them")
        if len(set(candidates)) < len(candidates):
            raise ProblemError("candidates: a config is repeated")
        if any(config.pad > 1 for config in candidates):
            raise ProblemError("candidates: one has a pad, but the model adds paddings itself")
        without = [tiles_of(config) is None for config in candidates]
        if without != sorted(without):
            raise ProblemError("candidates: configs with tiles do not come first")
        device, weights = Hardware.from_json(metadata["hardware"]), _weights(tensors, len(candidates), path)
        kinds = [Kind.from_json(fields) for fields in metadata["kinds"]]
        if len({kind.key for kind in kinds}) < len(kinds):
            raise ProblemError("kinds: a kind is repeated")
        return ranking.Model(
            device,
            weights,
            candidates,
            kinds,
            _calibration(metadata["calibration"]),
            Split.from_json(metadata["split"]),
            metadata["provenance"],
            path=path,
            digest=hashlib.sha256(data).hexdigest(),
            fused_calibration=_calibration(metadata["fused_calibration"]),
            padding=_padding(metadata["padding"]) if metadata["padding"] else None,
            kernels=KernelModel.from_json(metadata["kernels"], device) if "kernels" in metadata else None,
        )
    except ProblemError as error:
        raise ModelError(f"{path}: metadata: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{path}: metadata is incomplete or damaged: {type(error).__name__}: {error}") from error


def _calibration(fields: Mapping[str, Any]) -> ranking.Calibration:
    doubts, confidences, per_lead = fields["doubts"], fields["confidences"], fields["per_lead"]
    if (
        not all(map(math.isfinite, (*doubts, *confidences, per_lead)))
        or len(doubts) != len(confidences)
        or doubts != sorted(doubts)
        or confidences != sorted(confidences, reverse=True)
        or any(not 0 <= confidence <= 1 for confidence in confidences)
    ):
        raise ProblemError("calibration: not ascending doubts, each with a confidence, which descend from 1 to 0")
    return ranking.Calibration(per_lead, tuple(doubts), tuple(confidences))


def _padding(fields: Mapping[str, Any]) -> ranking.PaddingModel:
    if (tuple(fields["features"]), fields.get("over")) != (ranking.PADDING_FEATURES, ranking.OVER):
        raise ProblemError("padding: other features or another measure; distill the model again with this diode_lut")
    count = len(ranking.PADDING_FEATURES)
    mean, deviation, weights = (tuple(map(float, fields[name])) for name in ("mean", "deviation", "weights"))
    kinds, error = tuple((str(op), str(dtype)) for op, dtype in fields["kinds"]), float(fields["error"])
    if [len(mean), len(deviation), len(weights)] != [count, count, len(ranking.terms_of(mean))]:
        raise ProblemError("padding: not a mean and a deviation per feature, and a weight per term")
    if not all(abs(number) <= ranking.MAX_WEIGHT for number in (*mean, *weights)) or min(*deviation, error) <= 0:
        raise ProblemError(f"padding: NaN, a magnitude above {ranking.MAX_WEIGHT}, or a deviation that is not positive")
    return ranking.PaddingModel(mean, deviation, weights, kinds, error)


def _weights(tensors: Mapping[str, Any], candidates: int, path: Path) -> ranking.Weights:
    """Return the tensors. ModelError if one is missing, or has a wrong type, shape or value."""
    if set(tensors) != set(ranking.Weights._fields):
        raise ModelError(f"{path}: tensors {sorted(tensors)}, expected {sorted(ranking.Weights._fields)}")
    weights = ranking.Weights(**{name: tensors[name] for name in ranking.Weights._fields})
    if weights.second.ndim != 2 or max(weights.second.shape) > ranking.MAX_NEURONS:
        expected = f"two sizes up to {ranking.MAX_NEURONS}"
        raise ModelError(f"{path}: second: shape {weights.second.shape}, expected {expected}")
    if weights.learned.ndim != 2:
        raise ModelError(f"{path}: learned: shape {weights.learned.shape}, expected two sizes")
    for name, shape in weights.shapes(candidates).items():
        tensor = tensors[name]
        if tensor.dtype != np.float32 or tensor.shape != shape:
            raise ModelError(f"{path}: {name}: {tensor.dtype} {tensor.shape}, expected float32 {shape}")
        if not (np.abs(tensor) <= ranking.MAX_WEIGHT).all():
            raise ModelError(f"{path}: {name}: holds NaN, or a magnitude above {ranking.MAX_WEIGHT}")
    return weights
