"""Record decisions as events, of which the statistics and the receipt of this process are made.

The events are ``selected``, ``decided``, ``served``, ``skipped``, ``no_choice``, ``unfused``, ``generated``,
``generated_left``, ``told``, ``devices_seen`` and ``sources_seen``. Each takes effect once, under one lock, in all
active Counts and in the receipt. Generated kernels are in the receipt alone.
"""

from __future__ import annotations

import platform
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from diode_lut import receipts
from diode_lut.decide.decide import NOT_AS_TIMED, Sources
from diode_lut.decide.sources import ABSTAIN, Decision
from diode_lut.hardware import Hardware
from diode_lut.problem import GENERATED, Problem
from diode_lut.process import __version__, in_forked_children
from diode_lut.receipts import receipt_file
from diode_lut.settings import MODEL, TIERS
from diode_lut.table import Entry
from diode_lut.table.format import key_text
from diode_lut.templates.config import Config


@dataclass(eq=False)
class Counts:
    """Numbers of decisions by their outcome.

    ``hits`` counts answers per tier, and ``fallbacks`` the problems left to Inductor. ``skipped_configs`` counts the
    configs of answers that could not run and gave way to the next. ``unserved`` counts the answers without a config
    that could run, so Inductor chose after all. No table could change anything about ``no_choice``, so nobody asked for
    a decision. ``cached`` counts predictions and ``no_choice`` of an earlier compile, whose graph came from a cache.
    ``seconds`` is the wall time of selecting, with the reading of tables at first use. ``avg_confidence`` is the mean
    confidence of the model's answers, 0 without any.
    """

    total_predictions: int = 0
    hits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TIERS, 0))
    fallbacks: int = 0
    skipped_configs: int = 0
    unserved: int = 0
    no_choice: int = 0
    cached: int = 0
    seconds: float = 0.0
    avg_confidence: float = 0.0

    def add(self, other: Counts) -> None:
        """Add other counts, except ``seconds``."""
        sure, others = self.hits[MODEL], other.hits[MODEL]
        if others:
            self.avg_confidence += (other.avg_confidence - self.avg_confidence) * others / (sure + others)
        for tier, hits in other.hits.items():
            self.hits[tier] += hits
        for name in ("total_predictions", "fallbacks", "skipped_configs", "unserved", "no_choice", "cached"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_dict(self) -> dict[str, Any]:
        """Return a consistent copy as plain values."""
        with _lock:
            return {**vars(self), "hits": dict(self.hits)}


_lock = threading.RLock()
"""Held while an event takes effect or results are read. It is reentrant, because a signal handler may compile."""
_counting = [Counts()]  # The active counts. The first are the process's own
_collecting = threading.local()  # its attribute ``collected`` belongs to the innermost ``collecting`` of this thread
# The questions, tables and models by hardware, of this machine or another
_devices: dict[Hardware, receipts.Device] = {}
_seen: dict[Hardware, Sources] = {}  # the sources noted last by hardware
_present: set[Hardware] = set()  # the known hardware of this machine
_asked: set[Hardware] = set()
"""The hardware of this machine with a question. The first question has the receipt written at exit."""
_warned: set[tuple[Entry | None, Config]] = set()
"""The configs that could not run, each with its row, or None for a model."""

_config = lru_cache(maxsize=4096)(str)
_configs = lru_cache(maxsize=4096)(lambda configs: tuple(map(_config, configs)))
_row = lru_cache(maxsize=4096)(key_text)


def selected(seconds: float) -> None:
    """Count the seconds of selecting."""
    with _lock:
        for counts in _counts():
            counts.seconds += seconds


def decided(decision: Decision, seconds: float) -> None:
    """Count a decision for Inductor, and the seconds of selecting."""
    tier, confidence = decision.tier, decision.confidence
    with _lock:
        for counts in _counts():
            counts.total_predictions += 1
            counts.seconds += seconds
            if tier == ABSTAIN:
                counts.fallbacks += 1
            else:
                counts.hits[tier] += 1
            if confidence is not None:
                counts.avg_confidence += (confidence - counts.avg_confidence) / counts.hits[tier]
        for config in decision.left_out:
            _skip(decision, config, NOT_AS_TIMED)


def served(decision: Decision, configs: tuple[Config, ...]) -> None:
    """Count the configs that Inductor got of a decision. Without any, it chose by itself."""
    hit = receipts.Hit(decision.problem, *_who(decision), _configs(configs), decision.over) if configs else None
    with _lock:
        for device in _receiving(decision.hardware):
            if hit is not None:
                device.hits[hit] += 1
                continue
            device.misses[receipts.Miss(decision.problem, decision.over)] += 1
            if decision.expected_time is not None:
                device.expect(decision.problem, int(1000 / decision.expected_time))
        if hit is None and decision.configs:
            for counts in _counts():
                counts.unserved += 1


def skipped(decision: Decision, config: Config, reason: str) -> bool:
    """Count a config that cannot run, and return whether this is its first time for this row, or for any model."""
    with _lock:
        _skip(decision, config, reason)
        known = len(_warned)
        _warned.add((decision.entry, config))
        return len(_warned) > known


def _skip(decision: Decision, config: Config, reason: str) -> None:
    if decision.problem.op in GENERATED:
        return
    skip = receipts.Skip(decision.problem, *_who(decision), _config(config), reason)
    for counts in _counts():
        counts.skipped_configs += 1
    for device in _receiving(decision.hardware):
        device.skipped[skip] += 1


def no_choice(problem: Problem, hardware: Hardware, reason: str) -> None:
    """Count a problem left to Inductor without a question."""
    with _lock:
        for counts in _counts():
            counts.no_choice += 1
        _note(hardware, "no_choice", receipts.Left(problem, reason))


def unfused(problem: Problem, hardware: Hardware, reason: str) -> None:
    """Count a matmul without a fused epilogue."""
    _note(hardware, "unfused", receipts.Left(problem, reason))


def why_missed(decision: Decision) -> str:
    """Return the reason why Inductor decides after a decision."""
    return f"no config of {decision.where} can run" if decision.configs else receipts.NO_ANSWER


def apart(decision: Decision) -> None:
    """Count matmuls that could be joined and stay apart, because no table has an answer or no config can run."""
    _note(decision.hardware, "apart", receipts.Left(decision.problem, why_missed(decision)))


def generated(decision: Decision, config: Config | None) -> None:
    """Count a generated kernel with a config of a decision, or without one.

    While questions are collected, this waits for the end: between kernels, Inductor's code empties processors' caches.
    """
    collected = _collecting.__dict__.get("collected")
    if collected is None:
        _generated(decision, config)
    else:
        collected.kernels.append((decision, config))


def _generated(decision: Decision, config: Config | None) -> None:
    if config is not None:
        answer = (*_who(decision), _config(config), "", decision.over)
        _note(decision.hardware, "generated", receipts.GeneratedKernel(decision.problem, *answer))
        return
    generated_left(decision.problem, decision.hardware, why_missed(decision))


def generated_left(problem: Problem, hardware: Hardware, reason: str) -> None:
    """Count a generated kernel about which nobody was asked."""
    _note(hardware, "generated", receipts.GeneratedKernel(problem, "", "", "", "", reason))


def _note(hardware: Hardware, counter: str, asked: receipts.Left | receipts.GeneratedKernel) -> None:
    with _lock:
        for device in _receiving(hardware):
            getattr(device, counter)[asked] += 1


def told(counts: Counts, devices: Mapping[Hardware, receipts.Device], *, cached: bool) -> None:
    """Add the result of ``collecting`` for a graph from a cache or another process."""
    with _lock:
        for each in _counts():
            each.add(counts)
            each.cached += cached * (counts.total_predictions + counts.no_choice)
        for hardware, found in devices.items():
            for device in _receiving(hardware):
                device.add(found)
                device.cached += cached * (found.calls + found.no_choice.total())


def devices_seen(hardware: Iterable[Hardware]) -> None:
    """Note the devices of this machine."""
    with _lock:
        _present.update(hardware)


def sources_seen(sources: Sources) -> None:
    """Note the tables and models for the hardware, of this machine or another."""
    with _lock:
        device = _devices.setdefault(sources.hardware, receipts.Device())
        if device.sources and _seen.get(sources.hardware) is sources:
            return
        _seen[sources.hardware] = sources
        for tier in sources.tiers:
            for source in tier.sources:
                name = _text(str(source.path or source.name()))
                device.sources[receipts.SourceRecord(tier.name, name, source.digest, source.rows)] = None
            device.left_out.update(dict.fromkeys(_text(f"{tier.name}: {reason}") for reason in tier.left_out))


def own_counts() -> Counts:
    """Return the counts of the whole process, which go on counting."""
    return _counting[0]


@contextmanager
def counting() -> Iterator[Counts]:
    """Count the events within the ``with`` block, in any thread."""
    counts = Counts()
    with _lock:
        _counting.append(counts)
    try:
        yield counts
    finally:
        with _lock:
            _counting.remove(counts)


class Collected(NamedTuple):
    """The questions of a thread within a block. Those about ``kernels`` are in ``devices`` after its end."""

    counts: Counts
    devices: dict[Hardware, receipts.Device]
    kernels: list[tuple[Decision, Config | None]]


@contextmanager
def collecting() -> Iterator[Collected]:
    """Collect the questions of this thread within the ``with`` block, except in an inner block."""
    collected, before = Collected(Counts(), {}, []), _collecting.__dict__.get("collected")
    _collecting.collected = collected
    try:
        yield collected
    finally:
        for kernel in collected.kernels:
            _generated(*kernel)
        _collecting.collected = before


def own_receipt() -> receipts.Receipt:
    """Return the receipt of this process so far, as a copy."""
    torch, triton = (str(getattr(sys.modules.get(name), "__version__", "")) for name in ("torch", "triton"))
    versions = receipts.Versions(__version__, platform.python_version(), torch, triton)
    with _lock:
        devices = {hardware: device for hardware, device in _devices.items() if hardware in _present}
        own = receipts.Receipt(1, {versions: None}, round(_counting[0].seconds * 1e9), devices)
        return receipts.merge_receipts([own])


def _counts() -> list[Counts]:
    """Return all counts of this thread's questions."""
    collected = _collecting.__dict__.get("collected")
    return _counting if collected is None else [*_counting, collected.counts]


def _receiving(hardware: Hardware) -> list[receipts.Device]:
    """Return all devices in which a question of this thread about a device of this machine is noted."""
    if hardware not in _asked:
        if not _asked:
            receipt_file.arm(own_receipt)
        _asked.add(hardware)
        _present.add(hardware)
    collected = _collecting.__dict__.get("collected")
    all_devices = (_devices,) if collected is None else (_devices, collected.devices)
    return [devices.get(hardware) or devices.setdefault(hardware, receipts.Device()) for devices in all_devices]


def _who(decision: Decision) -> tuple[str, str, str]:
    """Return tier, digest of the file, and row of an answer."""
    digest, entry = "" if decision.source is None else decision.source.digest, decision.entry
    return decision.tier, digest, "" if entry is None else _row(entry)


def _text(text: str) -> str:
    """Replace parts that JSON cannot hold: names of files need not be UTF-8."""
    return text.encode(errors="replace").decode()


@in_forked_children
def _begin_again() -> None:
    """Keep the parent's tables in a fork, but not its questions, nor its lock."""
    global _lock
    _lock = threading.RLock()
    _counting[0] = Counts()
    for hardware, device in _devices.items():
        _devices[hardware] = receipts.Device(device.sources, device.left_out)
    _present.clear()
    _asked.clear()
