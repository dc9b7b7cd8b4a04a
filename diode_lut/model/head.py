"""The head of a weights file: what it is for, read without NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diode_lut.domain.errors import ModelError, ProblemError
from diode_lut.domain.hardware import Hardware
from diode_lut.io.bounded import open_regular

SUFFIX = ".safetensors"
"""What names of weights files end with."""

KEY = "diode_lut"
"""Of the metadata: everything is in one JSON document."""

LARGEST = 1_000_000
"""Bytes that a weights file may have: several times what a sensible network needs."""

_LENGTH = 8
"""Bytes before the header, which say how long it is."""


def read_model_hardware(path: Path) -> Hardware:
    """What the model in a file was trained for; ModelError if it is no weights file."""
    try:
        return Hardware.from_json(metadata_of(read_bytes(path), path)["hardware"])
    except (ProblemError, KeyError, AttributeError) as error:
        raise ModelError(f"{path}: hardware: {error}") from error


def read_bytes(path: Path) -> bytes:
    """The file's bytes; ModelError if it cannot be read or is too large."""
    try:
        with open_regular(path) as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > LARGEST:
        raise ModelError(f"{path}: its bytes are more than the {LARGEST} that a weights file may have")
    return data


def metadata_of(data: bytes, path: Path) -> dict[str, Any]:
    """What the metadata of a weights file says; ModelError if the bytes do not begin like one of ours."""
    import orjson

    end = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
    if not data.startswith(b"{", _LENGTH):
        raise ModelError(f"{path}: not a safetensors file: it begins with {data[: 2 * _LENGTH]!r}")
    if end > len(data):
        raise ModelError(f"{path}: cut off: its header has {end - _LENGTH} bytes, the file {len(data)}")
    try:
        metadata = orjson.loads(orjson.loads(data[_LENGTH:end])["__metadata__"][KEY])
    except (KeyError, TypeError, orjson.JSONDecodeError) as error:
        raise ModelError(f"{path}: a safetensors file, but no model of diode_lut's: no metadata {KEY!r}") from error
    if not isinstance(metadata, dict):
        raise ModelError(f"{path}: metadata {KEY!r}: not an object")
    return metadata
