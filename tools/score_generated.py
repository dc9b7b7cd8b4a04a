"""Scores ways to choose the configs of generated kernels, on programs that they have not seen.

``python tools/score_generated.py`` reads tools/modelbench/generated-nvidia-h100.jsonl.zst, made by bench_generated.py.
Programs are divided into eight parts by family, and the models that are kept away are a ninth, of which no other part
learns. What learns is scored on each part by what it learned from the kernels that no program of that part has. A
program's score is the geometric mean of time over the best time measured, weighted by time in the program. A time is
the mean of those with a cold L2 cache and right after the same kernel. With ``--shipped`` it scores the shipped tables
and models on the device of ``--data`` instead.
"""

import argparse
import re
from collections.abc import Sequence
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from modelbench.corpus import KEPT_AWAY
from modelbench.records import Record, read

from diode_lut.build.generated import rows_of_kernels
from diode_lut.decide.catalog import tiers_for
from diode_lut.decide.decide import Sources
from diode_lut.decide.sources import THRESHOLD
from diode_lut.hardware import Hardware
from diode_lut.model.generated import fit_kernels
from diode_lut.problem import MAX_SIZE, Problem
from diode_lut.settings import MODEL, SAME_ARCH, TIERS
from diode_lut.table.lookup import Index
from diode_lut.templates.config import DEFAULT, Config

FOLDS = 8  # The parts by family. The next part are the models that are kept away

DATA = Path(__file__).parent / "modelbench" / "generated-nvidia-h100.jsonl.zst"
HARDWARE = Hardware("NVIDIA H100", "sm_90", 132)
Picks = npt.NDArray[np.int64]  # the number of a config, by fold and kernel

LEAST_CHANGING = 8192  # elements of pointwise kernels whose number may change: two rows of a layer


class Data:
    """The measured kernels, and the programs that launch them."""

    def __init__(self, path: Path) -> None:
        records = [*read([path])]
        self.device: str = records[0]["device"]
        self.measured = {record["kernel"]: record for record in records if "cold" in record}
        for record in self.measured.values():
            record["mean"] = [(cold + warm) / 2 for cold, warm in zip(record["cold"], record["warm"], strict=True)]
        self.programs = [record for record in records if "kernels" in record]
        self.usual = [record for record in self.programs if not record["variant"]]
        self.replayed = [record for record in records if "replayed" in record]
        self.kernels = [each for each in self.measured.values() if len(each["mean"]) > 1 and len(each["blocks"]) < 3]
        self.index = {record["kernel"]: number for number, record in enumerate(self.kernels)}
        self.names = [[tuple(config) for config in record["configs"]] for record in self.kernels]
        self.loss = np.full((len(self.kernels), max(map(len, self.names))), np.inf)
        for row, record in zip(self.loss, self.kernels, strict=True):
            row[: len(record["mean"])] = np.log(np.array(record["mean"]) / min(record["mean"]))
        families = sorted({family(each["program"]) for each in self.programs if each["program"] not in KEPT_AWAY})
        order = np.random.default_rng(0).permutation(len(families)).tolist()
        self.fold = {name: place % FOLDS for name, place in zip(families, order, strict=True)}
        self.held = np.zeros((FOLDS + 1, len(self.kernels)), bool)
        others = np.zeros(len(self.kernels), bool)
        for record in self.programs:
            known = [self.index[kernel] for kernel in record["kernels"] if kernel in self.index]
            part = self.part(record["program"])
            self.held[part, known] = True
            others[known] |= part < FOLDS
        self.kept_away = ~others
        self.held[:FOLDS, self.kept_away] = True  # nothing learns of them
        self.weight = np.full(len(self.kernels), 0.3)
        for record in self.usual:
            rows, spent = self.spent(record)
            self.weight[rows] += spent / max(spent.sum(), 1e-9)

    def part(self, program: str) -> int:
        """The number of the part that a program is in."""
        return FOLDS if program in KEPT_AWAY else self.fold[family(program)]

    def spent(self, program: Record) -> tuple[list[int], npt.NDArray[np.float64]]:
        """The program's kernels, and the time that each takes in it at best."""
        calls = {self.index[kernel]: n for kernel, n in program["kernels"].items() if kernel in self.index}
        return list(calls), np.array([n * min(self.kernels[row]["mean"]) for row, n in calls.items()])

    def score(self, picks: Picks, kinds: Sequence[str]) -> dict[str, float]:
        """Of each program, the geometric mean of time over the best, for its kernels of some kinds."""
        scores = {}
        for record in self.usual:
            rows, spent = self.spent(record)
            part = [self.kernels[row]["kind"] in kinds for row in rows]
            if any(part):
                lost = [self.loss[row, picks[self.part(record["program"]), row]] for row in rows]
                scores[record["program"]] = exp(np.average(np.array(lost)[part], weights=spent[part]))
        return scores


def family(program: str) -> str:
    """What programs of one model or one operation have in common."""
    name = re.sub("^(bench|timm|drawn)-", "", program)
    return re.split(r"[-_]?(?:\d|large|training|prefill|decode|fp|tiny|small|atto|gradient)", name)[0]


def problem_of(record: Record) -> Problem | None:
    """The problem that tables know the kernel by, or None if they know none like it."""
    sizes, blocks, scores = record["features"]["tiling"], record["blocks"], record["meta"].get("tiling_scores") or {}
    if record["kind"] == "pointwise":
        along = "tiled-x" if scores.get("x", 0) > scores.get("y", 0) else "tiled" if scores.get("x", 1) else "tiled-y"
        variant, loads = along if "y" in sizes else "flat", max(sum(record["features"]["reads"]["x"]), 1)
        return Problem.generated("pointwise", variant, x=sizes["x"], y=sizes.get("y", 1), loads=loads)
    known = blocks in (["XBLOCK"], ["XBLOCK", "R0_BLOCK"])
    hint = record["hint"].lower()
    hint = "mixed" if hint == "default" and scores.get("r0_", 0) else hint
    return Problem.generated("reduction", hint, x=sizes["x"], r=record["features"]["rnumel"]) if known else None


def configs_of(record: Record) -> list[Config]:
    """The kernel's configs, as tables name them."""
    kinds = {"reduction": "looped_reduction", "persistent": "persistent_reduction"}
    names = [f"block_{name[0].lower()}" for name in record["blocks"]] + ["num_warps", "num_stages"]
    template = kinds.get(record["kind"], "pointwise")
    return [Config.make(template, dict(zip(names, values, strict=True))) for values in record["configs"]]


def partners(data: Data) -> dict[int, int]:
    """By kernel with a single reduction, the kernel that does the same in the other form.

    With several, a loop reads everything several times. There the hook keeps the form.
    """
    found: dict[int, int] = {}
    kernels = {(record["program"], record["variant"]): record["kernels"] for record in data.programs}
    for program in (name for name, variant in kernels if variant == "flipped" and (name, "") in kernels):
        usual, other = (
            {computed(data.measured[kernel]): data.index[kernel] for kernel in each if kernel in data.index}
            for each in (kernels[program, ""], kernels[program, "flipped"])
        )
        alike = ((usual[of], other[of]) for of in usual.keys() & other.keys() if of[-1] == 1)
        found |= {one: two for one, two in alike if data.kernels[one]["kind"] != data.kernels[two]["kind"]}
    return found


def computed(record: Record) -> tuple[Any, ...]:
    """What two forms of a reduction have in common."""
    known = record["features"]
    return str(record["args"]), known["numel"], known["rnumel"], record["meta"]["num_reduction"]


def timings(data: Data) -> dict[int, tuple[Problem, dict[Config, float]]]:
    """By kernel, its problem, and the times in microseconds of Inductor's first config and of those in either form.

    Kernels that Inductor would compile in another form are left out.
    """
    usual = {kernel for record in data.programs if record["variant"] != "flipped" for kernel in record["kernels"]}
    other = partners(data)
    found: dict[int, tuple[Problem, dict[Config, float]]] = {}
    for number, record in enumerate(data.kernels):
        problem = problem_of(record)
        if problem is not None and record["kernel"] in usual:
            times = {DEFAULT: record["mean"][0]}
            for each in (other.get(number, number), number):
                times |= dict(zip(configs_of(data.kernels[each]), data.kernels[each]["mean"], strict=False))
            found[number] = problem, times
    return found


def answered(data: Data, otherwise: Picks) -> tuple[Picks, Picks, Picks, Picks]:
    """The configs of the rows that ``build`` makes, of the regressions of ``distill``, and of rows, then regressions.

    The last are those of regressions if x may change, and this is one of its sizes. All are in the form of the kernel:
    the others were seldom measured.
    """
    measured = timings(data)
    by_rows, regressed, both, for_any = (np.broadcast_to(otherwise, data.held.shape).copy() for _ in range(4))
    for fold in range(FOLDS + 1):
        known = [each for number, each in measured.items() if not data.held[fold, number]]
        index, kernels = Index(rows_of_kernels(known, HARDWARE)), fit_kernels(known, HARDWARE)
        for number in np.flatnonzero(data.held[fold]).tolist():
            asked = problem_of(data.kernels[number])
            if asked is None:
                continue
            row, names = index.find(asked), configs_of(data.kernels[number])
            of_row = [names.index(config) for config in row.configs if config in names] if row is not None else []
            expected = [names.index(config) for config in kernels.ranked(asked) if config in names]
            by_rows[fold, number] = (*of_row, by_rows[fold, number])[0]
            regressed[fold, number] = (*expected, regressed[fold, number])[0]
            both[fold, number] = (*of_row, *(() if row is not None else expected), both[fold, number])[0]
            least = LEAST_CHANGING if asked.op == "pointwise" else 2
            of_range = [names.index(each) for each in kernels.ranked_over(asked, least, MAX_SIZE) if each in names]
            for_any[fold, number] = (*of_range, for_any[fold, number])[0]
    return by_rows, regressed, both, for_any


def show_shipped(data: Data) -> None:
    """Print times over the best by kernel, and weighted by time in programs, for kernels that tables or models answer.

    The first line is of Inductor's first configs, the second of answers without the device's own tables.
    """
    hardware = HARDWARE._replace(name=data.device)
    everything, others = (Sources(hardware, tiers_for(hardware, (), tiers)) for tiers in (TIERS, (SAME_ARCH, MODEL)))
    found: dict[int, list[int]] = {}
    for number, record in enumerate(data.kernels):
        if (problem := problem_of(record)) is not None:
            names, picks = configs_of(record), [0]
            for sources in (others, everything):
                answer = sources.first_answer(problem, THRESHOLD, padding=False)
                picks += [names.index(config) for config in answer.configs if config in names][:1]
            if len(picks) == 3:
                found[number] = picks
    weights = data.weight[[*found]]
    print(f"{len(found)} kernels of {data.device:13} by kernel  by time")
    for place, name in enumerate(("Inductor's first", "other devices' tables, models", "all")):
        lost = [data.loss[number, picks[place]] for number, picks in found.items()]
        print(f"{name:30} {exp(np.mean(lost)):9.4f} {exp(np.average(lost, weights=weights)):8.4f}")


def show(data: Data, name: str, picks: Picks) -> None:
    """Print a line: models, their 90th percentile, those kept away, other programs, kinds, and the worst model."""
    picks = np.broadcast_to(picks, data.held.shape)
    scores = data.score(picks, ("pointwise", "reduction", "persistent"))
    pieces = r"\dx\d|^(pointwise|embedding|drawn)|^(upsample|pool|argmax|cumsum)$|-fp(16|32)$"
    models = {program: score for program, score in scores.items() if not re.search(pieces, program)}
    others = [score for program, score in scores.items() if program not in models]
    away = [models.pop(program) for program in KEPT_AWAY if program in models]
    kinds = [list(data.score(picks, [kind]).values()) for kind in ("pointwise", "reduction", "persistent")]
    means = [exp(np.mean(np.log(group))) for group in ([*models.values()], away, others, *kinds)]
    means.insert(1, float(np.percentile([*models.values()], 90)))
    worst = max(models, key=lambda program: models[program])
    print(f"{name:30}", *(f"{mean:9.4f}" for mean in means), f"  {worst} {models[worst]:.3f}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--shipped", action="store_true", help="score the shipped tables and models")
    arguments = parser.parse_args()
    data = Data(arguments.data)
    if arguments.shipped:
        show_shipped(data)
        return
    print(f"{len(data.measured)} kernels, {len(data.usual)} programs, {len(data.fold)} families")
    print(f"{'':30}    models       p90      away    pieces pointwise    looped persistent worst model")
    own = np.array([np.argmin(record["warm"][: record["own"]]) for record in data.kernels])
    show(data, "Inductor's first config", np.zeros(len(own), np.int64))
    show(data, "Inductor's, benchmarked warm", own)
    for cache in ("cold", "warm"):
        show(data, f"all configs, {cache}", np.array([np.argmin(record[cache]) for record in data.kernels]))
    ways = ("rows", "regressions", "rows, then regressions", "regressions for any x")
    for name, picks in zip(ways, answered(data, own), strict=True):
        show(data, name, picks)


if __name__ == "__main__":
    main()
