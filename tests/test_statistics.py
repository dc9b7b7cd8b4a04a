"""Counting predictions."""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest

from diode_lut.receipt import statistics
from diode_lut.receipt.statistics import (
    count_prediction,
    count_skipped_config,
    count_unserved,
    get_prediction_stats,
    profile_predictions,
)


def test_profile_counts_what_happens_inside() -> None:
    """Only what is counted within the block is in the profile, sorted by who answered."""
    count_prediction("user", 1.0)
    with profile_predictions() as counts:
        count_prediction("device", 0.25)
        count_prediction("device", 0.25)
        count_prediction("same_arch", 0.5)
        count_prediction("model", 0.0, 0.75)
        count_prediction("model", 0.0, 1.0)
        count_prediction("abstain", 1.0)
        count_skipped_config()
        count_unserved()
    count_prediction("user", 1.0)
    count_skipped_config()
    count_unserved()
    assert counts.as_dict() == {
        "total_predictions": 6,
        "hits": {"user": 0, "device": 2, "same_arch": 1, "model": 2},
        "fallbacks": 1,
        "skipped_configs": 1,
        "unserved": 1,
        "seconds": 2.0,
        "avg_confidence": 0.875,
    }


def test_profiles_nest() -> None:
    """An inner block counts for the outer one too, even if both are equal so far."""
    with profile_predictions() as outer:
        with profile_predictions() as inner:
            count_prediction("user", 0.0)
        count_prediction("user", 0.0)
    assert (outer.total_predictions, inner.total_predictions) == (2, 1)


def test_process_counts_go_on() -> None:
    """The process's own counts include everything, and what was handed out does not change later."""
    before = get_prediction_stats()
    with profile_predictions():
        count_prediction("user", 0.5)
    after = get_prediction_stats()
    count_prediction("user", 0.5)
    assert after["total_predictions"] == before["total_predictions"] + 1
    assert after["hits"]["user"] == before["hits"]["user"] + 1
    assert after["seconds"] == before["seconds"] + 0.5


def test_threads_lose_nothing() -> None:
    """Counts from many threads add up."""
    with profile_predictions() as counts, ThreadPoolExecutor(8) as pool:
        for _ in range(4000):
            pool.submit(count_prediction, "user", 0.0)
    assert counts.total_predictions == counts.hits["user"] == 4000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_counts_its_own() -> None:
    """It begins with nothing, and does not wait for a thread of its parent that was counting."""
    count_prediction("user", 0.0)
    with statistics._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            count_prediction("user", 0.0)
            os._exit(get_prediction_stats()["total_predictions"])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_counting_in_the_middle_of_counting() -> None:
    """A signal handler may compile and ask for counts, wherever it strikes: it does not wait for its own thread."""

    def interrupt(frame: FrameType, event: str, _argument: object) -> object:
        if event == "line" and frame.f_code is count_prediction.__code__:
            seen.append(get_prediction_stats()["total_predictions"])
        return interrupt

    def count() -> None:
        sys.settrace(interrupt)
        count_prediction("user", 1.0)

    seen: list[int] = []
    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert seen[-1] == seen[0] + 1
