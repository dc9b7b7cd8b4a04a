"""What processes asked and got: the receipt of one process, or of many that were merged."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import orjson

from diode_lut.files import has_more_values
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.process import warn_once

MAX_PERMILLE = 1_000_000
"""Maximum gain in a receipt, in thousandths."""


class Versions(NamedTuple):
    """The software of a process; ``torch`` and ``triton`` are empty where they were not loaded."""

    diode_lut: str
    python: str
    torch: str
    triton: str


class SourceRecord(NamedTuple):
    """A table or model that could answer: its tier, its file, the file's SHA-256, its rows (0 for a model)."""

    tier: str
    path: str
    digest: str
    rows: int


class Hit(NamedTuple):
    """An answer that was used: the tier, the digest of the file and the row that answered, and what Inductor got.

    ``row`` is the row's key as text, empty where a model answered. ``configs`` are texts, best first; with the setting
    ``top_k`` at 1 there is one. ``over`` says for which sizes they are, where sizes may change; the problem then has
    one of these. It is empty where none may.
    """

    problem: Problem
    tier: str
    digest: str
    row: str
    configs: tuple[str, ...]
    over: str = ""


class Miss(NamedTuple):
    """A problem that was left to Inductor; ``over`` is as in Hit."""

    problem: Problem
    over: str = ""


class Skip(NamedTuple):
    """A config of an answer that could not run, and the reason as text."""

    problem: Problem
    tier: str
    digest: str
    row: str
    config: str
    reason: str


class Unfused(NamedTuple):
    """A matmul behind which nothing was fused, and the reason as text.

    The problem has the class of the epilogue that was refused, or none where it did not come to that.
    """

    problem: Problem
    reason: str


class NoChoice(NamedTuple):
    """A problem that was left to Inductor without asking tables and models, and the reason as text.

    Where sizes may change, the problem has some of them.
    """

    problem: Problem
    reason: str


ONLY_THE_LIBRARY = "Inductor has only the library's kernel"
FREEZABLE = "Inductor has only the library's kernel, because weights are not frozen"
"""Reasons of NoChoice. With the second, Inductor would have a choice if freezing were on in the compiling thread."""


@dataclass
class Device:
    """What was asked for one kind of hardware. The counters count questions of Inductor's.

    ``left_out`` are the reasons why other tables and models could not answer. ``misses`` were left to Inductor. For
    misses that a model knows, ``expected_permille`` is the gain over aten that it expects of its first config, in
    thousandths. ``no_choice`` are those that no table could change anything about; they are not among the calls.
    ``unfused`` has the matmuls that could have had an epilogue fused by the hook, but have none.
    ``cached`` counts what was decided in an earlier compile, whose graph came from a cache: calls and ``no_choice``.
    """

    sources: dict[SourceRecord, None] = field(default_factory=dict)
    left_out: dict[str, None] = field(default_factory=dict)
    hits: Counter[Hit] = field(default_factory=Counter)
    misses: Counter[Miss] = field(default_factory=Counter)
    expected_permille: dict[Problem, int] = field(default_factory=dict)
    skipped: Counter[Skip] = field(default_factory=Counter)
    no_choice: Counter[NoChoice] = field(default_factory=Counter)
    unfused: Counter[Unfused] = field(default_factory=Counter)
    cached: int = 0

    @property
    def calls(self) -> int:
        """How often Inductor asked."""
        return self.hits.total() + self.misses.total()

    def add(self, other: Device) -> None:
        """Take in what another process asked for the same hardware."""
        self.sources.update(other.sources)
        self.left_out.update(other.left_out)
        self.hits.update(other.hits)
        self.misses.update(other.misses)
        self.skipped.update(other.skipped)
        self.no_choice.update(other.no_choice)
        self.unfused.update(other.unfused)
        self.cached += other.cached
        for problem, permille in other.expected_permille.items():
            self.expect(problem, permille)

    def expect(self, problem: Problem, permille: int) -> None:
        """Note the gain that a model expects for a problem; of several models, the largest."""
        highest = max(permille, self.expected_permille.get(problem, 1))
        self.expected_permille[problem] = min(highest, MAX_PERMILLE)


@dataclass
class Receipt:
    """What a number of processes asked, for each hardware; ``selecting_ns`` is the time that selecting took."""

    processes: int = 1
    versions: dict[Versions, None] = field(default_factory=dict)
    selecting_ns: int = 0
    devices: dict[Hardware, Device] = field(default_factory=dict)


def merge_receipts(receipts: Iterable[Receipt]) -> Receipt:
    """All receipts as one; in any order, the same file comes out."""
    merged = Receipt(0)
    for receipt in receipts:
        merged.processes += receipt.processes
        merged.versions.update(receipt.versions)
        merged.selecting_ns += receipt.selecting_ns
        for hardware, device in receipt.devices.items():
            merged.devices.setdefault(hardware, Device()).add(device)
    return merged


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
