"""Chooses the default search space of sweeps: few configs, with good ones for every problem that was swept before.

Run with ``python tools/choose_candidates.py tables/datasets/nvidia-h200-models.msgpack.zst
tables/datasets/few-rows/nvidia-h200-exhaustive.msgpack.zst tables/datasets/attention/nvidia-h200-exhaustive*``, on
exhaustive sweeps. For the architecture of these datasets it chooses Triton configs greedily, until each problem has
NEEDED of them (or all that it has) within NEAR of its best. It writes them to PATH, and prints what is lost on problems
that had no part in the choice: half of the problems, with a choice made from the other half.
"""

import math
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import orjson

from diode_lut.dataset import Record, read_dataset
from diode_lut.files import write_atomically
from diode_lut.measure.tasks import PATH, of_two_bytes, read_default_search_space
from diode_lut.problem import ATTENTION, BATCHED, ITEMSIZES
from diode_lut.templates.config import Config
from diode_lut.templates.triton_gemm import ONE_KERNEL, TritonGemm

NEAR = 1.02
NEEDED = 3

Factors = dict[Config, float]  # on one problem: the time of each config over the best time


def main(paths: list[Path]) -> None:
    """Replace the default search space of the datasets' architecture."""
    datasets = [read_dataset(path) for path in paths]
    (arch,) = {dataset.header.hardware.arch for dataset in datasets}
    kinds = list(swept(record for dataset in datasets for record in dataset))
    chosen = frozenset(config for kind in kinds for config in choose(kind))
    parts = []
    for name, configs in sorted({**read_default_search_space(), arch: chosen}.items()):
        lines = ",\n".join(orjson.dumps(config.to_json()).decode() for config in sorted(configs))
        parts.append(f"{orjson.dumps(name).decode()}: [\n{lines}\n]")
    write_atomically(PATH, ("{\n" + ",\n".join(parts) + "\n}\n").encode())
    print(f"{PATH}: {arch}: {len(chosen)} of {len({config for kind in kinds for each in kind for config in each})}")
    for kind in kinds:
        losses = np.log([*unseen_losses(kind)])
        tail = ", ".join(f"{share:.0%}: {math.exp(np.quantile(losses, share)) - 1:.1%}" for share in (0.95, 0.99, 1))
        mean = math.exp(losses.mean()) - 1
        print(
            f"{len(choose(kind))} for {len(kind)} problems; loss on unseen ones: {mean:.2%} in geometric mean; {tail}"
        )


def swept(records: Iterable[Record]) -> Iterator[list[Factors]]:
    """The factors of the swept problems: of GEMMs without a batch, of those with one, and of each op of attention.

    Configs of elements of one byte count as those of two bytes that stand for them, and those of small blocks, which
    have the same kernel with any number of warps, as those with 2 warps.
    """
    kinds: dict[str | bool, list[Factors]] = {}
    for record in records:
        times = record.times
        if record.stage == "sweep" and times:
            best, op = min(times.values()), record.problem.op
            kind = kinds.setdefault(op if op in ATTENTION else op in BATCHED, [])
            kind.append({_as_swept(record.problem.dtype, config): ns / best for config, ns in times.items()})
    return iter(kinds.values())


def _as_swept(dtype: str, config: Config) -> Config:
    config = of_two_bytes(dtype, config) if ITEMSIZES[dtype] == 1 else config
    if isinstance(config.kernel, TritonGemm) and config.tiles.block_m * config.tiles.block_n <= ONE_KERNEL:
        return config.with_tiles(config.tiles._replace(num_warps=2))
    return config


def choose(problems: Sequence[Factors]) -> list[Config]:
    """Triton configs, each the one that most problems still lack."""
    serving = [
        {config for config, factor in each.items() if factor <= NEAR and _is_compiled(config)} for each in problems
    ]
    lacking = {number: min(NEEDED, len(each)) for number, each in enumerate(serving) if each}
    chosen: list[Config] = []
    while lacking:
        counts: dict[Config, int] = {}
        for number in lacking:
            for config in serving[number]:
                counts[config] = counts.get(config, 0) + 1
        best = min(counts, key=lambda config: (-counts[config], config))
        chosen.append(best)
        for number in [number for number in lacking if best in serving[number]]:
            serving[number].remove(best)
            lacking[number] -= 1
            if not lacking[number]:
                del lacking[number]
    return chosen


def unseen_losses(problems: Sequence[Factors]) -> Iterator[float]:
    """Of every second problem, in an arbitrary order: what is left to it after a choice made without it."""
    shuffled = random.Random(0).sample(problems, len(problems))
    chosen = set(choose(shuffled[::2]))
    for factors in shuffled[1::2]:
        yield min(factor for config, factor in factors.items() if config in chosen or not _is_compiled(config))


def _is_compiled(config: Config) -> bool:
    """Whether trying it costs a compile; what does not is always tried."""
    return config.template.startswith("triton")


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
