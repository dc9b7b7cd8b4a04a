"""JSON files of other tools."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any

from diode_lut.bounded import has_more_values, read_at_most
from diode_lut.errors import ExchangeError
from diode_lut.exchange.formats import Facts
from diode_lut.problem import Hardware

NANOSECONDS = 1e6
"""In one of the milliseconds that other tools count in."""

_LARGEST = 1e300
_MAX_BYTES = 1 << 30
_MAX_VALUES = 50_000_000
"""A million timings as T4 results are fewer."""

_LONGEST_LITERAL = 4096


def literal(text: str) -> Any:
    """The value of a Python literal, of which nothing is run; ValueError for anything else."""
    if len(text) > _LONGEST_LITERAL:
        raise ValueError(f"{len(text)} characters, which no shapes have")
    try:
        return ast.literal_eval(text)
    except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"{text[:60]!r} is no literal") from error


def nanoseconds(milliseconds: Any) -> float:
    """NaN, which is no time, for what is no number or too large for one."""
    known = type(milliseconds) in (int, float) and abs(milliseconds) < _LARGEST
    return milliseconds * NANOSECONDS if known else math.nan


def read_json(path: Path, kind: type, what: str) -> Any:
    """The document, of this kind, with NaN and Infinity allowed; ExchangeError says that ``what`` was expected."""
    data = read_at_most(path, _MAX_BYTES)
    if has_more_values(data, _MAX_VALUES):
        raise ExchangeError(f"{path}: more than {_MAX_VALUES} values (expected {what})")
    try:
        document = json.loads(data)
    except RecursionError:
        raise ExchangeError(f"{path}: nested too deeply (expected {what})") from None
    except ValueError as error:
        raise ExchangeError(f"{path}: not JSON: {error} (expected {what})") from None
    if not isinstance(document, kind):
        raise ExchangeError(f"{path}: not {what}")
    return document


def known_hardware(facts: Facts, path: Path) -> Hardware:
    """The hardware that the user named; ExchangeError asks for it."""
    if facts.hardware is None:
        raise ExchangeError(
            f"{path}: does not say what it was measured on: give --hardware, as a table's name or as "
            "'NVIDIA H200,sm_90,132'"
        )
    return facts.hardware
