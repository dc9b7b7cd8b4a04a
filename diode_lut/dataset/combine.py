"""Both stages of measuring in one: a time, or a failure, for every config that was tried on a problem at all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from statistics import median

from diode_lut.dataset.record import Record, Timing
from diode_lut.kernels.config import ATEN, Config
from diode_lut.problem import Problem

_ALL_BUT_STATIC = 1.012
"""What Triton's kernels of the sweep gain over aten as final ones, by the median over an H200's."""


def combined(records: Iterable[Record]) -> Iterator[Record]:
    """One record for each problem, in order, as if everything had been timed in the final stage.

    Final times count as they are. Others are scaled by what the configs with both times have in common on the problem
    (their median), so that a config which had no chance in the sweep still has a place after those that had. Several
    times of a config in one stage are combined by their median; a config that failed anywhere has failed.
    """
    times: defaultdict[Problem, tuple[_Times, _Times]] = defaultdict(lambda: (defaultdict(list), defaultdict(list)))
    failed: defaultdict[Problem, dict[Config, Timing]] = defaultdict(dict)
    for record in records:
        stage = times[record.problem][record.stage == "final"]
        for timing in record.timings:
            if timing.ns is None:
                failed[record.problem].setdefault(timing.config, timing)
            else:
                stage[timing.config].append(timing.ns)
    for problem in sorted(times):
        sweep, final = ({config: median(ns) for config, ns in stage.items()} for stage in times[problem])
        scale = _scale(sweep, final)
        together = {config: ns * scale for config, ns in sweep.items()} | final
        timings = {config: Timing(config, ns) for config, ns in together.items()} | failed[problem]
        yield Record(problem, tuple(timings[config] for config in sorted(timings)), "final")


_Times = defaultdict[Config, list[float]]


def _scale(sweep: Mapping[Config, float], final: Mapping[Config, float]) -> float:
    """Final times over those of the sweep."""
    both = [config for config in final if config in sweep and config != ATEN]
    if both:
        return median(final[config] / sweep[config] for config in both)
    return final[ATEN] / sweep[ATEN] / _ALL_BUT_STATIC if ATEN in final and ATEN in sweep else 1.0
