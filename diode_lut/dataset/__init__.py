"""Datasets: files of timings with the hardware and software of the measurement."""

from __future__ import annotations

from diode_lut.dataset.dataset import REASONS, SOFTWARE, STAGES, Dataset, Header, Lost, Record, Timing
from diode_lut.dataset.read import is_dataset, read_dataset
from diode_lut.dataset.write import DatasetWriter, Packed, pack

__all__ = [
    "REASONS",
    "SOFTWARE",
    "STAGES",
    "Dataset",
    "DatasetWriter",
    "Header",
    "Lost",
    "Packed",
    "Record",
    "Timing",
    "is_dataset",
    "pack",
    "read_dataset",
]
