"""A dataset: one file of timings, whatever its format."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from diode_lut.dataset.record import Header, Record


class Dataset:
    """A file of timings. Iterating reads the file from its beginning, in bounded memory, and yields Records.

    ``skipped`` counts what the last iteration could not represent, by reason: ``{"dtype int8": 3}`` says that three
    timings were left out because of their dtype. Iterating raises DatasetError where the file is damaged.
    """

    def __init__(self, path: Path, header: Header, records: Callable[[Counter[str]], Iterator[Record]]) -> None:
        self.path = path
        self.header = header
        self.skipped: Counter[str] = Counter()
        self._records = records

    def __iter__(self) -> Iterator[Record]:
        self.skipped.clear()
        return self._records(self.skipped)

    @property
    def digest(self) -> str:
        """SHA-256 of the file's bytes, in hexadecimal; the file is read for it."""
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        return digest.hexdigest()
