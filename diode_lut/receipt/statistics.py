"""Counting what was asked and who answered, in all threads of this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from diode_lut.selection.selector import ABSTAIN
from diode_lut.settings import TIERS


@dataclass(eq=False)
class Counts:
    """Predictions asked for, and how they were answered.

    ``hits`` counts answers per tier, ``fallbacks`` those that were left to Inductor, ``skipped_configs`` the configs
    of answers that could not run and gave way to the next, ``unserved`` the answers of which none could run, so that
    Inductor chose after all. ``seconds`` is the wall time spent on selecting, the
    reading of tables at first use included. ``avg_confidence`` is that of the model's answers, 0 without any.
    """

    total_predictions: int = 0
    hits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TIERS, 0))
    fallbacks: int = 0
    skipped_configs: int = 0
    unserved: int = 0
    seconds: float = 0.0
    avg_confidence: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """A copy as plain values, consistent in itself."""
        with _lock:
            return {**vars(self), "hits": dict(self.hits)}


def count_prediction(tier: str, seconds: float, confidence: float | None = None) -> None:
    """One decision of ``tier``, which took so many seconds; a model's has a confidence."""
    with _lock:
        for counts in _counting:
            counts.total_predictions += 1
            counts.seconds += seconds
            if tier == ABSTAIN:
                counts.fallbacks += 1
            else:
                counts.hits[tier] += 1
            if confidence is not None:
                counts.avg_confidence += (confidence - counts.avg_confidence) / counts.hits[tier]


def count_skipped_config() -> None:
    """One config that was answered and could not run."""
    with _lock:
        for counts in _counting:
            counts.skipped_configs += 1


def count_unserved() -> None:
    """One answer of which no config could run."""
    with _lock:
        for counts in _counting:
            counts.unserved += 1


def get_prediction_stats() -> dict[str, Any]:
    """The counts since the process began, by the names of Counts' attributes."""
    return _counting[0].as_dict()


@contextmanager
def profile_predictions() -> Iterator[Counts]:
    """Count what happens within the ``with`` block, in any thread; the counts stay readable after it."""
    counts = Counts()
    with _lock:
        _counting.append(counts)
    try:
        yield counts
    finally:
        with _lock:
            _counting.remove(counts)


def _begin_anew() -> None:
    """A forked process counts its own, and nobody holds its lock."""
    global _lock
    _lock = threading.RLock()
    _counting[0] = Counts()


_lock = threading.RLock()
"""Of the kind that a thread can take again: a signal handler that compiles, or asks for counts, may come in between."""
_counting = [Counts()]
"""Everything that counts right now, first of all the process."""
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_begin_anew)
