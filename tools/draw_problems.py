"""Draws GEMMs with sizes of models, and chooses those about which the models of a GPU disagree.

``python tools/draw_problems.py OUT --like DATASET... --count 1500 --seed 1`` draws several times as many as it writes,
by the shares in CLASSES, leaves out the problems of the datasets, and keeps those from which a model learns most: one
model's first choice is slow by another's times, or no model answers although they expect a gain. The order is random,
so any first part of the file can be measured, and a model's split keeps a random part for testing.
"""

import argparse
import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from statistics import fmean

from write_problem_sets import as_file

from diode_lut.dataset import read_dataset
from diode_lut.decide.catalog import tiers_for
from diode_lut.decide.sources import THRESHOLD, ModelSource
from diode_lut.files import write_atomically
from diode_lut.problem import NO_EPILOGUE, Problem, contiguous_align
from diode_lut.settings import MODEL
from diode_lut.templates.config import ATEN

WIDTHS = (
    *(64, 96, 128, 160, 192, 256, 288, 320, 384, 432, 448, 512, 576, 640, 768, 896, 960, 1024, 1152, 1280, 1408, 1536),
    *(1664, 1792, 2048, 2304, 2560, 2816, 3072, 3200, 3456, 3584, 4096, 4304, 4608, 4864, 5120, 6144, 7168, 8192),
    *(9216, 10240, 11008, 13824, 14336, 16384, 18944),
)
"""Widths of layers."""

HEADS = (8, 12, 16, 32, 40, 64, 96, 128, 160, 192, 256, 384, 512)
HEAD_WIDTHS = (16, 24, 32, 40, 48, 64, 72, 80, 96, 128)  # heads of all batches, and their widths
MOST_OPERATIONS = 6e11  # a larger GEMM takes long to measure
DRAWN = 4  # number of problems drawn for each that is written
Draw = Callable[[random.Random], tuple[str, str, int, int, int, int]]  # draws op, layout, and sizes b, m, n, k


def between(draw: random.Random, low: int, high: int) -> int:
    """Return an integer, its logarithm drawn evenly."""
    return round(math.exp(draw.uniform(math.log(low), math.log(high))))


def tokens(draw: random.Random, low: int, high: int) -> int:
    """Return a number of rows: often a length times a batch, or a multiple of 8."""
    rows, kind = between(draw, low, high), draw.random()
    return rows if kind < 0.35 else max(low, rows // 8 * 8) if kind < 0.75 else 2 ** round(math.log2(rows))


def _attention(lengths: Callable[[random.Random], int]) -> Draw:
    def drawn(draw: random.Random) -> tuple[str, str, int, int, int, int]:
        heads, width, length = draw.choice(HEADS), draw.choice(HEAD_WIDTHS), lengths(draw)
        op = "baddbmm" if draw.random() < 0.15 else "bmm"
        ways = (
            ("nt", length, length, width),
            ("nn", length, length, width),
            ("nn", length, width, length),
            ("tn", length, width, length),
        )
        layout, *sizes = draw.choice(ways)
        return (op, layout, heads, *sizes)  # type: ignore[return-value]

    return drawn


def _linear(
    rows: Callable[[random.Random], int],
    n: Callable[[random.Random], int],
    k: Callable[[random.Random], int],
    layouts: Sequence[str] = ("nt", "nt", "nt", "nn"),
) -> Draw:
    def drawn(draw: random.Random) -> tuple[str, str, int, int, int, int]:
        return draw.choice(("mm", "addmm")), draw.choice(layouts), 1, rows(draw), n(draw), k(draw)

    return drawn


def width(draw: random.Random) -> int:
    """Return a width."""
    return draw.choice(WIDTHS)


def uneven(draw: random.Random) -> int:
    """Return a width that is no multiple of 8."""
    return draw.choice(WIDTHS) + draw.choice((1, 2, 3, 4, 5, 7)) if draw.random() < 0.6 else between(draw, 9, 700) | 1


CLASSES: dict[str, tuple[int, Draw]] = {
    "attention, odd lengths": (5, _attention(lambda draw: between(draw, 9, 800) | 1)),
    "attention, even lengths": (3, _attention(lambda draw: between(draw, 2, 100) * 8)),
    "tiny": (1, _linear(lambda d: between(d, 1, 80), lambda d: between(d, 4, 128), lambda d: between(d, 4, 128))),
    "few rows, short K": (2, _linear(lambda d: between(d, 1, 64), width, lambda d: between(d, 2, 32) * 8)),
    "few rows": (3, _linear(lambda d: between(d, 1, 96), width, width)),
    "very long K": (
        2,
        _linear(
            lambda d: between(d, 1, 40) * 8,
            lambda d: between(d, 1, 40) * 8,
            lambda d: between(d, 600, 16000) * 8,
            ("tn", "tn", "nt", "nn"),
        ),
    ),
    "unaligned N": (3, _linear(lambda d: tokens(d, 1, 8192), uneven, width)),
    "unaligned K": (3, _linear(lambda d: tokens(d, 1, 8192), width, uneven)),
    "short K, many rows": (
        3,
        _linear(lambda d: tokens(d, 2000, 80000), lambda d: between(d, 8, 160) * 8, lambda d: between(d, 6, 40) * 8),
    ),
    "gradients of few rows": (2, _linear(width, width, lambda d: between(d, 2, 800), ("tn",))),
    "linear layers": (5, _linear(lambda d: tokens(d, 64, 16384), width, width)),
    "linear layers, epilogues": (2, _linear(lambda d: tokens(d, 2, 8192), width, width)),
}
"""The classes with their shares."""

DTYPES = ("bfloat16", "bfloat16", "bfloat16", "bfloat16", "float16", "float16", "float16", "tf32", "tf32", "float32")


def problems(name: str, draw: random.Random) -> Iterator[Problem]:
    """Yield problems of a class without an end."""
    while True:
        op, layout, b, m, n, k = CLASSES[name][1](draw)
        dtype, epilogue = draw.choice(DTYPES), NO_EPILOGUE
        if "epilogues" in name:
            dtype = draw.choice(("bfloat16", "bfloat16", "float16"))
            epilogue = draw.choice(("light", "medium", "heavy"))
        problem = Problem(op, dtype, layout, contiguous_align(dtype, layout, m, n, k, b), b, m, n, k, epilogue)
        if problem.operations <= MOST_OPERATIONS and (dtype != "float32" or problem.operations < 2e10):
            yield problem


def doubtful(problem: Problem, models: Sequence[ModelSource]) -> float:
    """Return how much the models disagree: the losses that they expect of each other's first choices and of the answer.

    It is 0 for a problem that fewer than two know.
    """
    times = [known for model in models if (known := model.times(problem, padding=True))]
    if len(times) < 2:
        return 0.0
    together = {
        config: fmean(math.log(known[config]) for known in times if config in known)
        for config in dict.fromkeys(chain.from_iterable(times))
    }
    least = [math.log(min(known.values())) for known in times]
    best = min(together.values())
    losses = [together[min(known, key=known.__getitem__)] - best for known in times]
    answers = (model.ask(problem, THRESHOLD, padding=True) for model in models)
    answer = next((each.configs[0] for each in answers if each is not None and each.configs), ATEN)
    return sum(losses) + together[answer] - best + (max(least) - min(least)) / 2


def main() -> None:
    """Write the problems."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--like", type=Path, nargs="+", required=True, help="of the GPU, and others of known problems")
    parser.add_argument("--model", action="append", default=[], help="models besides those that are shipped")
    parser.add_argument("--count", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    datasets = [read_dataset(path) for path in options.like]
    known = {record.problem.alone for dataset in datasets for record in dataset}
    (tier,) = tiers_for(datasets[0].header.hardware, options.model, (MODEL,))[-1:]
    models = [source for source in tier.sources if isinstance(source, ModelSource)]
    chosen: list[Problem] = []
    for name, (share, _) in CLASSES.items():
        draw = random.Random(f"{options.seed} {name}")
        count = round(options.count * share / sum(each for each, _ in CLASSES.values()))
        found: dict[Problem, float] = {}
        for problem in islice(problems(name, draw), 100 * count):
            if len(found) == DRAWN * count:
                break
            if problem.alone not in known and problem not in found and (doubt := doubtful(problem, models)):
                found[problem] = doubt
        best = sorted(found, key=found.__getitem__, reverse=True)[:count]
        chosen += best
        print(f"{name}: {len(best)} of {len(found)}, doubts {found[best[0]]:.3f} to {found[best[-1]]:.3f}", flush=True)
    random.Random(options.seed).shuffle(chosen)
    write_atomically(options.out, as_file(chosen))


if __name__ == "__main__":
    main()
