"""Comparing tables: which rows came, went and changed, and what that does to time."""

from __future__ import annotations

from diode_lut.diff.compare import Change, Diff, HeaderChange, compare

__all__ = ["Change", "Diff", "HeaderChange", "compare"]
