"""Times that other processes disturb: what cannot be true, and on a CPU what is no clear gain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from statistics import median
from typing import NamedTuple

from diode_lut.dataset import Record, Timing
from diode_lut.domain.errors import DatasetError
from diode_lut.domain.hardware import Hardware
from diode_lut.domain.ops import ATTENTION
from diode_lut.domain.problem import Problem
from diode_lut.kernels.architecture import roofline_ns
from diode_lut.kernels.config import BASELINES, Config, baseline

MAX_GAIN = 30.0
"""A larger gain over aten is a mistake of the measurement: aten was interrupted, or the kernel did nothing."""

MAX_SPREAD = 5.0
"""The kernel did not have the device to itself if times of it differ by this factor, without a quarter at each end."""

MAX_ROOFLINES = 100.0
START_NS, START_ON_CPU_NS = 1e6, 1e7
"""A GEMM takes at most this many times the least possible time, and this much more to start, with the baseline or the
best kernel. Of 25,000 GEMMs on H100 and H200 one took more: it had been disturbed."""

_ENOUGH = 3
"""Number of times of a config from which on their spread is known."""

_MAX_SHARE, _MANY = 0.5, 3
"""No table is built if at least _MANY problems, and more than this share of all, are too noisy to decide."""


class Judged(NamedTuple):
    """The records with the times that may be believed; and what was wrong with the others.

    Of problems on which a config only seemed faster than aten, the times of aten are left. They are ``too_noisy``,
    where the times of both overlap, or ``implausible``, which has the reasons as text. Of records whose times cannot be
    true no times are left; ``doubted`` has the reasons.
    """

    records: list[Record]
    too_noisy: list[Problem]
    implausible: list[str]
    doubted: list[str]


class _Times(NamedTuple):
    """Sorted times of a config on a problem, in nanoseconds."""

    config: Config
    ns: list[float]

    @property
    def middle(self) -> float:
        return median(self.ns)

    @property
    def are_steady(self) -> bool:
        """Whether times differ by less than MAX_SPREAD, without a quarter at each end."""
        cut = len(self.ns) // 4
        return self.ns[-1 - cut] < MAX_SPREAD * self.ns[cut]

    @property
    def spread(self) -> float:
        """The largest time over the median, minus one."""
        return self.ns[-1] / self.middle - 1

    def is_clearly_below(self, other: _Times) -> bool:
        """Whether three quarters of the times are below three quarters of the others."""
        return self.ns[-1 - len(self.ns) // 4] < other.ns[len(other.ns) // 4]


def doubt(record: Record, hardware: Hardware) -> str:
    """Why the times of a record cannot be those of its kernels, as text; empty if they can be.

    Only the baseline and the best config are looked at: others may be as slow as they like.
    """
    times = _times([record])
    usual, best = (
        times.get(baseline(record.problem.op)),
        min(times.values(), key=lambda each: each.middle, default=None),
    )
    least = None if record.problem.op in ATTENTION else roofline_ns(record.problem, hardware)
    start = START_ON_CPU_NS if hardware.is_cpu else START_NS
    for each in filter(None, (usual, best)):
        if least is not None and each.middle > MAX_ROOFLINES * least + start:
            took = f"{each.config} took {each.middle / 1e6:.1f} ms, where {least / 1e6:.3g} ms are possible"
            return f"{took}: {_REMEDY}"
        if not each.are_steady:
            return f"times of {each.config} are from {each.ns[0] / 1e6:.3g} to {each.ns[-1] / 1e6:.3g} ms: {_REMEDY}"
    return ""


_REMEDY = "measure while nothing else runs"


def judged(records: Iterable[Record], noise: float, hardware: Hardware) -> Judged:
    """The records, without what is noise; DatasetError if most problems are too noisy to decide.

    A record whose times cannot be true counts as if it had none. A config that seems faster than aten by more than the
    fraction ``noise`` must be so in three quarters of its times, where it has at least three.
    """
    by_problem: dict[Problem, list[Record]] = defaultdict(list)
    doubted: list[str] = []
    for record in records:
        reason = doubt(record, hardware)
        if reason:
            doubted.append(f"{record.problem}: {reason}")
        by_problem[record.problem].append(record._replace(timings=()) if reason else record)
    kept: list[Record] = []
    too_noisy: dict[Problem, float] = {}
    implausible: list[str] = []
    for problem, own in by_problem.items():
        times = _times(own)
        aten = times.pop(baseline(problem.op), None)
        best = min(times.values(), key=lambda each: each.middle, default=None)
        if aten is None or best is None or not _is_doubtful(best, aten, noise):
            kept += own
            continue
        kept += [record._replace(timings=tuple(_of_aten(record))) for record in own]
        if aten.middle > MAX_GAIN * best.middle:
            implausible.append(
                f"{problem}: {best.config} would be {aten.middle / best.middle:.0f} times as fast as aten"
            )
        else:
            too_noisy[problem] = max(aten.spread, best.spread)
    if len(too_noisy) >= _MANY and len(too_noisy) > _MAX_SHARE * len(by_problem):
        raise DatasetError(_refusal(too_noisy, len(by_problem)))
    return Judged(kept, list(too_noisy), implausible, doubted)


def _times(records: Iterable[Record]) -> dict[Config, _Times]:
    found: dict[Config, list[float]] = defaultdict(list)
    for record in records:
        for config, ns, _ in record.timings:
            if ns is not None:
                found[config].append(ns)
    return {config: _Times(config, sorted(ns)) for config, ns in found.items()}


def _is_doubtful(best: _Times, aten: _Times, noise: float) -> bool:
    """Whether a config seems faster than aten, and that cannot be true, or is not clear."""
    if best.middle * (1 + noise) >= aten.middle:
        return False
    enough = min(len(best.ns), len(aten.ns)) >= _ENOUGH
    return aten.middle > MAX_GAIN * best.middle or (enough and not best.is_clearly_below(aten))


def _of_aten(record: Record) -> Iterator[Timing]:
    return (timing for timing in record.timings if timing.config in BASELINES)


def _refusal(too_noisy: dict[Problem, float], problems: int) -> str:
    worst = max(too_noisy.values())
    spread = f"times of the same kernel are up to {1 + worst:.1f} times their median"
    return f"too noisy to decide: {len(too_noisy)} of {problems} problems ({spread}): measure while nothing else runs"
