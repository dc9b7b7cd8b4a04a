"""Problem files: JSON lists of products to measure, or a receipt, whose misses they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from diode_lut.bounded import has_more_values, read_at_most
from diode_lut.errors import CollectError, ProblemError
from diode_lut.problem import Hardware, Problem
from diode_lut.receipt import Receipt
from diode_lut.receipt.loss import losses
from diode_lut.receipt.read import decode_receipt

_MAX_BYTES = 64 << 20
_MAX_VALUES = 5_000_000

_KEYS = ("op", "dtype", "layout", "B", "M", "N", "K")


def read_problems(path: Path, find_hardware: Callable[[], Hardware] | None = None) -> list[Problem]:
    """The problems of a JSON list of ``{"op", "B", "M", "N", "K", "dtype", "layout"}``, each once, in file order.

    ``align`` may be given too; without it the operands are packed. Other keys are ignored. CollectError, with file,
    index and key, if the file is not such a list or one of its problems cannot exist.

    Of a receipt, what was missed, the most time lost first; on devices like the one that ``find_hardware`` finds, if it
    is given. ReceiptError if the receipt is not valid, CollectError if nothing was missed there.
    """
    data = read_at_most(path, _MAX_BYTES)
    if has_more_values(data, _MAX_VALUES):
        raise CollectError(f"{path}: more than {_MAX_VALUES} values")
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise CollectError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    if isinstance(document, dict) and "schema_version" in document:
        return _misses(decode_receipt(document, str(path)), path, find_hardware() if find_hardware else None)
    if not isinstance(document, list) or not document:
        raise CollectError(f"{path}: expected a list of problems, found {_kind(document)}")
    return list(dict.fromkeys(_problem(fields, f"{path}: [{index}]") for index, fields in enumerate(document)))


def _misses(receipt: Receipt, path: Path, hardware: Hardware | None) -> list[Problem]:
    missed = [miss for miss in losses(receipt) if hardware is None or miss.hardware.kin(hardware)]
    if not missed:
        found = ", ".join(str(device) for device in receipt.devices) or "no device"
        raise CollectError(f"{path}: nothing was missed on {hardware or 'any device'} (the receipt is of: {found})")
    return list(dict.fromkeys(miss.problem for miss in missed))


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
