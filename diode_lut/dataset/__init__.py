"""Datasets: files of timings with the hardware and software of the measurement."""

from __future__ import annotations

from diode_lut.dataset.dataset import REASONS, SOFTWARE, STAGES, Dataset, Header, Lost, Record, Timing
from diode_lut.dataset.stream import DatasetWriter, Packed, is_dataset, pack, read_dataset

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
