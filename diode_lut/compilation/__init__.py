"""Compiling the configs of tables, to see which of them a compile could fail on."""

from __future__ import annotations

from diode_lut.compilation.check import check_compiling

__all__ = ["check_compiling"]
