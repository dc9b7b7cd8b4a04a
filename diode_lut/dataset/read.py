"""Reading a dataset of any format, which is recognised by the file's content, not by its name."""

from __future__ import annotations

from pathlib import Path

from diode_lut.bounded import open_regular
from diode_lut.dataset.codec import MAGIC
from diode_lut.dataset.compact import ZSTD_MAGIC
from diode_lut.dataset.cursor import JsonCursor, MsgpackCursor
from diode_lut.dataset.dataset import Dataset
from diode_lut.dataset.frames import holds_frames
from diode_lut.dataset.stream import open_stream
from diode_lut.dataset.torch_diode import open_torch_diode
from diode_lut.errors import DatasetError
from diode_lut.problem import Hardware

_BEGINNING_BYTES = 4 << 10
"""The copies of a header are shorter."""


def read_dataset(path: Path, *, hardware: Hardware | None = None, layout: str = "nn") -> Dataset:
    """The dataset in ``path``: our own stream, as it is or compact, or torch-diode's JSON or msgpack.

    torch-diode's files say neither what the architecture of a device is nor how its inputs were laid out. So of such
    a file the timings of ``hardware`` are read, which one of its names or aliases must match, all with ``layout``
    (``nn`` is what torch-diode's own collector multiplies). Our own files say it themselves, and both are ignored.

    Raises DatasetError for a file that is not a dataset, OSError for one that cannot be read.
    """
    with open_regular(path) as file:
        start = file.read(_BEGINNING_BYTES)
    if not start:
        raise DatasetError(f"{path}: the file is empty")
    if b'"schema_version"' in start[:256]:
        raise DatasetError(f"{path}: a table, not a dataset")
    if start.lstrip()[:1] == b"{":
        return open_torch_diode(path, JsonCursor, hardware, layout)
    if MAGIC.encode() in start[:256] or start.startswith(ZSTD_MAGIC) or holds_frames(start):
        return open_stream(path)
    if _begins_with_map(start):
        return open_torch_diode(path, MsgpackCursor, hardware, layout)
    raise DatasetError(f"{path}: not a dataset: it begins with {start[:16]!r}")


def _begins_with_map(start: bytes) -> bool:
    return start[0] & 0xF0 == 0x80 or start[0] in (0xDE, 0xDF)
