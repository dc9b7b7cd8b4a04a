"""torch-diode's datasets, which ``read_dataset`` reads as they are."""

from __future__ import annotations

from pathlib import Path

from diode_lut.dataset import read_dataset
from diode_lut.exchange.formats import Facts, Skipped, Timings, known_hardware


def read(path: Path, facts: Facts, skipped: Skipped) -> Timings:
    """The timings of the hardware that was named."""
    dataset = read_dataset(path, hardware=known_hardware(facts, path), layout=facts.layout or "nn")
    records = list(dataset)
    skipped += dataset.skipped
    return Timings(dataset.header, records)
