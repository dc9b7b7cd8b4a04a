"""The report: one HTML page with charts of a table, and of its choices on measured problems."""

from __future__ import annotations

from diode_lut.report.html import as_page
from diode_lut.report.page import Asked, Side, as_data

__all__ = ["Asked", "Side", "as_data", "as_page"]
