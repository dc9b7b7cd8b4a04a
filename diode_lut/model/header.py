"""The header of a safetensors file as text: its metadata and its tensors.

The file begins with the length of the header, 8 bytes, little-endian. The header follows, which is JSON. Source: the
format's description in the README of the safetensors library.
"""

from __future__ import annotations

from pathlib import Path

import orjson

from diode_lut.domain.errors import DiodeLutError
from diode_lut.domain.printable import as_lines
from diode_lut.io.bounded import open_regular

MAX_HEADER_BYTES = 4 << 20
"""Maximum size of a header in bytes: far more than a file with a thousand tensors needs."""


def header_text(path: Path) -> str:
    """The metadata, sorted by name, then name, type and shape of each tensor; DiodeLutError for another file."""
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
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
