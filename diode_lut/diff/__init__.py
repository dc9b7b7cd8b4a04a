"""Comparing tables: rows that were added, removed or changed, and the effect on time."""

from __future__ import annotations

from diode_lut.diff.compare import Change, Diff, HeaderChange, compare

__all__ = ["Change", "Diff", "HeaderChange", "compare"]
