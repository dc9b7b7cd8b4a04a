"""Receipts: the questions of one process or of many, and their answers. Here they are counted, merged and written."""

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
from diode_lut.log import warn_once
from diode_lut.problem import Problem

MAX_PERMILLE = 1_000_000
"""Maximum gain in a receipt, in thousandths."""


class Versions(NamedTuple):
    """The software of a process. ``torch`` and ``triton`` are empty if they were not loaded."""

    diode_lut: str
    python: str
    torch: str
    triton: str


class SourceRecord(NamedTuple):
    """A table or model with its tier, its file, the file's SHA-256, and its number of rows (0 for a model)."""

    tier: str
    path: str
    digest: str
    rows: int


class Hit(NamedTuple):
    """An answer in use: its tier, the digest of its file, its row, and the configs that Inductor got.

    ``row`` is the row's key as text, empty for a model. ``configs`` are texts, best first. With the setting ``top_k``
    at 1 there is a single config. For a problem with dynamic sizes, ``over`` is the range of sizes that the configs
    are for, and the problem has a size in it. Otherwise ``over`` is empty.
    """

    problem: Problem
    tier: str
    digest: str
    row: str
    configs: tuple[str, ...]
    over: str = ""


class Miss(NamedTuple):
    """A problem left to Inductor. ``over`` is as in Hit."""

    problem: Problem
    over: str = ""


class Skip(NamedTuple):
    """A config of an answer, and the reason why it could not run, as text."""

    problem: Problem
    tier: str
    digest: str
    row: str
    config: str
    reason: str


class Unfused(NamedTuple):
    """A matmul without a fused epilogue, and the reason as text.

    The problem has the class of the refused epilogue, or none if no class was asked about.
    """

    problem: Problem
    reason: str


class NoChoice(NamedTuple):
    """A problem left to Inductor without a question to tables and models, and the reason as text.

    For dynamic sizes, the problem has sizes in their range.
    """

    problem: Problem
    reason: str


class GeneratedKernel(NamedTuple):
    """A kernel that Inductor generated, with one config of an answer, or left to it for a reason.

    ``tier``, ``digest`` and ``row`` are those of the answer, as in Hit. Either ``config`` or ``reason`` is empty.
    """

    problem: Problem
    tier: str
    digest: str
    row: str
    config: str
    reason: str


ONLY_THE_LIBRARY = "Inductor has only the library's kernel"
FREEZABLE = "Inductor has only the library's kernel, because weights are not frozen"
"""Reasons of NoChoice. In the second case, freezing in the compiling thread would give Inductor a choice."""


@dataclass
class Device:
    """The questions about one kind of hardware. The counters count Inductor's questions.

    ``left_out`` are the reasons why other tables and models could not answer. ``misses`` were left to Inductor. If a
    model knows a missed problem, ``expected_permille`` is its expected gain over aten, in thousandths. No table could
    change anything about ``no_choice``, so these are not among the calls. ``unfused`` has matmuls for which the hook
    could have fused an epilogue, but did not. ``generated`` has kernels that Inductor generated, which no other number
    counts. ``cached`` counts the calls and ``no_choice`` of an earlier compile,
    whose graph came from a cache.
    """

    sources: dict[SourceRecord, None] = field(default_factory=dict)
    left_out: dict[str, None] = field(default_factory=dict)
    hits: Counter[Hit] = field(default_factory=Counter)
    misses: Counter[Miss] = field(default_factory=Counter)
    expected_permille: dict[Problem, int] = field(default_factory=dict)
    skipped: Counter[Skip] = field(default_factory=Counter)
    no_choice: Counter[NoChoice] = field(default_factory=Counter)
    unfused: Counter[Unfused] = field(default_factory=Counter)
    generated: Counter[GeneratedKernel] = field(default_factory=Counter)
    cached: int = 0

    @property
    def calls(self) -> int:
        """The number of questions."""
        return self.hits.total() + self.misses.total()

    def add(self, other: Device) -> None:
        """Add the questions of another process about the same hardware."""
        self.sources.update(other.sources)
        self.left_out.update(other.left_out)
        self.hits.update(other.hits)
        self.misses.update(other.misses)
        self.skipped.update(other.skipped)
        self.no_choice.update(other.no_choice)
        self.unfused.update(other.unfused)
        self.generated.update(other.generated)
        self.cached += other.cached
        for problem, permille in other.expected_permille.items():
            self.expect(problem, permille)

    def expect(self, problem: Problem, permille: int) -> None:
        """Note the gain that a model expects for a problem. The largest of several counts."""
        highest = max(permille, self.expected_permille.get(problem, 1))
        self.expected_permille[problem] = min(highest, MAX_PERMILLE)


@dataclass
class Receipt:
    """The questions of some processes by hardware, and the time that selecting took, in nanoseconds."""

    processes: int = 1
    versions: dict[Versions, None] = field(default_factory=dict)
    selecting_ns: int = 0
    devices: dict[Hardware, Device] = field(default_factory=dict)


def merge_receipts(receipts: Iterable[Receipt]) -> Receipt:
    """Merge receipts. Their order does not matter."""
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
    """Return the content of the file. Equal receipts have the same content.

    If a receipt is too large for readers, the half with the lowest counts is left out, with a warning, until it fits.
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
    """Keep the half of the entries with the higher counts. Of equal counts, the first entries stay."""
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
    if device.generated:
        generated = (_generated_to_json(kernel, calls) for kernel, calls in sorted(device.generated.items()))
        yield f'"generated": {_lines(generated)}'
    yield f'"cached": {device.cached}'


def versions_to_json(versions: Versions) -> dict[str, str]:
    """Return the fields of the JSON object, without software that was not loaded."""
    return {name: version for name, version in versions._asdict().items() if version}


def hardware_to_json(hardware: Hardware) -> dict[str, Any]:
    """Return the fields of the JSON object, without aliases, which only tables have."""
    return {"name": hardware.name, "arch": hardware.arch, "sm_count": hardware.sm_count}


def _misses_to_json(device: Device) -> Iterator[dict[str, Any]]:
    """Yield problems as ``collect`` takes them, with their calls and the gain that a model expects."""
    for (problem, over), calls in sorted(device.misses.items()):
        expected = device.expected_permille.get(problem)
        more = {} if expected is None else {"expected_permille": expected}
        yield {**problem.to_json(), **over_to_json(over), "calls": calls, **more}


def over_to_json(over: str) -> dict[str, str]:
    """Return the field of the JSON object for dynamic sizes, or no field."""
    return {"over": over} if over else {}


def _hit_to_json(hit: Hit, calls: int) -> dict[str, Any]:
    who = {"tier": hit.tier, "digest": hit.digest, "row": hit.row}
    return {**hit.problem.to_json(), **over_to_json(hit.over), "calls": calls, **who, "configs": hit.configs}


def _skip_to_json(skip: Skip, calls: int) -> dict[str, Any]:
    who = {"tier": skip.tier, "digest": skip.digest, "row": skip.row}
    return {**skip.problem.to_json(), "calls": calls, **who, "config": skip.config, "reason": skip.reason}


def _left_to_json(left: NoChoice | Unfused, calls: int) -> dict[str, Any]:
    return {**left.problem.to_json(), "calls": calls, "reason": left.reason}


def _generated_to_json(kernel: GeneratedKernel, calls: int) -> dict[str, Any]:
    asked = {**kernel.problem.to_json(), "calls": calls}
    if kernel.reason:
        return {**asked, "reason": kernel.reason}
    return {**asked, "tier": kernel.tier, "digest": kernel.digest, "row": kernel.row, "config": kernel.config}


def _lines(values: Iterable[Any]) -> str:
    lines = ",\n".join(map(_dumps, values))
    return f"[\n{lines}\n]" if lines else "[]"


def _dumps(value: Any) -> str:
    return orjson.dumps(value).decode()
