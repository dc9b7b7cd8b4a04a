"""Compiles the configs that a sweep may try, for architectures whose GPUs are not here, and checks our rules by it.

``python tools/compile_candidates.py --out results.jsonl`` compiles all of them, ``--sample 3`` a few for each
architecture. Triton says how much shared memory and how many registers each kernel takes. That is compared with
``hardware.py`` and ``templates/triton_gemm.py``: what they let pass must compile and fit. ``--out`` gets
a line for each kernel, and what is there already is not compiled again.
"""

import argparse
import json
import random
import re
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from diode_lut.compile_check import Trial, compiled, each_in_a_process
from diode_lut.hardware import Hardware, architecture
from diode_lut.measure.tasks import candidates as of_problem
from diode_lut.problem import ITEMSIZES, Problem
from diode_lut.templates.config import Config
from diode_lut.templates.template import SomeProblems

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx90a", "gfx942", "gfx950", "gfx1100")
SIZES = (16, 32, 64, 128, 4096)  # of M, N and K: those at which the search space changes
MULTIPROCESSORS = 132
SPACE = "exhaustive"
BARRIERS = 128  # bytes that our rules add for barriers, of which some kernels have none

COLUMNS = {
    "kernels": "compiled",
    "pass": "our rules find nothing wrong with them",
    "failed": "of these, do not compile",
    "too large": "of these, take more shared memory than there is",
    "over": "of these, take more than our rules say",
    "exact": "of these, take what our rules say, but for the barriers",
    "spill": "of these, spill registers",
    "refused": "our rules find that they cannot be launched",
    "would fit": "of these, take no more shared memory than there is",
}
"""What is counted."""


class Found(NamedTuple):
    """What Triton says of a kernel: bytes of shared memory, registers of a thread, and what of them it spilled.

    Spills are in bytes for CUDA and in registers for ROCm.
    """

    shared: int
    registers: int
    spilled: int


def candidates(arch: str, dtype: str) -> list[Config]:
    """All configs of a tiled template that the exhaustive search space has for some ``mm`` of the type."""
    found = dict.fromkeys(
        config
        for m, n, k in product(SIZES, repeat=3)
        for config in of_problem(Problem("mm", dtype, "nt", 16, 1, m, n, k), Hardware("", arch, MULTIPROCESSORS), SPACE)
        if config.kernel.tiled
    )
    return sorted(found)


def predicted(trial: Trial) -> int:
    """Bytes of shared memory by our rules."""
    kernel: Any = trial.config.kernel
    return int(kernel.shared_memory(trial.config.tiles, "mm", ITEMSIZES[trial.dtype], architecture(trial.arch)))


def passes(trial: Trial) -> bool:
    """Whether our rules find nothing wrong with the config."""
    covered = SomeProblems("mm", trial.dtype, trial.align)
    return not any(trial.config.kernel.complaints(trial.config.params, covered, architecture(trial.arch)))


def measure(trial: Trial) -> Found:
    """Compile it; any error of Triton's if it does not compile."""
    kernel = compiled(trial)
    shared = int(kernel.metadata.shared)
    if "amdgcn" in kernel.asm:
        count, spilled = re.findall(r"\.vgpr_(?:spill_)?count:\s*(\d+)", kernel.asm["amdgcn"])
        return Found(shared, int(count), int(spilled))
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ((registers, stack),) = re.findall(r"REG:(\d+) STACK:(\d+)", said)
    return Found(shared, int(registers), int(stack))


def verdicts(trial: Trial, result: Found | str) -> Iterator[str]:
    """Those of COLUMNS that count the kernel; ``result`` is an error if it is text."""
    limit = architecture(trial.arch).shared_memory
    assert limit is not None
    fine = passes(trial)
    yield "pass" if fine else "refused"
    if isinstance(result, str):
        yield from ["failed"] * fine
        return
    yield "kernels"
    excess = result.shared - predicted(trial)
    said = {
        "too large": fine and result.shared > limit,
        "over": fine and excess > 0,
        "exact": fine and -BARRIERS <= excess <= 0,
        "spill": fine and result.spilled > 0,
        "would fit": not fine and result.shared <= limit,
    }
    yield from (name for name, holds in said.items() if holds)


def report(results: Mapping[Trial, Found | str]) -> None:
    """Print the counts for each architecture, and the kernels with which our rules are wrong."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for trial, result in results.items():
        found = set(verdicts(trial, result))
        counts[trial.arch].update(found)
        if found & {"failed", "too large"}:
            print(f"{trial.arch} {trial.config} {trial.dtype} {trial.layout} align {trial.align}: {result}")
    print(f"{'':8}" + "".join(f"{name:>10}" for name in COLUMNS))
    for arch, count in counts.items():
        print(f"{arch:8}" + "".join(f"{count[name]:>10}" for name in COLUMNS))
    print("\n".join(f"{name}: {meaning}" for name, meaning in COLUMNS.items()))


def drawn(arguments: argparse.Namespace) -> list[Trial]:
    """The trials in an order in which a part of them is a fair sample."""
    chance = random.Random(arguments.seed)
    trials: list[Trial] = []
    for arch, dtype, layout, align in product(arguments.arch, arguments.dtype, arguments.layout, arguments.align):
        found = [Trial(arch, config, dtype, layout, align) for config in candidates(arch, dtype)]
        trials += chance.sample(found, min(arguments.sample or len(found), len(found)))
    chance.shuffle(trials)
    return trials


def written(path: Path) -> Iterator[tuple[Trial, Found | str]]:
    """The trials in a file, each with what was found, or with the error as text."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        (arch, config, dtype, layout, align), result = json.loads(line)
        trial = Trial(arch, Config.parse(config), dtype, layout, align)
        yield trial, result if isinstance(result, str) else Found(*result)


def main() -> None:
    """Compile what the command line asks for, and print a line for each architecture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", nargs="+", default=ARCHITECTURES, help="default: all of them")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16"])
    parser.add_argument("--layout", nargs="+", default=["nt"])
    parser.add_argument("--align", nargs="+", type=int, default=[16])
    parser.add_argument("--sample", type=int, default=0, help="number of configs for each architecture (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; continued if it exists")
    arguments = parser.parse_args()
    known, trials = dict(written(arguments.out)), drawn(arguments)
    with arguments.out.open("a", encoding="utf-8") as out:
        for trial, done in each_in_a_process(measure, [trial for trial in trials if trial not in known]):
            error = done.exception()
            result = done.result() if error is None else f"{type(error).__name__}: {error}"[:500]
            known[trial] = result
            named = [trial.arch, str(trial.config), trial.dtype, trial.layout, trial.align]
            print(json.dumps([named, result]), file=out, flush=True)
    report({trial: known[trial] for trial in trials})


if __name__ == "__main__":
    main()
