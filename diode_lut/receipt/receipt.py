"""What processes asked and got: the receipt of one process, or of many that were merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from diode_lut.domain.hardware import Hardware
from diode_lut.domain.problem import Problem

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
