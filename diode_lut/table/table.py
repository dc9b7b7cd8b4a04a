"""A table in memory: its rows, its lookups, and its file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from diode_lut.errors import TableError, as_lines
from diode_lut.files import read_at_most, write_atomically
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.table.faults import Positions
from diode_lut.table.format import (
    SCHEMA,
    SCHEMA_NAME,
    candidate_text,
    canonical_bytes,
    canonical_order,
    key_text,
    specificity,
)
from diode_lut.table.row import Entry

if TYPE_CHECKING:
    from diode_lut.table.lookup import Index

MAX_BYTES = 64 << 20  # maximum size of a table's file
Provenance = Mapping[str, str | list[str]]  # versions, dates and the digests of datasets, by name


class Table:
    """Rows for one kind of hardware, which do not change.

    A table that was read from a file has its ``path``, its ``$schema``, and the ``digest`` of its bytes, SHA-256 in
    hexadecimal. ``errors`` has the rows that were left out, and ``skipped`` their numbers, upwards. Two tables are
    equal if they have the same rows, hardware and provenance, in any order of rows.
    """

    def __init__(
        self,
        hardware: Hardware,
        entries: Iterable[Entry],
        provenance: Provenance | None = None,
        *,
        schema: str = SCHEMA,
        path: Path | None = None,
        digest: str | None = None,
        errors: Sequence[TableError] = (),
        skipped: Sequence[int] = (),
    ) -> None:
        self.hardware = hardware
        self.entries: tuple[Entry, ...] = tuple(entries)
        self.provenance: Provenance = provenance or {}
        self.schema = schema
        self.path = path
        self.errors = tuple(errors)
        self._skipped = tuple(skipped)
        self._positions: Positions | None = None
        if digest is not None:
            self.digest = digest

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file, or of the canonical form of a table in memory, in hexadecimal."""
        return self.canonical_digest()

    def canonical_digest(self) -> str:
        """Return the SHA-256 of the canonical form, in hexadecimal. A file in this form has the same digest."""
        return hashlib.sha256(to_bytes(self)).hexdigest()

    @cached_property
    def lookup(self) -> Callable[[Problem], Entry | None]:
        """A function that returns the most specific row for a problem: the first of ``covering``, but fast."""
        return self._index.find

    def covering(self, problem: Problem) -> list[Entry]:
        """Return all rows for the problem, the most specific first. Rows alike are in canonical order."""
        return sorted((entry for entry in self.entries if entry.covers(problem)), key=specificity)

    def borders(self, problem: Problem, fields: Sequence[str]) -> frozenset[int]:
        """Return the sizes in ``fields`` at which rows begin or end that cover the problem, but for these fields."""
        return self._index.borders(problem, tuple(fields))

    def line_of(self, entry: Entry) -> int | None:
        """Return the line where the entry begins in ``path``. None for other entries, and if the file has changed."""
        number = next((number for number, each in self.numbered.items() if each == entry), None)
        return None if number is None else self._line_of_row(number, self._unchanged())

    def lines(self, data: bytes | None = None) -> list[int | None]:
        """Return the line of each entry, as ``line_of`` does, in ``data`` or in the table's file."""
        data = self._unchanged() if data is None else data
        return [self._line_of_row(number, data) for number in self.numbered]

    def _line_of_row(self, number: int, data: bytes | None) -> int | None:
        if data is None:
            return None
        self._positions = self._positions or Positions(data)  # the data is always the same
        return self._positions.place(("entries", number)).line

    def _unchanged(self) -> bytes | None:
        """Return the bytes in ``path``. None if they are not the bytes that the table was read from."""
        with suppress(OSError):
            data = b"" if self.path is None else read_at_most(self.path, MAX_BYTES)
            return data if hashlib.sha256(data).hexdigest() == self.digest else None
        return None

    @cached_property
    def numbered(self) -> Mapping[int, Entry]:
        """The entries with their numbers in ``path``, upwards. Rows that were left out count too."""
        skipped = set(self._skipped)
        numbers = (number for number in range(len(self.entries) + len(skipped)) if number not in skipped)
        return dict(zip(numbers, self.entries, strict=True))

    @cached_property
    def _index(self) -> Index:
        from diode_lut.table.lookup import Index  # with NumPy, which a table that is not asked does not need

        return Index(self.entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and to_bytes(self) == to_bytes(other)

    def with_schema(self, schema: str) -> Table:
        """Return the table with another ``$schema``. It no longer has the lines and the digest of its file."""
        return Table(self.hardware, self.entries, self.provenance, schema=schema, path=self.path)

    def __hash__(self) -> int:
        return hash(self.hardware)

    def __repr__(self) -> str:
        return f"<Table for {self.hardware}: {len(self.entries)} entries, {self.path or 'in memory'}>"


def to_bytes(table: Table) -> bytes:
    """Return the table in canonical form. Equal tables have equal bytes."""
    return canonical_bytes(table.schema, table.hardware, table.provenance, table.entries)


def write_table(table: Table, path: Path) -> None:
    """Replace the file with the table in canonical form, atomically. OSError leaves the old file as it was."""
    write_atomically(path, to_bytes(table))


def placed(table: Table, path: Path) -> Table:
    """Return the table for this file. A default ``$schema`` is replaced by the schema's name if it leads nowhere."""
    leads_nowhere = table.schema == SCHEMA and not (path.parent / table.schema).is_file()
    return table.with_schema(SCHEMA_NAME) if leads_nowhere else table


def as_text(table: Table) -> str:
    """Return a table as text, alike for equal tables. Invalid rows come last, with the reason."""
    lines = [str(table.hardware)]
    lines += [f"also called {alias}" for alias in table.hardware.aliases]
    for name, value in table.provenance.items():
        lines.append(f"{name}: {value if isinstance(value, str) else ', '.join(value)}")
    for entry in sorted(table.entries, key=canonical_order):
        lines.append(key_text(entry))
        lines += [f"  {candidate_text(candidate)}" for candidate in entry.candidates]
        lines += [] if entry.problems is None else [f"  measured problems: {entry.problems}"]
        lines += [] if entry.note is None else [f"  note: {entry.note}"]
    lines += [f"invalid: {error.where}: {error.reason}" for error in table.errors]
    return as_lines(lines)
