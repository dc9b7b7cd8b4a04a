"""The header of a weights file, read without NumPy: its metadata, and all of it as text.

A safetensors file begins with the length of the header, 8 bytes, little-endian. The header follows, which is JSON.
Source: the format's description in the README of the safetensors library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from diode_lut.domain.errors import DiodeLutError, ModelError, ProblemError
from diode_lut.domain.hardware import Hardware
from diode_lut.domain.printable import as_lines
from diode_lut.io.files import open_regular
from diode_lut.io.unfinished import read_finished

SUFFIX = ".safetensors"
"""Suffix of a weights file's name."""

KEY = "diode_lut"
"""Key of the safetensors metadata under which one JSON document holds everything."""

MAX_WEIGHTS_BYTES = 1_000_000
"""Maximum size of a weights file in bytes: several times what a sensible network needs."""

MAX_HEADER_BYTES = 4 << 20
"""Maximum size of a header in bytes: far more than a file with a thousand tensors needs."""

_LENGTH = 8
"""Bytes before the header, which hold the header's length."""


def read_model_hardware(path: Path) -> Hardware:
    """The hardware that the model in a file was trained for; ModelError if the file is not a weights file.

    A damaged file that another program is writing is read again.
    """
    return read_finished(path, _hardware)


def _hardware(path: Path) -> Hardware:
    try:
        return Hardware.from_json(metadata_of(read_bytes(path), path)["hardware"])
    except (ProblemError, KeyError, AttributeError) as error:
        raise ModelError(f"{path}: hardware: {error}") from error


def read_bytes(path: Path) -> bytes:
    """The file's bytes; ModelError if it cannot be read or is too large."""
    try:
        with open_regular(path) as file:
            data = file.read(MAX_WEIGHTS_BYTES + 1)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_WEIGHTS_BYTES:
        raise ModelError(f"{path}: larger than a weights file may be ({MAX_WEIGHTS_BYTES} bytes)")
    return data


def metadata_of(data: bytes, path: Path) -> dict[str, Any]:
    """The JSON document in the metadata of a weights file; ModelError if ``data`` is not a weights file's content."""
    import orjson

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
    """The metadata, sorted by name, then name, type and shape of each tensor; DiodeLutError for another file."""
    import orjson

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
