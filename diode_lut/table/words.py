"""Rows in words, as reports about tables write them."""

from __future__ import annotations

from diode_lut.table.entry import KEY_FIELDS, Candidate, Entry, Range

_NAMED = {"align": "align ", "b": "b ", "m": "m ", "n": "n ", "k": "k "}
"""Fields whose values do not say what they are."""


def key_in_words(entry: Entry) -> str:
    """What the row covers: ``mm bfloat16 nt align 16 m 513-1024 n 4096 k 1-64``."""
    parts = [
        f"{_NAMED.get(name, '')}{_value_in_words(value)}"
        for name, value in zip(KEY_FIELDS, entry.key, strict=True)
        if value is not None
    ]
    return " ".join(parts) or "everything"


def candidate_in_words(candidate: Candidate) -> str:
    """The config, and what it gains over aten: ``triton_mm 128x128x64 g8 s4 w8 (1.063)``."""
    gain = candidate.gain_permille
    return str(candidate.config) if gain is None else f"{candidate.config} ({gain / 1000:.3f})"


def winner_in_words(entry: Entry) -> str:
    """The row's first config, with its gain."""
    return candidate_in_words(entry.candidates[0])


def _value_in_words(value: str | int | Range) -> str:
    if isinstance(value, tuple):
        low, high = value
        return str(low) if low == high else f"{low}-{high}"
    return str(value)
