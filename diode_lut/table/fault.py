"""What can be wrong inside a table, and how messages say it."""

from __future__ import annotations

import json
from collections.abc import Iterable

from diode_lut.table.position import JsonPath

MAX_SHOWN = 60
"""How many characters of a wrong value a message repeats."""


class Fault(Exception):  # noqa: N818 (checks list faults as values; only decoding raises them)
    """A value is not allowed: why, and the path to it from the value that was to be decoded.

    A ``note`` says something about a check, and that nothing is wrong.
    """

    def __init__(self, reason: str, *path: str | int, note: bool = False) -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path: JsonPath = path
        self.note = note

    def inside(self, *outer: str | int) -> Fault:
        """The same fault, seen from further out."""
        return Fault(self.reason, *outer, *self.path, note=self.note)


def shown(value: object) -> str:
    """A wrong value for a message: as JSON has it, unless it is large."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list) and (len(value) > 2 or any(isinstance(item, (dict, list)) for item in value)):
        return f"a list of {len(value)}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def unknown_field(known: Iterable[str]) -> str:
    """Why a field that is not in ``known`` is wrong."""
    return f"unknown field (known: {', '.join(known)})"


def missing_field(required: Iterable[str]) -> str:
    """Why it is wrong that one of the ``required`` fields is not there."""
    return f"is missing (required: {', '.join(required)})"
