"""Compact datasets: our own stream inside one zstd frame. They are written whole, and read like any other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from diode_lut.domain.errors import DatasetError
from diode_lut.io.bounded import open_regular
from diode_lut.io.files import write_atomically

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

_LEVEL = 12
"""Files of higher levels are a tenth smaller and take thirty times as long to write."""

_READ_BYTES = 1 << 10
"""Compressed bytes taken at once: zstd makes at most 32 MB of them, whatever a file claims."""

_PLAIN_BYTES = 1 << 16
_WINDOW_BYTES = 32 << 20
"""Of what came before, a frame may refer to so much."""

_BEGINNING_BYTES = 4 << 20
_RATIO = 200
"""Timings shrink to a tenth or so: what grows more than this, and not only at its beginning, was made to do harm."""


def is_compact(path: Path) -> bool:
    """Whether the file begins as zstd files do."""
    with open_regular(path) as file:
        return file.read(len(ZSTD_MAGIC)) == ZSTD_MAGIC


def read_chunks(path: Path) -> Iterator[bytes]:
    """The stream in the file, decompressed if it is compact; DatasetError if a frame is damaged, or not its end."""
    with open_regular(path) as file:
        if is_compact(path):
            yield from _decompressed(path, file)
        else:
            yield from iter(lambda: file.read(_PLAIN_BYTES), b"")


def write_compact(path: Path, chunks: Iterable[bytes]) -> None:
    """Write the stream into a compact file, which replaces an existing one."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compressobj()
    write_atomically(path, b"".join((*map(compressor.compress, chunks), compressor.flush())))


def _decompressed(path: Path, file: BinaryIO) -> Iterator[bytes]:
    frame = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES).decompressobj()
    grown = 0
    try:
        while not frame.eof and (chunk := file.read(_READ_BYTES)):
            plain = frame.decompress(chunk)
            grown += len(plain)
            if grown > _RATIO * file.tell() + _BEGINNING_BYTES:
                raise DatasetError(f"{path}: damaged: grows to more than {_RATIO} times its size")
            yield from (plain[start : start + _PLAIN_BYTES] for start in range(0, len(plain), _PLAIN_BYTES))
    except zstandard.ZstdError as error:
        raise DatasetError(f"{path}: damaged: {error}") from error
    if not frame.eof:
        raise DatasetError(f"{path}: cut off: its zstd frame has no end (fetch or pack it again)")
    if frame.unused_data or file.read(1):
        raise DatasetError(f"{path}: more follows the end of its zstd frame: not written by the pack command")
