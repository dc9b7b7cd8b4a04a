"""What answers save and what misses lose, estimated from a receipt: nothing is measured here.

A receipt does not know how often a compiled GEMM runs, so each runs once per call. The time of ``aten`` is taken from a
roofline, which is the least that it can be. The share that is saved comes from the row's gain, or from what the model
expects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from diode_lut.domain.errors import DiodeLutError
from diode_lut.domain.hardware import Hardware
from diode_lut.domain.ops import NO_EPILOGUE
from diode_lut.domain.problem import Problem
from diode_lut.kernels.architecture import roofline_ns
from diode_lut.kernels.config import baseline
from diode_lut.receipt.receipt import Device, Hit, Receipt
from diode_lut.receipt.summary import losses
from diode_lut.selection.catalog import open_file
from diode_lut.selection.sources import THRESHOLD, Source
from diode_lut.selection.tiers import source_of
from diode_lut.table import Entry

EXPECTED, UNKNOWN = "expected", "unknown"
"""Whether the time that a GEMM saves can be estimated."""


class Savings(NamedTuple):
    """Nanoseconds saved by answers and lost by misses and slower answers, and the calls by how well they are known."""

    saved_ns: float
    lost_ns: float
    calls: Counter[str]


def savings(receipt: Receipt) -> Savings:
    """The estimate for all devices of a receipt; tables and models that have changed since say nothing."""
    saved, lost, calls = 0.0, 0.0, Counter[str]()
    for hardware, device in receipt.devices.items():
        sources = dict(_sources(hardware, device))
        for hit, count in _run(device):
            ns, how = _saved_ns(hit, sources.get(hit.digest), hardware)
            saved, lost = saved + count * max(ns, 0.0), lost + count * max(-ns, 0.0)
            calls[how] += count
    for loss in losses(receipt):
        lost += loss.nanoseconds or 0.0
        calls[UNKNOWN if loss.nanoseconds is None else EXPECTED] += loss.calls
    return Savings(saved, lost, calls)


def _run(device: Device) -> Iterator[tuple[Hit, int]]:
    """The answers that run: a GEMM that is fused with its epilogue was asked for alone as well."""
    fused = Counter[Problem]()
    for hit, calls in device.hits.items():
        if hit.problem.epilogue != NO_EPILOGUE:
            fused[hit.problem.alone] += calls
    for hit, calls in device.hits.items():
        instead = min(calls, fused[hit.problem]) if hit.problem.epilogue == NO_EPILOGUE else 0
        fused[hit.problem] -= instead
        if calls > instead:
            yield hit, calls - instead


def _sources(hardware: Hardware, device: Device) -> Iterator[tuple[str, Source]]:
    """The tables and models that answered, by digest, if they are what they were."""
    for source in device.sources:
        path = Path(source.path)
        try:
            opened = source_of(open_file(path), hardware)
        except DiodeLutError:
            continue  # the receipt outlives its tables
        if opened.digest == source.digest:
            yield source.digest, opened


def _saved_ns(hit: Hit, source: Source | None, hardware: Hardware) -> tuple[float, str]:
    """The time of one execution that the first config saves, and how well it is known."""
    if hit.configs[0] == str(baseline(hit.problem.op)):
        return 0.0, EXPECTED
    answer = None if source is None else source.ask(hit.problem, THRESHOLD, padding=True)
    if answer is None:
        return 0.0, UNKNOWN
    if answer.ranking is not None:
        times = dict(zip(map(str, answer.ranking.configs), answer.ranking.times, strict=True))
        ratio = times.get(hit.configs[0])
    else:
        assert answer.entry is not None
        ratio = _ratio(answer.entry, hit.configs[0])
    baseline_ns = roofline_ns(hit.problem, hardware)
    return (0.0, UNKNOWN) if ratio is None or baseline_ns is None else (baseline_ns * (1 - ratio), EXPECTED)


def _ratio(entry: Entry, config: str) -> float | None:
    """The time of a row's config over that of aten; None if the row does not say it."""
    gains = {str(each.config): each.gain_permille for each in entry.candidates}
    gain = gains.get(config)
    return 1000 / gain if gain else None
