"""The model: a small network to rank the candidate configs for problems without a row in any table.

This module reads the header of a weights file: its hardware and its metadata. It imports none of the others, because a
decision without models must not need NumPy.

A safetensors file begins with the length of the header, 8 bytes, little-endian. The header follows, in JSON. Source:
the format's description in the README of the safetensors library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import orjson

from diode_lut.errors import DiodeLutError, ModelError, ProblemError, as_lines
from diode_lut.files import read_at_most, read_finished
from diode_lut.hardware import Hardware

SUFFIX = ".safetensors"
"""Suffix of a weights file's name."""

KEY = "diode_lut"
"""Key of the safetensors metadata with the JSON document."""

MAX_WEIGHTS_BYTES = 1_000_000
"""Maximum size of a weights file in bytes. A sensible network needs a fraction of it."""

MAX_HEADER_BYTES = 4 << 20
"""Maximum size of a header in bytes, far more than for a thousand tensors."""

_LENGTH = 8
"""Bytes before the header, with its length."""


def read_model_hardware(path: Path) -> Hardware:
    """Return the hardware of the model in a file. ModelError if the file is not a weights file.

    A damaged file another program is writing is read again.
    """

    def hardware(path: Path) -> Hardware:
        try:
            return Hardware.from_json(metadata_of(read_bytes(path), path)["hardware"])
        except (ProblemError, KeyError, AttributeError) as error:
            raise ModelError(f"{path}: hardware: {error}") from error

    return read_finished(path, hardware)


def read_bytes(path: Path) -> bytes:
    """Return the file's bytes. ModelError if it cannot be read or is too large."""
    try:
        return read_at_most(path, MAX_WEIGHTS_BYTES)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error


def metadata_of(data: bytes, path: Path) -> dict[str, Any]:
    """Return the JSON document in the metadata of a weights file. ModelError if ``data`` is no such file's content."""
    end = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
    if data.startswith(b"{"):
        raise ModelError(f"{path}: JSON, such as a table, not a model (names of models end with {SUFFIX})")
    if not data.startswith(b"{", _LENGTH):
        raise ModelError(f"{path}: not a safetensors file: it begins with {data[: 2 * _LENGTH]!r}")
    if end > len(data):
        raise ModelError(f"{path}: cut off: the header has {end - _LENGTH} bytes, the file {len(data)}")
    try:
        metadata = orjson.loads(orjson.loads(data[_LENGTH:end])["__metadata__"][KEY])
    except (KeyError, TypeError, orjson.JSONDecodeError) as error:
        raise ModelError(
            f"{path}: a safetensors file, but not a model of diode_lut: it has no metadata {KEY!r}"
        ) from error
    if not isinstance(metadata, dict):
        raise ModelError(f"{path}: metadata {KEY!r}: not an object")
    return metadata


def header_text(file: BinaryIO, path: Path) -> str:
    """Return the metadata, sorted by name, then name, type and shape of each tensor. DiodeLutError for another file."""
    length = int.from_bytes(file.read(_LENGTH), "little")
    data = file.read(min(length, MAX_HEADER_BYTES))
    try:
        header = orjson.loads(data)
        metadata = header.pop("__metadata__", {})
        return as_lines(
            [
                *(f"{name}: {value}" for name, value in sorted(metadata.items())),
                *(f"{name} {tensor['dtype']} {tensor['shape']}" for name, tensor in sorted(header.items())),
            ]
        )
    except (ValueError, AttributeError, KeyError, TypeError):
        raise DiodeLutError(f"{path}: neither a table nor a safetensors file") from None
