"""Says what the times of generated kernels tell: about whole programs, other forms of a kernel, and short searches.

``python tools/describe_generated.py`` reads the same file as score_generated.py. With ``--write`` it makes the file of
the configs that ``tune`` tries for a generated kernel.
"""

import argparse
import json
from collections import defaultdict
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
from score_generated import DATA, Data, computed, configs_of, problem_of


def main() -> None:
    """Print all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--write", type=Path, help="the file of configs to try")
    options = parser.parse_args()
    data = Data(options.data)
    if options.write:
        chosen = searches(data)
        lines = (f"  {json.dumps(key)}: {json.dumps(chosen[key])}" for key in sorted(chosen))
        options.write.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return
    predictions(data)
    forms(data)
    searches(data)
    looped = [record for record in data.kernels if any(config[-1] == 3 for config in record["configs"])]
    plain = [[t for t, config in zip(r["cold"], r["configs"], strict=True) if config[-1] == 1] for r in looped]
    print(f"one stage over best: {np.mean([min(p) / min(r['cold']) for p, r in zip(plain, looped, strict=True)]):.4f}")
    spilling = sum(record["resources"][int(np.argmin(record["cold"]))][1] > 0 for record in data.kernels)
    print(f"kernels whose best config spills: {spilling}")
    errors = [record["errors"] for record in data.replayed if isinstance(record["errors"], dict)]
    ratios = [error["cold"] / error["first"] for error in errors if 0 < error["first"] < 0.05]
    print(f"errors over those of Inductor's first: {min(ratios):.4f} to {max(ratios):.4f}, {len(ratios)} programs")


def predictions(data: Data) -> None:
    """Print how well a kernel's times, cold, warm and their mean, tell what a program gains in a CUDA graph."""
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    programs = {record["program"]: record for record in data.usual}
    ratios = defaultdict(list)
    for record in data.replayed:
        times, calls = record["times"], programs[record["replayed"]]["kernels"]
        for way in ("first", "own", "cold", "warm"):
            ratios[way].append(log(times[way] / times["chosen"]))
        for label, spent in times.items() if len(record["missing"]) <= 3 else ():  # else others change as well
            way, _, alone = label.partition(" ")
            rows = [data.measured[k] for k in ([alone] if alone else calls) if k in data.measured]
            for timing in ("cold", "warm", "mean") if way in ("cold", "warm") else ():
                told = [calls[row["kernel"]] * (row[timing][0] - row[timing][np.argmin(row[way])]) for row in rows]
                points[f"{'kernel' if alone else 'program'}, {timing}"].append((sum(told), times["first"] - spent))
    for label, pairs in sorted(points.items()):
        told, seen = np.array(pairs).T
        slope, correlation = (told * seen).sum() / (told * told).sum(), np.corrcoef(told, seen)[0, 1]
        error = np.square(seen - told).mean() ** 0.5
        print(f"{label:14} {len(pairs)} graphs: slope {slope:.3f}, correlation {correlation:.3f}, error {error:.2f} us")
    means = {way: round(exp(np.mean(values)), 4) for way, values in ratios.items()}
    print(f"programs' times over those with Inductor's choices: {means}")


def forms(data: Data) -> None:
    """Print times of other forms and splits of reductions over those of Inductor's, each with its best config."""
    variants = {(record["program"], record["variant"]): record["kernels"] for record in data.programs}
    times = {kernel: min(record["cold"]) for kernel, record in data.measured.items()}
    found: dict[str, dict[Any, float]] = defaultdict(dict)
    for (program, variant), kernels in variants.items():
        usual = variants[program, ""]
        if variant == "flipped":
            alike = {computed(data.measured[kernel]): kernel for kernel in usual if kernel in times}
            for kernel in kernels.keys() & times.keys() - usual.keys():
                other = alike.get(computed(data.measured[kernel]), kernel)
                if other != kernel:
                    found[f"{data.measured[other]['kind']}, other form"][other] = times[kernel] / times[other]
        elif variant and kernels != usual and kernels.keys() | usual.keys() <= times.keys():
            totals = [sum(times[kernel] * n for kernel, n in each.items()) for each in (kernels, usual)]
            found[variant][program] = totals[0] / totals[1]
    for name, ratios in sorted(found.items()):
        values = np.array([*ratios.values()])
        both, many = exp(np.mean(np.log(np.minimum(values, 1)))), sum(values < 0.97)
        print(f"{name:24} {len(values)}: below 0.97 for {many}, least {min(values):.2f}, better of both {both:.3f}")


def searches(data: Data) -> dict[str, list[dict[str, int]]]:
    """Print what few configs reach that are chosen together for a form and r; return them, the most useful first."""
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for number, record in enumerate(data.kernels):
        if problem_of(record) is None:
            continue  # no table can have a row for it
        form = record["kind"] if record["kind"] != "pointwise" or len(record["blocks"]) == 1 else "tiled"
        groups[form, record["hint"] in ("INNER", None), min(record["hints"].get("r0_", 1), 1 << 14)].append(number)
    reached: dict[str, list[tuple[float, list[float]]]] = defaultdict(list)
    chosen: dict[str, list[dict[str, int]]] = {}
    for (form, inner, r), rows in groups.items():
        kind = {"pointwise": "flat", "tiled": "tiled"}.get(form, "inner" if inner else "outer")
        names = sorted(
            {
                name
                for row in rows
                for name in data.names[row]
                if sum(name in data.names[each] for each in rows) * 2 > len(rows)
            }
        )
        losses = np.array(
            [
                [dict(zip(data.names[row], data.loss[row], strict=False)).get(name, 1.0) for name in names]
                for row in rows
            ]
        )
        best, weights, means = np.minimum(data.loss[rows, 0], 1.0), data.weight[rows], []
        for _ in range(8 if len(rows) >= 20 else 0):
            added = np.minimum(best[:, None], losses)
            next_best = int(np.argmin(weights @ added))
            best = added[:, next_best]
            config = configs_of({**data.kernels[rows[0]], "configs": [names[next_best]]})[0].to_json()
            chosen.setdefault(f"{config.pop('template')} {kind} {r}", []).append(config)
            means.append(float(np.average(best, weights=weights)))
        reached[form] += [(len(rows), means)] if means else []
    for form, parts in reached.items():
        counts, each = zip(*parts, strict=True)
        total = np.exp(np.average(np.array(each), axis=0, weights=counts))
        print(f"{form:12} Inductor's first and 1, 2, 4, 8 more: {total[[0, 1, 3, 7]].round(4)}")
    return chosen


if __name__ == "__main__":
    main()
