"""Writing a table: as JSON, and as lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from diode_lut.domain.printable import as_lines
from diode_lut.io.files import write_atomically
from diode_lut.table.canonical import (
    baseline_as_text,
    candidate_text,
    canonical_bytes,
    canonical_order,
    key_text,
)
from diode_lut.table.entry import Entry
from diode_lut.table.table import Table


def to_bytes(table: Table) -> bytes:
    """The table in canonical form: equal tables give equal bytes."""
    return canonical_bytes(table.version, table.schema, table.hardware, table.provenance, table.entries)


def write_table(table: Table, path: Path) -> None:
    """Replace the file with the table in canonical form, atomically; OSError leaves the old file as it was."""
    write_atomically(path, to_bytes(table))


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
    if entry.aten_ns is not None:
        yield f"  aten: {baseline_as_text(entry.aten_ns, entry.op)}"
    if entry.note is not None:
        yield f"  note: {entry.note}"


def _listed(value: str | list[str]) -> str:
    return value if isinstance(value, str) else ", ".join(value)
