"""Tables: kernels for GEMMs, in a form for people to read, edit and review."""

from __future__ import annotations

from diode_lut.table.read import read_hardware, read_table
from diode_lut.table.row import Candidate, Entry, Range, of_kind
from diode_lut.table.table import Table, placed, to_bytes, write_table

__all__ = [
    "Candidate",
    "Entry",
    "Range",
    "Table",
    "of_kind",
    "placed",
    "read_hardware",
    "read_table",
    "to_bytes",
    "write_table",
]
