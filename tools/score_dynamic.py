"""What one kernel for all values of M is worth, and several for parts of their range, by measured times.

The problems of a dataset that differ in M only are a family. The times are those of the final stage, and those of the
sweep scaled to them. A config that was not timed at some M counts as further behind the best than at the nearest M at
which it was, by a tenth per factor of two; one that was timed nowhere in the family counts as slower than aten by a
tenth.
The decisions are made as for a dynamic M that is bounded by the family's, with the table and the models that are given.
Run ``python tools/score_dynamic.py TABLE MODEL... DATASET...``.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from diode_lut.build.measurements import combined
from diode_lut.dataset import current_records, read_dataset
from diode_lut.decide.decide import PER_OCTAVE, Axis, Sources, Tier, decide
from diode_lut.decide.sources import ModelSource, Source, TableSource, Threshold
from diode_lut.model import SUFFIX
from diode_lut.model.weights import read_model
from diode_lut.problem import Problem
from diode_lut.table import read_table
from diode_lut.templates.config import ATEN, Config

Family = Mapping[int, Mapping[Config, float]]  # per M the times of configs over that of aten
_Choose = Callable[[Problem, Family], Mapping[int, Config]]  # the config for each M of a family


def main(table: str, *others: str) -> None:
    """Print what each way to choose gains over aten: the geometric mean, the worst, and how many are slower."""
    opened, models = read_table(Path(table)), [Path(path) for path in others if path.endswith(SUFFIX)]
    all_: list[Source] = [TableSource(opened), *(ModelSource(read_model(path), opened.hardware) for path in models)]
    families = families_in([Path(path) for path in others if not path.endswith(SUFFIX)])
    print(f"{len(families)} families, {sum(map(len, families.values()))} problems")
    for name, asked in (("table and models", all_), ("table", all_[:1])):
        sources = Sources(opened.hardware, [Tier(source.description(), (source,)) for source in asked])
        _score(f"one kernel, by {name}", families, partial(_over, sources))
        for most in (2, 3, 4):
            _score(f"up to {most} kernels, by {name}", families, partial(_pieces, sources, most))
    _score("the best at the first M", families, _first)
    _score("the best single kernel", families, _best_single)
    _score("the best for each M", families, _best)


def families_in(datasets: Sequence[Path]) -> dict[Problem, Family]:
    """The bfloat16 problems that were timed at three values of M or more, by what they have in common."""
    found: defaultdict[Problem, dict[int, dict[Config, float]]] = defaultdict(dict)
    for record in combined(current_records(map(read_dataset, datasets))):
        problem, times = record.problem, record.times
        if problem.dtype == "bfloat16" and ATEN in times:
            aten = times[ATEN]
            found[problem._replace(m=1)][problem.m] = {config: time / aten for config, time in times.items()}
    return {problem: dict(sorted(family.items())) for problem, family in found.items() if len(family) >= 3}


def _score(name: str, families: Mapping[Problem, Family], choose: _Choose) -> None:
    gains, triton = [], 0
    for problem, family in families.items():
        chosen = choose(problem, family)
        gains += [-math.log(_time(family, m, config)) for m, config in chosen.items()]
        triton += sum(config != ATEN for config in chosen.values())
    mean = math.exp(sum(gains) / len(gains))
    slower = sum(gain < math.log(0.98) for gain in gains)
    print(f"{name}: {mean:.3f} of aten, worst {math.exp(min(gains)):.2f}, {slower} below 0.98, {triton} Triton")


def _over(sources: Sources, problem: Problem, family: Family) -> dict[int, Config]:
    axis = Axis(("m",), min(family), max(family))
    decision = decide(sources, problem, Threshold(), axes=(axis,), padding=False).decision
    return dict.fromkeys(family, decision.configs[0] if decision.configs else ATEN)


def _pieces(sources: Sources, most: int, problem: Problem, family: Family) -> Mapping[int, Config]:
    axis = Axis(("m",), min(family), max(family))
    pieces = decide(sources, problem, Threshold(), axes=(axis,)).pieces(most, library=True)
    if not pieces:
        return _over(sources, problem, family)
    return {m: next(piece.config for piece in pieces if piece.high is None or m <= piece.high) for m in family}


def _first(_: Problem, family: Family) -> dict[int, Config]:
    first = family[min(family)]
    return dict.fromkeys(family, min(first, key=first.__getitem__))


def _best_single(_: Problem, family: Family) -> dict[int, Config]:
    configs = set(chain.from_iterable(family.values()))
    return dict.fromkeys(family, min(configs, key=lambda c: sum(math.log(_time(family, m, c)) for m in family)))


def _best(_: Problem, family: Family) -> dict[int, Config]:
    return {m: min(times, key=times.__getitem__) for m, times in family.items()}


def _time(family: Family, m: int, config: Config) -> float:
    if config in family[m]:
        return family[m][config]
    known = [each for each, times in family.items() if config in times]
    if not known:
        return PER_OCTAVE  # timed nowhere in the family, so only a model can have named it
    nearest = min(known, key=lambda each: abs(math.log2(each / m)))
    behind = family[nearest][config] / min(family[nearest].values())
    return float(behind * PER_OCTAVE ** abs(math.log2(nearest / m)) * min(family[m].values()))


if __name__ == "__main__":
    main(*sys.argv[1:])
