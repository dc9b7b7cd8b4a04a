"""A receipt in figures, for programs."""

from __future__ import annotations

from typing import Any

from diode_lut.domain.hardware import Hardware
from diode_lut.domain.printable import as_json as printable_as_json
from diode_lut.receipt.encode import hardware_to_json, versions_to_json
from diode_lut.receipt.loss import losses
from diode_lut.receipt.receipt import Device, Receipt
from diode_lut.settings import TIERS


def calls_by_tier(device: Device) -> dict[str, int]:
    """How many calls each tier answered."""
    calls = dict.fromkeys(TIERS, 0)
    for hit, count in device.hits.items():
        calls[hit.tier] += count
    return calls


def as_json(receipt: Receipt) -> str:
    """Of each device the calls and who answered them, and all misses, the most time lost first."""
    report = {
        "processes": receipt.processes,
        "selecting_ns": receipt.selecting_ns,
        "versions": [versions_to_json(versions) for versions in sorted(receipt.versions)],
        "devices": [_device(hardware, device) for hardware, device in sorted(receipt.devices.items())],
        "missed": [
            {
                **loss.problem.to_json(),
                "calls": loss.calls,
                "hardware": loss.hardware.name,
                "lost_ns": round(loss.nanoseconds),
                "estimate": "model" if loss.by_model else "typical",
            }
            for loss in losses(receipt)
        ],
    }
    return printable_as_json(report)


def _device(hardware: Hardware, device: Device) -> dict[str, Any]:
    return {
        "hardware": hardware_to_json(hardware),
        "calls": device.calls,
        "answered": device.hits.total(),
        "hits": calls_by_tier(device),
        "skipped_configs": device.skipped.total(),
        "sources": [source._asdict() for source in sorted(device.sources)],
        "left_out": sorted(device.left_out),
    }
