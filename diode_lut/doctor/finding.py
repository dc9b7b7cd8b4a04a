"""One thing that doctor found."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """``state`` is ``ok``, ``note`` for what may be meant so, or ``wrong``; then ``remedy`` says what to do."""

    topic: str
    state: str
    text: str
    remedy: str = ""


def fine(topic: str, text: str) -> Finding:
    """It is as it should be."""
    return Finding(topic, "ok", text)


def note(topic: str, text: str) -> Finding:
    """It is worth knowing."""
    return Finding(topic, "note", text)


def wrong(topic: str, text: str, remedy: str) -> Finding:
    """It keeps tables from being used, or may."""
    return Finding(topic, "wrong", text, remedy)
