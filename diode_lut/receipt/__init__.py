"""Receipts: what processes asked, who answered, and what was left to Inductor."""

from __future__ import annotations

from diode_lut.receipt.receipt import Device, Receipt, merge_receipts
from diode_lut.receipt.recorder import record, record_devices, record_skipped, record_sources

__all__ = ["Device", "Receipt", "merge_receipts", "record", "record_devices", "record_skipped", "record_sources"]
