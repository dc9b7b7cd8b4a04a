"""JSON files of other tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diode_lut.errors import ExchangeError
from diode_lut.exchange.formats import Facts
from diode_lut.problem import Hardware


def read_json(path: Path, kind: type, what: str) -> Any:
    """The document, of this kind, with NaN and Infinity allowed; ExchangeError says that ``what`` was expected."""
    try:
        document = json.loads(path.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
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
