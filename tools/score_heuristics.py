"""Scores NVIDIA's heuristics on measured times, alone and where Inductor times their configs against the library.

``python tools/score_heuristics.py tables/datasets/nvidia-h200-models.msgpack.zst`` prints the gain over ``aten`` of the
best of ``aten`` and 1, 2 or 4 configs a GEMM, which is what ``policy="verify"`` takes, and that of the first config
alone. GEMMs count if their first config has a measured time; other configs without one are left out. It needs
``nvidia-matmul-heuristics``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean

from diode_lut.dataset import read_dataset
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import ATEN, Config
from diode_lut.selection.heuristics import nvidia

COUNTS = (1, 2, 4)
SLOWER = 0.97


def main(paths: Sequence[str]) -> None:
    """Print the scores for each dataset."""
    for path in map(Path, paths):
        dataset = read_dataset(path)
        times: dict[Problem, dict[Config, float]] = {}
        for record in dataset:
            found = {timing.config: timing.ns for timing in record.timings if timing.ns}
            times.setdefault(record.problem, {}).update(found)
        measured = {problem: found for problem, found in times.items() if ATEN in found}
        answers = {problem: nvidia(problem, dataset.header.hardware) for problem in measured}
        timed = {problem: found for problem, found in measured.items() if {*answers[problem][:1]} & found.keys()}
        best = geometric_mean(found[ATEN] / min(found.values()) for found in timed.values())
        print(f"{path}: {len(timed)} of {len(measured)} GEMMs have a timed first config; best gain {best:.3f}")
        for count in COUNTS:
            gains = [_gain(found, answers[problem][:count]) for problem, found in timed.items()]
            print(f"  {count} verified: {geometric_mean(gains):.3f}")
        first = [found[ATEN] / found[answers[problem][0]] for problem, found in timed.items()]
        slower = sum(gain < SLOWER for gain in first) / len(first)
        print(f"  the first, not verified: {geometric_mean(first):.3f}, {slower:.0%} slower than aten by over 3 %")


def _gain(times: dict[Config, float], configs: Sequence[Config]) -> float:
    """That of the fastest of the configs and aten."""
    return times[ATEN] / min(times[config] for config in (ATEN, *configs) if config in times)


if __name__ == "__main__":
    main(sys.argv[1:])
