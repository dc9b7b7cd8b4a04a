"""The report: one HTML page with charts of a table, and of its choices on measured problems."""

from __future__ import annotations

from diode_lut.report.page import as_data, as_page

__all__ = ["as_data", "as_page"]
