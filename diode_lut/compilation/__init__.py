"""Compiling the configs of tables, to find those that do not compile."""

from __future__ import annotations

from diode_lut.compilation.check import check_compiling

__all__ = ["check_compiling"]
