"""Receipts from JSON. A file with any error is refused as a whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import orjson

from diode_lut.errors import ProblemError, ReceiptError
from diode_lut.files import has_more_values, read_at_most
from diode_lut.hardware import Hardware
from diode_lut.problem import ATTENTION_ONLY, MAX_SIZE, NO_EPILOGUE, NO_VARIANT, Problem
from diode_lut.receipts.receipt import (
    MAX_BYTES,
    MAX_PERMILLE,
    MAX_VALUES,
    VERSION,
    Device,
    Hit,
    Miss,
    NoChoice,
    Receipt,
    Skip,
    SourceRecord,
    Unfused,
    Versions,
    merge_receipts,
)
from diode_lut.settings import TIERS

MAX_COUNT = 2**53 - 1
"""Maximum number of calls, processes or nanoseconds (100 days): every JSON reader reads it exactly."""

_KIND = ("op", "dtype", "layout")
_NUMBERS = ("align", "B", "M", "N", "K")
_PROBLEM = (*_KIND, *_NUMBERS)
_MORE_SIZES = tuple(name.upper() for name in ATTENTION_ONLY)
_OPTIONAL = ("epilogue", "variant", *_MORE_SIZES)
_WHO = ("tier", "digest", "row")

T = TypeVar("T")


def read_receipt(path: Path, contents: bytes | None = None) -> Receipt:
    """The receipt in the file; ReceiptError, with the place inside, if it is none or of another version.

    ``contents`` are those of a file that is not on disk.
    """
    data = read_at_most(path, MAX_BYTES) if contents is None else contents
    if has_more_values(data, MAX_VALUES):
        raise ReceiptError(f"{path}: more than {MAX_VALUES} values, too many for a receipt")
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        text = data.isascii() or "�" not in data.decode(errors="replace")
        reason = f"not JSON: {error.msg}" if text else "neither JSON nor text (expected a receipt)"
        raise ReceiptError(f"{path}:{error.lineno}:{error.colno}: {reason}") from None
    return decode_receipt(document, str(path))


def decode_receipt(document: Any, path: str) -> Receipt:
    """The receipt that a JSON document says; ReceiptError, which begins with ``path``, if it is none."""
    try:
        return _receipt(document)
    except _Wrong as wrong:
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in wrong.place)
        raise ReceiptError(": ".join(filter(None, (path, place.lstrip("."), wrong.reason)))) from None


class _Wrong(Exception):  # noqa: N818 (becomes a ReceiptError)
    """A value is not allowed: why, and where, seen from the document."""

    def __init__(self, reason: str, *place: str | int) -> None:
        super().__init__(reason)
        self.reason, self.place = reason, place


@contextmanager
def _inside(*place: str | int) -> Iterator[None]:
    try:
        yield
    except _Wrong as wrong:
        raise _Wrong(wrong.reason, *place, *wrong.place) from None
    except ProblemError as error:
        raise _Wrong(str(error), *place) from None


def _receipt(document: Any) -> Receipt:
    if isinstance(document, dict) and "entries" in document:
        raise _Wrong("a table, not a receipt")
    if isinstance(document, dict) and document.get("schema_version", VERSION) != VERSION:
        found = document["schema_version"]
        remedy = " (written by a newer diode_lut: upgrade)" if type(found) is int and found > VERSION else ""
        raise _Wrong(f"expected {VERSION}, found {found!r:.60}{remedy}", "schema_version")
    fields = _fields(document, ("schema_version", "processes", "selecting_ns", "versions", "devices"))
    _integer(fields, "schema_version", VERSION)
    processes = _integer(fields, "processes")
    selecting_ns = _integer(fields, "selecting_ns", 0)
    versions = dict.fromkeys(_each(fields, "versions", _versions))
    merged = merge_receipts(Receipt(0, devices=dict([device])) for device in _each(fields, "devices", _device))
    return Receipt(processes, versions, selecting_ns, merged.devices)


def _versions(value: Any) -> Versions:
    fields = _fields(value, ("diode_lut", "python"), ("torch", "triton"))
    return Versions(*(_text(fields, name) if name in fields else "" for name in Versions._fields))


def _device(value: Any) -> tuple[Hardware, Device]:
    required = ("hardware", "sources", "left_out", "hits", "misses", "skipped")
    fields = _fields(value, required, ("no_choice", "unfused", "cached"))
    device = Device(dict.fromkeys(_each(fields, "sources", _source)), dict.fromkeys(_each(fields, "left_out", _string)))
    for hit, calls in _each(fields, "hits", _hit):
        device.hits[hit] += calls
    for skip, calls in _each(fields, "skipped", _skip):
        device.skipped[skip] += calls
    for miss, calls, expected in _each(fields, "misses", _miss):
        device.misses[miss] += calls
        if expected is not None:
            device.expect(miss.problem, expected)
    for left, calls in _each(fields, "no_choice", _no_choice) if "no_choice" in fields else ():
        device.no_choice[left] += calls
    for unfused, calls in _each(fields, "unfused", _unfused) if "unfused" in fields else ():
        device.unfused[unfused] += calls
    device.cached = _integer(fields, "cached", 0) if "cached" in fields else 0
    with _inside("hardware"):
        return _hardware(fields["hardware"]), device


def _hardware(value: Any) -> Hardware:
    fields = _fields(value, ("name", "arch", "sm_count"))
    return Hardware.from_json({**fields, "sm_count": _integer(fields, "sm_count", 1, MAX_SIZE)})


def _source(value: Any) -> SourceRecord:
    fields = _fields(value, SourceRecord._fields)
    tier, path, digest = _tier(fields), _text(fields, "path"), _text(fields, "digest")
    return SourceRecord(tier, path, digest, _integer(fields, "rows", 0))


def _hit(value: Any) -> tuple[Hit, int]:
    fields = _fields(value, (*_PROBLEM, "calls", *_WHO, "configs"), (*_OPTIONAL, "over"))
    configs = tuple(_each(fields, "configs", _string))
    if not configs:
        raise _Wrong("is empty", "configs")
    return Hit(_problem(fields), *_who(fields), configs, _over(fields)), _integer(fields, "calls")


def _miss(value: Any) -> tuple[Miss, int, int | None]:
    fields = _fields(value, (*_PROBLEM, "calls"), (*_OPTIONAL, "over", "expected_permille"))
    expected = _integer(fields, "expected_permille", 1, MAX_PERMILLE) if "expected_permille" in fields else None
    return Miss(_problem(fields), _over(fields)), _integer(fields, "calls"), expected


def _over(fields: dict[str, Any]) -> str:
    over = _text(fields, "over") if "over" in fields else ""
    if "over" in fields and not over:
        raise _Wrong("is left out where no size may change, not empty", "over")
    return over


def _skip(value: Any) -> tuple[Skip, int]:
    fields = _fields(value, (*_PROBLEM, "calls", *_WHO, "config", "reason"), _OPTIONAL)
    config, reason = _text(fields, "config"), _text(fields, "reason")
    return Skip(_problem(fields), *_who(fields), config, reason), _integer(fields, "calls")


def _no_choice(value: Any) -> tuple[NoChoice, int]:
    fields = _fields(value, (*_PROBLEM, "calls", "reason"), _OPTIONAL)
    return NoChoice(_problem(fields), _text(fields, "reason")), _integer(fields, "calls")


def _unfused(value: Any) -> tuple[Unfused, int]:
    fields = _fields(value, (*_PROBLEM, "calls", "reason"), _OPTIONAL)
    return Unfused(_problem(fields), _text(fields, "reason")), _integer(fields, "calls")


def _problem(fields: dict[str, Any]) -> Problem:
    op, dtype, layout = (fields[name] for name in _KIND)
    align, b, m, n, k = (_integer(fields, name, 1, MAX_SIZE) for name in _NUMBERS)
    epilogue = fields.get("epilogue", NO_EPILOGUE)
    if "epilogue" in fields and epilogue == NO_EPILOGUE:
        raise _Wrong(f"is left out where there is none, not {NO_EPILOGUE!r}", "epilogue")
    variant = fields.get("variant", NO_VARIANT)
    if "variant" in fields and variant == NO_VARIANT:
        raise _Wrong("is left out where there is none, not empty", "variant")
    more = {name.lower(): _integer(fields, name, 1, MAX_SIZE) for name in _MORE_SIZES if name in fields}
    with _inside():
        return Problem.checked(op, dtype, layout, align, b, m, n, k, epilogue, variant, **more)


def _who(fields: dict[str, Any]) -> tuple[str, str, str]:
    return _tier(fields), _text(fields, "digest"), _text(fields, "row")


def _tier(fields: dict[str, Any]) -> str:
    tier = _text(fields, "tier")
    if tier not in TIERS:
        raise _Wrong(f"{tier!r:.60} is not one of {', '.join(TIERS)}", "tier")
    return tier


def _each(fields: dict[str, Any], name: str, decode: Callable[[Any], T]) -> Iterator[T]:
    values = fields[name]
    if not isinstance(values, list):
        raise _Wrong("is not a list", name)
    for number, value in enumerate(values):
        with _inside(name, number):
            yield decode(value)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Wrong("is not an object")
    return value


def _fields(value: Any, required: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
    fields = _object(value)
    for name in required:
        if name not in fields:
            raise _Wrong(f"is missing (required: {', '.join(required)})", name)
    for name in fields:
        if name not in required and name not in optional:
            raise _Wrong(f"unknown field (known: {', '.join((*required, *optional))})", name)
    return fields


def _integer(fields: dict[str, Any], name: str, low: int = 1, high: int = MAX_COUNT) -> int:
    value = fields[name]
    if type(value) not in (int, float) or value != value // 1 or not low <= value <= high:
        raise _Wrong(f"{value!r:.60} is not an integer from {low} to {high}", name)
    return int(value)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise _Wrong(f"{value!r:.60} is not text")
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    with _inside(name):
        return _string(fields[name])
