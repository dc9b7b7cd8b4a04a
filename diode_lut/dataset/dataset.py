"""A dataset: one file of timings, whatever its format."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from diode_lut.dataset.record import Header, Lost, Record, in_words
from diode_lut.domain.printable import printable
from diode_lut.io.bounded import open_regular

_log = logging.getLogger(__name__)


class Dataset:
    """A file of timings. Iterating reads the file from its beginning, in bounded memory, and yields Records.

    ``skipped`` counts what the last iteration could not represent, by reason: ``{"dtype int8": 3}`` says that three
    timings were left out because of their dtype. ``lost`` are the damaged places that it passed over, which the end of
    an iteration logs once. Iterating raises DatasetError where nothing behind the damage can be read.
    """

    def __init__(
        self, path: Path, header: Header, records: Callable[[Counter[str], list[Lost]], Iterator[Record]]
    ) -> None:
        self.path = path
        self.header = header
        self.skipped: Counter[str] = Counter()
        self.lost: list[Lost] = []
        self._logged: list[Lost] = []
        self._records = records

    def __iter__(self) -> Iterator[Record]:
        self.skipped.clear()
        self.lost.clear()
        yield from self._records(self.skipped, self.lost)
        if self.lost and self.lost != self._logged:
            self._logged = list(self.lost)
            _log.warning("%s: %s", printable(str(self.path)), in_words(self.lost))

    @property
    def digest(self) -> str:
        """SHA-256 of the file's bytes, in hexadecimal; the file is read for it."""
        digest = hashlib.sha256()
        with open_regular(self.path) as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        return digest.hexdigest()
