"""Problem files: JSON lists of products to measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from diode_lut.errors import CollectError, ProblemError
from diode_lut.problem import Problem

_KEYS = ("op", "dtype", "layout", "B", "M", "N", "K")


def read_problems(path: Path) -> list[Problem]:
    """The problems of a JSON list of ``{"op", "B", "M", "N", "K", "dtype", "layout"}``, each once, in file order.

    ``align`` may be given too; without it the operands are packed. Other keys are ignored. CollectError, with file,
    index and key, if the file is not such a list or one of its problems cannot exist.
    """
    try:
        document = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise CollectError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    if not isinstance(document, list) or not document:
        raise CollectError(f"{path}: expected a list of problems, found {_kind(document)}")
    return list(dict.fromkeys(_problem(fields, f"{path}: [{index}]") for index, fields in enumerate(document)))


def _problem(fields: Any, where: str) -> Problem:
    if not isinstance(fields, dict):
        raise CollectError(f"{where}: expected an object with {', '.join(_KEYS)}, found {_kind(fields)}")
    missing = [key for key in _KEYS if key not in fields]
    if missing:
        raise CollectError(f"{where}.{missing[0]}: missing (needed: {', '.join(_KEYS)})")
    op, dtype, layout, b, m, n, k = (fields[key] for key in _KEYS)
    try:
        return Problem.of(op, m, n, k, dtype=dtype, layout=layout, b=b, align=fields.get("align"))
    except ProblemError as error:
        raise CollectError(f"{where}.{error}") from error


def _kind(value: Any) -> str:
    return "an empty list" if value == [] else type(value).__name__
