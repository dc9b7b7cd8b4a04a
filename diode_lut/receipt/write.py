"""Receipts as JSON, in canonical form with a line for each answer, for ``grep`` and ``diff``."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import orjson

from diode_lut.domain.hardware import Hardware
from diode_lut.io.files import has_more_values
from diode_lut.io.log import warn_once
from diode_lut.receipt.receipt import Device, Hit, NoChoice, Receipt, Skip, SourceRecord, Unfused, Versions

VERSION = 1
"""The version of the format."""

MAX_BYTES = 64 * 2**20
MAX_VALUES = 5_000_000
"""Readers refuse larger files."""


def receipt_bytes(receipt: Receipt) -> bytes:
    """The content of the file; equal receipts have the same content.

    Of a receipt that readers would refuse, what was asked least is left out, half of it at a time, with a warning.
    """
    data = _encoded(receipt)
    while len(data) > MAX_BYTES or has_more_values(data, MAX_VALUES):
        before = sum(len(counts) for device in receipt.devices.values() for _, counts in _counters(device))
        if not before:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        receipt = replace(receipt, devices={name: _half(device) for name, device in receipt.devices.items()})
        warn_once(f"a receipt has room for about half of {before} entries: those asked least are left out")
        data = _encoded(receipt)
    return data


def _half(device: Device) -> Device:
    """The entries with the higher counts; of equal ones, the first."""
    halves: dict[str, Any] = {
        name: Counter(dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: len(counts) // 2]))
        for name, counts in _counters(device)
    }
    return replace(device, **halves)


def _counters(device: Device) -> list[tuple[str, Counter[Any]]]:
    return [(name, value) for name, value in vars(device).items() if isinstance(value, Counter)]


def _encoded(receipt: Receipt) -> bytes:
    devices = ",\n".join(
        "{\n" + ",\n".join(_device_fields(hardware, device)) + "\n}"
        for hardware, device in sorted(receipt.devices.items(), key=lambda item: item[0])
    )
    fields = [
        f'"schema_version": {VERSION}',
        f'"processes": {receipt.processes}',
        f'"selecting_ns": {receipt.selecting_ns}',
        f'"versions": {_lines(map(versions_to_json, sorted(receipt.versions)))}',
        f'"devices": [{devices}]',
    ]
    return ("{\n" + ",\n".join(fields) + "\n}\n").encode()


def _device_fields(hardware: Hardware, device: Device) -> Iterator[str]:
    yield f'"hardware": {_dumps(hardware_to_json(hardware))}'
    yield f'"sources": {_lines(map(SourceRecord._asdict, sorted(device.sources)))}'
    yield f'"left_out": {_lines(sorted(device.left_out))}'
    yield f'"hits": {_lines(_hit_to_json(hit, calls) for hit, calls in sorted(device.hits.items()))}'
    yield f'"misses": {_lines(_misses_to_json(device))}'
    yield f'"skipped": {_lines(_skip_to_json(skip, calls) for skip, calls in sorted(device.skipped.items()))}'
    yield f'"no_choice": {_lines(_left_to_json(each, calls) for each, calls in sorted(device.no_choice.items()))}'
    yield f'"unfused": {_lines(_left_to_json(each, calls) for each, calls in sorted(device.unfused.items()))}'
    yield f'"cached": {device.cached}'


def versions_to_json(versions: Versions) -> dict[str, str]:
    """The fields of the JSON object; software that was not loaded is left out."""
    return {name: version for name, version in versions._asdict().items() if version}


def hardware_to_json(hardware: Hardware) -> dict[str, Any]:
    """The fields of the JSON object, without aliases, which only tables have."""
    return {"name": hardware.name, "arch": hardware.arch, "sm_count": hardware.sm_count}


def _misses_to_json(device: Device) -> Iterator[dict[str, Any]]:
    """Problems as ``collect`` takes them, with their calls, and with the gain that a model expects, if one does."""
    for (problem, over), calls in sorted(device.misses.items()):
        expected = device.expected_permille.get(problem)
        more = {} if expected is None else {"expected_permille": expected}
        yield {**problem.to_json(), **over_to_json(over), "calls": calls, **more}


def over_to_json(over: str) -> dict[str, str]:
    """The field of the JSON object that says for which sizes it is; none where no size may change."""
    return {"over": over} if over else {}


def _hit_to_json(hit: Hit, calls: int) -> dict[str, Any]:
    who = {"tier": hit.tier, "digest": hit.digest, "row": hit.row}
    return {**hit.problem.to_json(), **over_to_json(hit.over), "calls": calls, **who, "configs": hit.configs}


def _skip_to_json(skip: Skip, calls: int) -> dict[str, Any]:
    who = {"tier": skip.tier, "digest": skip.digest, "row": skip.row}
    return {**skip.problem.to_json(), "calls": calls, **who, "config": skip.config, "reason": skip.reason}


def _left_to_json(left: NoChoice | Unfused, calls: int) -> dict[str, Any]:
    return {**left.problem.to_json(), "calls": calls, "reason": left.reason}


def _lines(values: Iterable[Any]) -> str:
    lines = ",\n".join(map(_dumps, values))
    return f"[\n{lines}\n]" if lines else "[]"


def _dumps(value: Any) -> str:
    return orjson.dumps(value).decode()
