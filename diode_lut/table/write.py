"""From tables to files."""

from __future__ import annotations

from pathlib import Path

from diode_lut.files import write_atomically
from diode_lut.table.canonical import canonical_bytes
from diode_lut.table.table import Table


def to_bytes(table: Table) -> bytes:
    """The table in canonical form: equal tables give equal bytes."""
    return canonical_bytes(table.schema, table.hardware, table.provenance, table.entries)


def write_table(table: Table, path: Path) -> None:
    """Replace the file with the table in canonical form, atomically; OSError leaves the old file as it was."""
    write_atomically(path, to_bytes(table))
