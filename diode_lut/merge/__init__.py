"""Merging tables: two people's changes to the same table, or two contributions."""

from __future__ import annotations

from diode_lut.merge.merge import Merged, merge
from diode_lut.merge.rows import Remark

__all__ = ["Merged", "Remark", "merge"]
