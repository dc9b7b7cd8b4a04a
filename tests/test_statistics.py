"""Counting decisions."""

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest

from diode_lut import get_prediction_stats, profile_predictions
from diode_lut.decide.decide import Sources, Tier, decide
from diode_lut.decide.sources import ABSTAIN, Decision, ModelSource
from diode_lut.receipts import recorder
from diode_lut.templates.config import ATEN
from tests.model.small import H200, MM, model


def answered(tier: str) -> Decision:
    """What a table of the tier answers."""
    return Decision(MM, H200, tier, (ATEN,), None, None, ())


def answered_by_a_model(confidence: float) -> Decision:
    return decide(Sources(H200, [Tier("model", (ModelSource(model(confidence=confidence), H200),))]), MM).decision


MISS = Decision(MM, H200, ABSTAIN, (), None, None, ())


def test_profile_counts_what_happens_inside() -> None:
    """Only what happens within the block is in the profile, sorted by who answered."""
    recorder.decided(answered("user"), 1.0)
    sure, surer = answered_by_a_model(0.96), answered_by_a_model(0.98)
    with profile_predictions() as counts:
        recorder.decided(answered("device"), 0.25)
        recorder.decided(answered("device"), 0.25)
        recorder.decided(answered("same_arch"), 0.5)
        recorder.decided(sure, 0.0)
        recorder.decided(surer, 0.0)
        recorder.decided(MISS, 1.0)
        recorder.skipped(answered("device"), ATEN, "no library")
        recorder.served(answered("device"), ())
        recorder.served(answered("device"), (ATEN,))
        recorder.served(MISS, ())
    recorder.decided(answered("user"), 1.0)
    recorder.skipped(answered("user"), ATEN, "no library")
    recorder.served(answered("user"), ())
    assert counts.as_dict() == {
        "total_predictions": 6,
        "hits": {"user": 0, "device": 2, "same_arch": 1, "chooser": 0, "model": 2},
        "fallbacks": 1,
        "skipped_configs": 1,
        "unserved": 1,
        "no_choice": 0,
        "cached": 0,
        "seconds": 2.0,
        "avg_confidence": pytest.approx((sure.confidence or 0) / 2 + (surer.confidence or 0) / 2),
    }


def test_profiles_nest() -> None:
    """An inner block counts for the outer one too, even if both are equal so far."""
    with profile_predictions() as outer:
        with profile_predictions() as inner:
            recorder.decided(MISS, 0.0)
        recorder.decided(MISS, 0.0)
    assert (outer.total_predictions, inner.total_predictions) == (2, 1)


def test_process_counts_go_on() -> None:
    """The process's own counts include everything, and what was handed out does not change later."""
    before = get_prediction_stats()
    with profile_predictions():
        recorder.decided(answered("user"), 0.5)
    after = get_prediction_stats()
    recorder.decided(answered("user"), 0.5)
    assert after["total_predictions"] == before["total_predictions"] + 1
    assert after["hits"]["user"] == before["hits"]["user"] + 1
    assert after["seconds"] == before["seconds"] + 0.5


def test_the_receipt_has_the_same_time() -> None:
    """A receipt's time of selecting is that of the statistics."""
    recorder.decided(MISS, 0.25)
    assert recorder.own_receipt().selecting_ns == round(get_prediction_stats()["seconds"] * 1e9)


def test_threads_lose_nothing() -> None:
    """Counts from many threads add up."""
    decision = answered("user")
    with profile_predictions() as counts, ThreadPoolExecutor(8) as pool:
        for _ in range(4000):
            pool.submit(recorder.decided, decision, 0.0)
    assert counts.total_predictions == counts.hits["user"] == 4000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_counts_its_own() -> None:
    """It begins with nothing, and does not wait for a thread of its parent that was counting."""
    recorder.decided(MISS, 0.0)
    with recorder._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            recorder.decided(MISS, 0.0)
            os._exit(get_prediction_stats()["total_predictions"])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_counting_in_the_middle_of_counting() -> None:
    """A signal handler may compile and ask for counts, wherever it strikes: it does not wait for its own thread."""

    def interrupt(frame: FrameType, event: str, _argument: object) -> object:
        if event == "line" and frame.f_code is recorder.decided.__code__:
            seen.append(get_prediction_stats()["total_predictions"])
        return interrupt

    def count() -> None:
        sys.settrace(interrupt)
        recorder.decided(answered("user"), 1.0)

    seen: list[int] = []
    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert seen[-1] == seen[0] + 1
