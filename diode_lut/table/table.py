"""A table: the hardware it is for, its rows, and the lookup; writing it, as JSON or as lines for people."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from diode_lut.domain.errors import TableError
from diode_lut.domain.hardware import Hardware
from diode_lut.domain.printable import as_lines
from diode_lut.domain.problem import Problem
from diode_lut.io.files import read_at_most, write_atomically
from diode_lut.table.canonical import (
    SCHEMA_NAMES,
    SCHEMA_VERSION,
    SCHEMAS,
    candidate_text,
    canonical_bytes,
    canonical_order,
    key_text,
)
from diode_lut.table.entry import Entry
from diode_lut.table.index import Index
from diode_lut.table.position import Landmark, Positions, line_of_row

MAX_BYTES = 64 << 20
"""That the file of a table may have."""

Provenance = Mapping[str, str | list[str]]
"""Where a table comes from: versions, dates and the digests of datasets, by name."""


class Table:
    """Rows for one kind of hardware; read-only.

    ``path`` is the file it was read from, ``errors`` are the rows of that file that were skipped (``skipped`` holds
    their numbers, upwards), ``landmarks`` some rows whose place in it is known, ``digest`` is the SHA-256 of the
    file's bytes in hexadecimal, ``version`` that of its format, ``schema`` what its ``$schema`` says. A table made in
    memory has the digest of its canonical form. Two tables are equal if they say the same for the same hardware, in
    whatever order and version.
    """

    def __init__(
        self,
        hardware: Hardware,
        entries: Iterable[Entry],
        provenance: Provenance | None = None,
        *,
        version: int = SCHEMA_VERSION,
        schema: str | None = None,
        path: Path | None = None,
        digest: str | None = None,
        errors: Sequence[TableError] = (),
        skipped: Sequence[int] = (),
        landmarks: Sequence[Landmark] = (),
    ) -> None:
        self.hardware = hardware
        self.entries: tuple[Entry, ...] = tuple(entries)
        self.provenance: Provenance = provenance or {}
        self.version = version
        self.schema = SCHEMAS[version] if schema is None else schema
        self.path = path
        self.errors = tuple(errors)
        self._skipped = tuple(skipped)
        self._landmarks = tuple(landmarks)
        if digest is not None:
            self.digest = digest

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file that the table was read from, or of its canonical form, in hexadecimal."""
        return self.canonical_digest()

    def canonical_digest(self) -> str:
        """SHA-256 of the canonical form, in hexadecimal: that of the file if and only if the file has this form."""
        return hashlib.sha256(self._canonical()).hexdigest()

    def lookup(self, problem: Problem) -> Entry | None:
        """The most specific entry that covers the problem: the first of ``covering``, but fast."""
        return self._index.find(problem)

    def covering(self, problem: Problem) -> list[Entry]:
        """All entries that cover the problem, the most specific first; among equals, in canonical order."""
        covering = [entry for entry in self.entries if entry.covers(problem)]
        return sorted(covering, key=lambda entry: (entry.volume, canonical_order(entry)))

    def borders(self, problem: Problem, fields: Sequence[str]) -> frozenset[int]:
        """The sizes in ``fields`` at which rows begin or end that cover the problem, but for these fields."""
        return self._index.borders(problem, tuple(fields))

    def line_of(self, entry: Entry) -> int | None:
        """The line where the entry begins in ``path``; None for other entries, and if the file has changed since."""
        data = self._unchanged() if entry in self.entries else None
        if data is None:
            return None
        row = list(self.numbered)[self.entries.index(entry)]
        return line_of_row(data, row, self._landmarks)

    def lines(self, data: bytes | None = None) -> list[int | None]:
        """The line of each entry, as ``line_of`` says it, but all at once.

        ``data`` is what the table was read from; by default the file is read again.
        """
        data = self._unchanged() if data is None else data
        if data is None:
            return [None] * len(self.entries)
        positions = Positions(data)
        return [positions.place(("entries", row)).line for row in self.numbered]

    def _unchanged(self) -> bytes | None:
        """What is in ``path``; None if that is not what the table was read from."""
        if self.path is None:
            return None
        try:
            data = read_at_most(self.path, MAX_BYTES)
        except OSError:
            return None
        return data if hashlib.sha256(data).hexdigest() == self.digest else None

    @cached_property
    def numbered(self) -> Mapping[int, Entry]:
        """The entries with their numbers in ``path``, upwards; rows that were skipped count too."""
        skipped = set(self._skipped)
        numbers = (number for number in range(len(self.entries) + len(skipped)) if number not in skipped)
        return dict(zip(numbers, self.entries, strict=True))

    @cached_property
    def _index(self) -> Index:
        return Index(self.entries)

    def _canonical(self) -> bytes:
        return canonical_bytes(self.version, self.schema, self.hardware, self.provenance, self.entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.upgraded()._canonical() == other.upgraded()._canonical()

    def with_schema(self, schema: str) -> Table:
        """The same table, whose ``$schema`` says this; it is no longer what its file holds."""
        return Table(self.hardware, self.entries, self.provenance, version=self.version, schema=schema, path=self.path)

    def upgraded(self) -> Table:
        """The same table in the newest version of the format; it is no longer what its file holds."""
        schema = self.schema
        for known in (SCHEMAS, SCHEMA_NAMES):
            ending = known[self.version].rpartition("/")[2]
            if schema.endswith(ending):
                schema = schema.removesuffix(ending) + known[SCHEMA_VERSION].rpartition("/")[2]
        return Table(self.hardware, self.entries, self.provenance, schema=schema, path=self.path)

    def __hash__(self) -> int:
        return hash(self.hardware)

    def __repr__(self) -> str:
        return f"<Table for {self.hardware}: {len(self.entries)} entries, {self.path or 'in memory'}>"


def to_bytes(table: Table) -> bytes:
    """The table in canonical form: equal tables give equal bytes."""
    return canonical_bytes(table.version, table.schema, table.hardware, table.provenance, table.entries)


def write_table(table: Table, path: Path) -> None:
    """Replace the file with the table in canonical form, atomically; OSError leaves the old file as it was."""
    write_atomically(path, to_bytes(table))


def placed(table: Table, path: Path) -> Table:
    """The table for this file: with the schema's name, if its ``$schema`` is the default, and leads nowhere from it."""
    leads_nowhere = table.schema == SCHEMAS[table.version] and not (path.parent / table.schema).is_file()
    return table.with_schema(SCHEMA_NAMES[table.version]) if leads_nowhere else table


def as_text(table: Table) -> str:
    """The same for equal tables, whatever the order of their rows; rows that are invalid come last, with the reason."""
    lines = [str(table.hardware)]
    lines += [f"also called {alias}" for alias in table.hardware.aliases]
    lines += [f"{name}: {_listed(value)}" for name, value in table.provenance.items()]
    lines += [line for entry in sorted(table.entries, key=canonical_order) for line in _row(entry)]
    lines += [f"invalid: {error.where}: {error.reason}" for error in table.errors]
    return as_lines(lines)


def _row(entry: Entry) -> Iterator[str]:
    yield key_text(entry)
    yield from (f"  {candidate_text(candidate)}" for candidate in entry.candidates)
    if entry.problems is not None:
        yield f"  measured problems: {entry.problems}"
    if entry.note is not None:
        yield f"  note: {entry.note}"


def _listed(value: str | list[str]) -> str:
    return value if isinstance(value, str) else ", ".join(value)
