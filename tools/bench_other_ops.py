"""What a table could gain for ops that tables do not know: needs a GPU.

``python tools/bench_other_ops.py --out other.jsonl --budget 480`` measures sums of two matmuls, matmuls of integers,
matmuls with results in float32, 1x1 convolutions, and the grouped matmuls of experts, on sizes of public models. For
each it compiles what the library computes, and the fastest of Inductor's Triton kernels, which Inductor finds by its
own benchmarks. Everything is captured in CUDA graphs, which are timed in interleaved rounds with a cold L2 cache; a
time is the median. Results are compared with float64.

Each problem is a line of the results; run again with the same file, it goes on with those that are missing. Problems
that fail have their error in the place of times. ``--table`` prints what the file has, as Markdown.
``--device cpu --tiny`` tries this out.
"""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

import torch
from modelbench.dynamic import milliseconds
from modelbench.other_ops import KERNEL, OPS, Sizes
from modelbench.searching import SPACES, searching
from modelbench.ways import Compiled, Line, compiled, difference, measure_missing, read
from torch import Tensor
from torch._inductor.utils import fresh_cache

LIMIT = 180.0
"""Seconds after which a problem counts as hung."""

WRONG = 0.01
"""The largest difference from float64 of a result, relative to its norm; bfloat16 rounds by 0.002."""

WORTH = 1.03
"""The gain from which an op is worth a table, on some problem."""


def main() -> None:
    """Measure what is missing, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("other.jsonl"))
    parser.add_argument("--budget", type=float, default=480, metavar="SECONDS", help="start no problem after this time")
    parser.add_argument("--ops", default=",".join(OPS), metavar="OP,...", help="default: %(default)s")
    parser.add_argument("--search-space", choices=SPACES, default=SPACES[0], help="default: %(default)s")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="try it out with one small problem of each op")
    parser.add_argument("--table", action="store_true", help="print the results that are there, and measure nothing")
    options = parser.parse_args()
    if not options.table:
        for name in ("torch._inductor.select_algorithm", "torch._inductor.runtime.triton_heuristics"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # which write a traceback for each kernel that fails
        problems = list(problems_of(options.ops.split(","), tiny=options.tiny))
        measure(problems, options.out, options.budget, options.device, options.search_space)
    print(markdown(read(options.out)))


class Problem(NamedTuple):
    """An op of OPS with sizes; ``about`` is a phrase that says what computes it in a model."""

    op: str
    about: str
    sizes: Sizes

    @property
    def name(self) -> str:
        """What the results call it."""
        return f"{self.op}: {self.about}"


def problems_of(ops: Sequence[str], *, tiny: bool = False) -> Iterator[Problem]:
    """The problems of these ops, which take turns, so that each op has some if time is short."""
    if tiny:
        yield from (Problem(op, "tiny", OPS[op].tiny) for op in ops)
        return
    rounds = zip_longest(*([Problem(op, *case) for case in OPS[op].cases.items()] for op in ops))
    yield from filter(None, chain.from_iterable(rounds))


def measure(problems: Sequence[Problem], out: Path, budget: float, device: str, space: str) -> None:
    """Add a line for each problem that has none yet, until ``budget`` seconds are over."""
    by_name = {problem.name: problem for problem in problems}
    measure_missing(out, by_name, lambda name: measured(by_name[name], device, space), device, budget, LIMIT)


def measured(problem: Problem, device: str, space: str) -> Line:
    """Milliseconds, kernels and relative differences from float64 of each way; RuntimeError where one fails."""
    with fresh_cache(), torch.no_grad():
        operands, exact = operands_of(problem, device)
        ways = compiled_ways(problem, operands, device, space)
        return {
            "op": problem.op,
            "today": [name for name in OPS[problem.op].today if name in ways],
            "ms": milliseconds({name: way.step for name, way in ways.items()}, device),
            "kernels": {name: way.kernels for name, way in ways.items()},
            "difference": {name: difference(way.results, exact) for name, way in ways.items()},
            "config": config_in(ways[KERNEL].code) if KERNEL in ways else "",
            "space": space,
            "torch": torch.__version__,
        }


def operands_of(problem: Problem, device: str) -> tuple[tuple[Tensor, ...], Tensor]:
    """Random operands, and the result in float64."""
    torch.manual_seed(0)
    op = OPS[problem.op]
    with torch.device(device):
        operands = op.make(*problem.sizes)
        return operands, op.exact(*(each.double() for each in operands))


def compiled_ways(problem: Problem, operands: Sequence[Tensor], device: str, space: str) -> dict[str, Compiled]:
    """Each way that the device has, compiled and called once."""
    torch._dynamo.reset()
    op = OPS[problem.op]
    with searching(space, op.template):
        return {name: compiled(op.functions[way.function], operands, way) for name, way in op.ways_on(device).items()}


def config_in(code: str) -> str:
    """The tunables of the Triton template in generated code, as tables write them; empty if there is none."""
    _, template, source = code.partition("triton_heuristics.template(")
    launch = re.search(r"num_stages=(\d+),\s*num_warps=(\d+)", source)
    if not template or launch is None:
        return ""
    blocks = dict(re.findall(r"(BLOCK_[MNK]|GROUP_M) : tl\.constexpr = (\d+)", source))
    group = f" g{blocks['GROUP_M']}" if "GROUP_M" in blocks else ""
    return f"{blocks['BLOCK_M']}x{blocks['BLOCK_N']}x{blocks['BLOCK_K']}{group} s{launch[1]} w{launch[2]}"


def markdown(lines: Sequence[Line]) -> str:
    """The gain of each op over its problems, and of each problem."""
    right = [Gain.of(line) for line in lines if "ms" in line]
    by_op = {op: [gain for gain in right if gain.op == op] for op in OPS}
    rows = [
        "| op | problems | gain, geometric mean | largest | worth a row | Triton alone |",
        "|---|---|---|---|---|---|",
        *(_sums(op, gains) for op, gains in by_op.items() if gains),
        "",
        "| problem | today ms | way | best ms | way | gain | config |",
        "|---|---|---|---|---|---|---|",
        *(gain.row() for gains in by_op.values() for gain in gains),
        *(f"| {line['case']} | {line['error']} | | | | | |" for line in lines if "error" in line),
    ]
    return "\n".join(rows)


class Gain(NamedTuple):
    """What a table could gain for a problem: the fastest way of today, and the fastest of all that are right."""

    op: str
    case: str
    today: tuple[float, str]
    best: tuple[float, str]
    triton: float
    config: str

    @classmethod
    def of(cls, line: Line) -> Gain:
        """That of a line of the results."""
        times = {name: ms for name, ms in line["ms"].items() if line["difference"][name] <= WRONG}
        today = min((ms, name) for name, ms in line["ms"].items() if name in line["today"])
        best = min(((ms, name) for name, ms in times.items()), default=today)
        triton = today[0] / times[KERNEL] if KERNEL in times else 0.0
        return cls(line["op"], line["case"], today, best, triton, line["config"])

    @property
    def ratio(self) -> float:
        """Times as fast as today, and 1 where nothing is faster."""
        return self.today[0] / min(self.best[0], self.today[0])

    def row(self) -> str:
        """As Markdown."""
        (before, old), (after, new) = self.today, self.best
        config = self.config if new == KERNEL else ""
        return f"| {self.case} | {before:.4f} | {old} | {after:.4f} | {new} | {self.ratio:.3f} | {config} |"


def _sums(op: str, gains: Sequence[Gain]) -> str:
    ratios = [gain.ratio for gain in gains]
    triton = [gain.triton for gain in gains if gain.triton]
    alone = f"{geometric_mean(triton):.3f}" if triton else ""
    worth = sum(ratio >= WORTH for ratio in ratios)
    return f"| {op} | {len(gains)} | {geometric_mean(ratios):.3f} | {max(ratios):.3f} | {worth} | {alone} |"


if __name__ == "__main__":
    main()
