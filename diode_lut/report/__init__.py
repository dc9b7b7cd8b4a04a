"""A report: one page that shows a table, and what it is worth on measured problems, to people who would rather look."""

from __future__ import annotations

from diode_lut.report.data import as_data
from diode_lut.report.page import as_page

__all__ = ["as_data", "as_page"]
