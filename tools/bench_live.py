"""The benefit of the hook on this GPU: GEMMs compiled in default mode with and without it, timed side by side.

Run with ``python tools/bench_live.py FILE``, a problem file or a dataset. Both are compiled with one cache, which is
empty at first, so that Inductor decides for both alike whether to pad operands. It decides by a benchmark, whose result
may change. Times are medians of interleaved rounds with a cold L2 cache; gains are times without over times with the
hook. With ``DIODE_LUT_TIERS=model`` only the model answers.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import torch
from torch._inductor.utils import fresh_cache

import diode_lut
from diode_lut.dataset import read_dataset
from diode_lut.measure.gemm import make_operands, matmul_precision
from diode_lut.measure.problems import read_problems
from diode_lut.measure.timing import Bench
from diode_lut.problem import Problem

ROUNDS = 40
SLOWER = 0.97


def main() -> None:
    """Measure a sample, a line for each problem as it is done, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--sample", type=int, metavar="N", help="draw N of the problems")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("I", "OF"), help="every OF-th, from I on")
    options = parser.parse_args()
    problems = problems_in(options.file)
    if options.sample:
        problems = random.Random(options.seed).sample(problems, min(options.sample, len(problems)))
    first, step = options.part
    problems = problems[first::step]
    bench = Bench()
    gains: list[float] = []
    tiers: Counter[str] = Counter()
    for problem in problems:
        gain, tier = measure(problem, bench)
        gains.append(gain)
        tiers[tier] += 1
        print(f"{gain:6.3f}  {tier:8} {problem}", flush=True)
    slower = sum(gain < SLOWER for gain in gains)
    print(f"{len(gains)} problems, {dict(tiers)}: gain {geometric_mean(gains):.3f}, least {min(gains):.3f}")
    print(f"slower by over {1 - SLOWER:.0%}: {slower}")


def problems_in(path: Path) -> list[Problem]:
    """The problems of a problem file, or those of a dataset, in order."""
    if path.suffix == ".json":
        return read_problems(path)
    return sorted({record.problem for record in read_dataset(path)})


def measure(problem: Problem, bench: Bench) -> tuple[float, str]:
    """The gain, and the tier that answered; AssertionError if the two results differ by more than the type allows."""
    operands = make_operands(problem, "cuda")
    with matmul_precision(problem.dtype), fresh_cache():
        with diode_lut.config.patch(policy="off"):
            without = compiled(problem, operands)
        with diode_lut.profile_predictions() as counts:
            with_hook = compiled(problem, operands)
        tolerance = {"float32": 1e-4, "tf32": 2e-3}.get(problem.dtype, 1e-2)
        expected, found = without(*operands).double(), with_hook(*operands).double()  # a norm may overflow float16
        assert (found - expected).norm() <= tolerance * expected.norm(), problem
        calls = [lambda: without(*operands), lambda: with_hook(*operands)]
        before, after = np.median(bench.rounds(calls, ROUNDS), axis=0).tolist()
    tier = next((name for name, count in counts.hits.items() if count), "abstain")
    return before / after, tier


def compiled(problem: Problem, operands: tuple[torch.Tensor, ...]) -> Callable[..., torch.Tensor]:
    """The problem as default mode compiles it."""
    gemm: Any = getattr(torch, problem.op)

    class Matmul(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            return gemm(*tensors)

    exported = torch.export.export(Matmul(), operands).module()
    with torch.no_grad():
        function: Callable[..., torch.Tensor] = torch._inductor.compile(exported, list(operands))
        function(*operands)
    return function


if __name__ == "__main__":
    main()
