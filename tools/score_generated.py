"""Scores ways to choose the configs of generated kernels, on programs that they have not seen.

``python tools/score_generated.py`` reads tools/modelbench/generated-nvidia-h100.jsonl.zst, made by bench_generated.py.
Programs are divided into eight parts by family, and the models that are kept away are a ninth, of which no other part
learns. What learns is scored on each part by what it learned from the kernels that no program of that part has. A
program's score is the geometric mean of time over the best time measured, weighted by time in the program.
``--without`` also scores the model without each group of features.
"""

import argparse
import json
import re
from collections.abc import Sequence
from math import exp, log2
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import zstandard
from modelbench.corpus import KEPT_AWAY

from diode_lut.build.generated import rows_of_kernels
from diode_lut.hardware import Hardware
from diode_lut.model.generated import fit_kernels
from diode_lut.problem import MAX_SIZE, Problem
from diode_lut.table.lookup import Index
from diode_lut.templates.config import DEFAULT, Config

FOLDS = 8  # The parts by family. The next part are the models that are kept away

DATA = Path(__file__).parent / "modelbench" / "generated-nvidia-h100.jsonl.zst"
HARDWARE = Hardware("NVIDIA H100", "sm_90", 132)
Record = dict[str, Any]
Picks = npt.NDArray[np.int64]  # the number of a config, by fold and kernel

SCALE = {"x": 0.3, "y": 0.3, "r": 1, "inner": 2, "outer": 2, "load": 0.3, "store": 0.3, "reduction": 0.5, "loops": 0.5}
SCALE |= {"per element": 0.7, "score x": 1, "score y": 1, "exp": 0.5, "padded": 1}
"""By how much features set kernels apart, for their nearest."""


LEAST_CHANGING = 8192  # elements of pointwise kernels whose number may change: two rows of a layer
WIDTH = 96  # of the two hidden layers of a network


class Data:
    """The measured kernels, and the programs that launch them."""

    def __init__(self, path: Path) -> None:
        lines = zstandard.decompress(path.read_bytes()).decode().splitlines()
        records = [json.loads(line) for line in lines[1:]]
        self.measured = {record["kernel"]: record for record in records if "cold" in record}
        self.programs = [record for record in records if "kernels" in record]
        self.usual = [record for record in self.programs if not record["variant"]]
        self.replayed = [record for record in records if "replayed" in record]
        self.kernels = [each for each in self.measured.values() if len(each["cold"]) > 1 and len(each["blocks"]) < 3]
        self.index = {record["kernel"]: number for number, record in enumerate(self.kernels)}
        self.names = [[tuple(config) for config in record["configs"]] for record in self.kernels]
        most = max(map(len, self.names))
        self.valid = np.array([[number < len(each) for number in range(most)] for each in self.names])
        self.loss = np.full(self.valid.shape, np.inf)
        for row, record in zip(self.loss, self.kernels, strict=True):
            row[: len(record["cold"])] = np.log(np.array(record["cold"]) / min(record["cold"]))
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
        return list(calls), np.array([n * min(self.kernels[row]["cold"]) for row, n in calls.items()])

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


def features(record: Record) -> dict[str, dict[str, float]]:
    """What is known about a kernel before its code is written, by group; sizes and bytes as logarithms."""
    known, meta, name = record["features"], record["meta"], record["name"]
    sizes = [getattr(torch, arg[0].removeprefix("torch.")).itemsize for arg in record["args"] if isinstance(arg, list)]
    scores, moved = meta.get("tiling_scores") or {}, known["reads"]["bytes"] + known["writes"]["bytes"]
    sides = [(part, dim, known[part].get(dim, (0, 0, 0))) for part in ("reads", "writes") for dim in "xr"]
    r, padded = known["rnumel"], record["hints"].get("r0_", 1) / known["rnumel"]
    looped, tiled = record["kind"] == "reduction", len(known["tiling"]) == 3
    heavy = ("exp", "erf", "tanh", "log", "sin", "sqrt", "truediv", "where", "indirect_indexing")
    welford = bool(re.search("layer_norm|group_norm|batch_norm|var_", name)) and "backward" not in name
    return {
        "sizes": {**{d: log2(known["tiling"].get(d, 1)) for d in "xy"}, "r": log2(r), "padded": log2(padded)},
        "form": {"pointwise": record["kind"] == "pointwise", "looped": looped, "tiled": tiled},
        "hint": {"inner": record["hint"] == "INNER", "outer": record["hint"] in ("OUTER", "OUTER_TINY")},
        "counts": {**{n: meta[f"num_{n}"] for n in ("load", "store", "reduction")}, "loops": known["reads"]["loops"]},
        "bytes": {"bytes": log2(moved + 1), "per element": log2((moved + 1) / known["numel"] / r)},
        "dtypes": {"narrowest": min(sizes), "widest": max(sizes), **{f"of {n}": sizes.count(n) for n in (2, 4)}},
        "contiguity": {f"{part} {d} {k}": v for part, d, counts in sides for k, v in zip("cbo", counts, strict=True)},
        "scores": {f"score {d[0]}": scores.get(d, 0) / max(sum(scores.values()), 1) for d in ("x", "y", "r0_")},
        "operations": {**{n: known["ops"].get(n, 0) for n in heavy}, "operations": log2(sum(known["ops"].values()))},
        "kind of reduction": {"welford": welford, "softmax": "softmax" in name or "logsumexp" in name},
    }


def of_config(record: Record, config: Sequence[int]) -> list[float]:
    """Features of a config of a kernel."""
    whole = record["hints"].get("r0_", 1) if record["kind"] == "persistent" else 1
    named = {"XBLOCK": 1, "YBLOCK": 1, "R0_BLOCK": whole, **dict(zip(record["blocks"], config, strict=False))}
    x, y, r, (warps, stages) = named["XBLOCK"], named["YBLOCK"], named["R0_BLOCK"], config[-2:]
    size_x, size_y = (record["features"]["tiling"].get(name, 1) for name in "xy")
    columns, loops = -(-size_x // x), -(-record["features"]["rnumel"] // r)
    grid = columns * -(-size_y // y)
    logarithms = map(log2, (x, y, r, warps, x * y * r / warps / 32, grid, grid * warps / 8448, loops))
    covered = (columns * x / size_x, loops * r / record["features"]["rnumel"])
    return [*logarithms, stages, *covered, min(8448 / grid / warps, 9.0)]


def by_rules(data: Data, otherwise: Picks) -> Picks:
    """The configs by rules, where they were measured; the rules were written after a look at all kernels."""
    picks = otherwise.copy()
    for number, record in enumerate(data.kernels):
        size, hints, inner = record["features"]["tiling"].get("x", 1), record["hints"], record["hint"] == "INNER"
        many, r, scores = size >= 4096, hints.get("r0_", 1), record["meta"].get("tiling_scores") or {}
        rule: tuple[int, ...]
        if record["kind"] == "persistent":  # 1,024 elements for each warp, one warp if that is enough
            rule = (max(1, min(8, 1024 // r)), max(1, r // 1024)) if inner else (32, max(1, r // 32))
        elif record["kind"] == "pointwise":
            wide = (256, 4, 4) if hints["x"] >= 1024 else (16, 256, 8)
            across = scores.get("x", 0) > scores.get("y", 0)
            rule = (64, 32, 8) if across else wide if scores.get("x") else (8, 256, 4)
        elif not inner or r > 8192:
            rule = (32, 16, 4) if not inner else (1, 2048, 16) if many else (1, 8192, 32)
        elif many and 512 < r <= 4096:
            rule = {1024: (2, 256, 2), 2048: (1, 256, 1), 4096: (1, 512, 4)}[r]
        else:
            rule = {1024: (2, r, 4)}.get(r, (512 // r, r, 1) if r <= 512 else (1, r, max(4, r // 1024)))
        if record["kind"] == "reduction" and not inner and size < 16384:
            continue
        name = (*(rule[1::-1] + rule[2:] if record["blocks"][0] == "YBLOCK" else rule), 1)
        picks[number] = data.names[number].index(name) if name in data.names[number] else picks[number]
    return picks


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
            times = {DEFAULT: record["cold"][0]}
            for each in (other.get(number, number), number):
                times |= dict(zip(configs_of(data.kernels[each]), data.kernels[each]["cold"], strict=False))
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


def nearest(data: Data, count: int) -> Picks:
    """The config with the least mean loss among the nearest kernels of the same form."""
    flat = [{name: v for group in features(record).values() for name, v in group.items()} for record in data.kernels]
    points = np.array([[each[name] * scale for name, scale in SCALE.items()] for each in flat])
    forms = np.array([" ".join([record["kind"], *record["blocks"]]) for record in data.kernels])
    picks = np.zeros((FOLDS + 1, len(forms)), np.int64)
    for fold, number in np.argwhere(data.held):
        others = np.flatnonzero(~data.held[fold] & (forms == forms[number]))
        distances = np.abs(points[others] - points[number]).sum(1)
        sums = np.zeros((2, len(data.names[number])))
        for place in np.argsort(distances, kind="stable")[:count]:
            known = dict(zip(data.names[others[place]], data.loss[others[place]], strict=False))
            for column, name in enumerate(data.names[number]):
                if name in known:
                    sums[:, column] += np.array([min(known[name], 1.0), 1]) / (0.3 + distances[place])
        if sums.any():
            enough = sums[1] >= 0.5 * sums[1].max()
            picks[fold, number] = np.where(enough, sums[0] / np.maximum(sums[1], 1e-9), np.inf).argmin()
    return picks


def model(data: Data, without: str = "", members: int = 4, steps: int = 1000) -> Picks:
    """The config with the best mean score of some small networks, which learn to lose little time in expectation."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    grouped = [features(record) for record in data.kernels]
    kernels = np.array([[v for name in each if name != without for v in each[name].values()] for each in grouped])
    configs = np.zeros((*data.valid.shape, 12))
    for number, record in enumerate(data.kernels):
        configs[number, : len(record["configs"])] = [of_config(record, config) for config in record["configs"]]
    both = np.concatenate([np.repeat(kernels[:, None].astype(float), configs.shape[1], 1), configs], 2)
    normal = (both - both[data.valid].mean(0)) / (both[data.valid].std(0) + 1e-9)
    inputs = torch.tensor(normal, dtype=torch.float32, device=device).clamp(-5, 5)
    valid = torch.tensor(data.valid, device=device)
    loss = torch.tensor(np.where(data.valid, np.minimum(data.loss, 2), 0), dtype=torch.float32, device=device)
    weight = torch.tensor(data.weight / data.weight.mean(), dtype=torch.float32, device=device)
    nets = (FOLDS + 1) * members
    shapes = [(inputs.shape[2], WIDTH), (1, WIDTH), (WIDTH, WIDTH), (1, WIDTH), (WIDTH, 1)]
    layers = [torch.randn(nets, *shape, device=device) * (shape[0] > 1) / shape[0] ** 0.5 for shape in shapes]
    optimizer = torch.optim.AdamW([layer.requires_grad_() for layer in layers], weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)

    def scores(given: torch.Tensor, first: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.silu(given @ first + rest[0])
        return (torch.nn.functional.silu(hidden @ rest[1] + rest[2]) @ rest[3]).squeeze(-1)

    known = [torch.tensor(np.flatnonzero(~held), device=device) for held in data.held for _ in range(members)]
    for _ in range(steps):
        some = torch.stack([rows[torch.randint(len(rows), (64,), device=device)] for rows in known])
        found = scores(inputs[some].flatten(1, 2), *layers).view(*some.shape, -1)
        chance = torch.softmax(torch.where(valid[some], found, -1e9), 2)
        apart = (-found / 8 - loss[some].clamp(max=0.7)).square() * valid[some]
        lost = (chance * loss[some]).sum(2) + apart.sum(2) / valid[some].sum(2)
        optimizer.zero_grad()
        (lost * weight[some]).mean(1).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        each = [scores(inputs, *(layer[number] for layer in layers)) for number in range(nets)]
        chances = torch.stack([torch.log_softmax(torch.where(valid, found, -1e9), 1) for found in each])
    return chances.view(FOLDS + 1, members, *valid.shape).mean(1).argmax(2).cpu().numpy()


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
    parser.add_argument("--without", action="store_true")
    arguments = parser.parse_args()
    data = Data(arguments.data)
    print(f"{len(data.measured)} kernels, {len(data.usual)} programs, {len(data.fold)} families")
    print(f"{'':30}    models       p90      away    pieces pointwise    looped persistent worst model")
    own = np.array([np.argmin(record["warm"][: record["own"]]) for record in data.kernels])
    show(data, "Inductor's first config", np.zeros(len(own), np.int64))
    show(data, "Inductor's, benchmarked warm", own)
    show(data, "all configs, benchmarked warm", np.array([np.argmin(record["warm"]) for record in data.kernels]))
    show(data, "rules", by_rules(data, own))
    ways = ("rows", "regressions", "rows, then regressions", "regressions for any x")
    for name, picks in zip(ways, answered(data, own), strict=True):
        show(data, name, picks)
    show(data, "nearest kernel", nearest(data, 1))
    show(data, "nearest six kernels", nearest(data, 6))
    show(data, "model", model(data))
    for group in features(data.kernels[0]) if arguments.without else ():
        show(data, f"model without {group}", model(data, group))


if __name__ == "__main__":
    main()
