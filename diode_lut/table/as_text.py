"""A table in words: a line for each row's key and one for each of its kernels."""

from __future__ import annotations

from collections.abc import Iterator

from diode_lut.printable import as_lines
from diode_lut.table.canonical import canonical_order
from diode_lut.table.entry import Entry
from diode_lut.table.table import Table
from diode_lut.table.words import candidate_in_words, key_in_words


def as_text(table: Table) -> str:
    """The same for equal tables, whatever the order of their rows; rows that are invalid come last, with the reason."""
    lines = [str(table.hardware)]
    lines += [f"also called {alias}" for alias in table.hardware.aliases]
    lines += [f"{name}: {_listed(value)}" for name, value in table.provenance.items()]
    lines += [line for entry in sorted(table.entries, key=canonical_order) for line in _row(entry)]
    lines += [f"invalid: {error.where}: {error.reason}" for error in table.errors]
    return as_lines(lines)


def _row(entry: Entry) -> Iterator[str]:
    yield key_in_words(entry)
    yield from (f"  {candidate_in_words(candidate)}" for candidate in entry.candidates)
    if entry.problems is not None:
        yield f"  measured problems: {entry.problems}"
    if entry.note is not None:
        yield f"  note: {entry.note}"


def _listed(value: str | list[str]) -> str:
    return value if isinstance(value, str) else ", ".join(value)
