"""Scores NVIDIA's heuristics on measured times, alone and where Inductor times their configs against the library.

``python tools/score_heuristics.py tables/datasets/nvidia-h200-models.msgpack.zst`` prints the gain over ``aten`` of the
best of ``aten`` and 1, 2 or 4 configs a GEMM, which is what ``policy="verify"`` takes, and that of the first config
alone; beside them, on the same GEMMs, those of the table and the model that are shipped for the device. GEMMs count if
their first config has a measured time; other configs without one are left out. What a table or a model does not answer,
or answers with a config without a time, counts as ``aten``. All is printed again for the GEMMs that the model was not
trained on. It needs ``nvidia-matmul-heuristics``.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean

from diode_lut.dataset import read_dataset
from diode_lut.decide.catalog import tiers_for
from diode_lut.decide.heuristics import nvidia
from diode_lut.decide.sources import THRESHOLD, ModelSource, Source
from diode_lut.hardware import Hardware
from diode_lut.model import TRAIN
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config

COUNTS = (1, 2, 4)
SLOWER = 0.97

Times = Mapping[Problem, Mapping[Config, float]]  # in nanoseconds


def main(paths: Sequence[str]) -> None:
    """Print the scores for each dataset."""
    for path in map(Path, paths):
        dataset = read_dataset(path)
        times: dict[Problem, dict[Config, float]] = {}
        for record in dataset:
            times.setdefault(record.problem, {}).update(record.times)
        measured = {problem: found for problem, found in times.items() if ATEN in found}
        answers = {problem: nvidia(problem, dataset.header.hardware) for problem in measured}
        timed = {problem: found for problem, found in measured.items() if {*answers[problem][:1]} & found.keys()}
        sources = shipped(dataset.header.hardware, list(timed))
        print(f"{path}: {len(timed)} of {len(measured)} GEMMs have a timed first config")
        _score("all", timed, answers, sources)
        splits = [source.model.split for source in sources.values() if isinstance(source, ModelSource)]
        unseen = {
            problem: found for problem, found in timed.items() if all(split.group(problem) != TRAIN for split in splits)
        }
        _score("not trained on", unseen, answers, sources)


def shipped(hardware: Hardware, problems: Sequence[Problem]) -> dict[str, Source]:
    """The device's own table, and the first model that knows any of the problems."""
    found: dict[str, Source] = {}
    for tier in tiers_for(hardware, (), ("device", "model")):
        for source in tier.sources:
            if not isinstance(source, ModelSource) or not all(map(source.no_match, problems)):
                found.setdefault(tier.name, source)
    return found


def _score(name: str, timed: Times, answers: Mapping[Problem, Sequence[Config]], sources: Mapping[str, Source]) -> None:
    best = geometric_mean(found[ATEN] / min(found.values()) for found in timed.values())
    print(f"  {name}: {len(timed)} GEMMs; best gain {best:.3f}")
    for count in COUNTS:
        gains = [_gain(found, answers[problem][:count]) for problem, found in timed.items()]
        print(f"    {count} verified: {geometric_mean(gains):.3f}")
    first = [found[ATEN] / found[answers[problem][0]] for problem, found in timed.items()]
    print(f"    the first, not verified: {_summary(first)}")
    for tier, source in sources.items():
        choices = {problem: _choice(source, problem, found) for problem, found in timed.items()}
        gains = [found[ATEN] / found.get(choices[problem] or ATEN, found[ATEN]) for problem, found in timed.items()]
        missed = sum(choice is None for choice in choices.values())
        untimed = sum(choice is not None and choice not in timed[problem] for problem, choice in choices.items())
        print(f"    {tier}: {_summary(gains)}; {missed} missed, {untimed} without a time")


def _summary(gains: Sequence[float]) -> str:
    slower = sum(gain < SLOWER for gain in gains)
    return f"{geometric_mean(gains):.3f}, {slower} ({slower / len(gains):.0%}) slower than aten by over 3 %"


def _choice(source: Source, problem: Problem, times: Mapping[Config, float]) -> Config | None:
    """The first config of an answer; None for a miss."""
    answer = source.ask(problem, THRESHOLD, padding=any(config.pad > 1 for config in times))
    return answer.configs[0] if answer is not None and answer.configs else None


def _gain(times: Mapping[Config, float], configs: Sequence[Config]) -> float:
    """That of the fastest of the configs and aten."""
    return times[ATEN] / min(times[config] for config in (ATEN, *configs) if config in times)


if __name__ == "__main__":
    main(sys.argv[1:])
