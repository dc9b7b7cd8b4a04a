"""Kernels for a dynamic M on this GPU: one dynamic compile, and a static one per M with and without the hook.

A family is what a dataset has of GEMMs that differ in M only, with a row-major A. Each is compiled once with
``dynamic=True``, where B and the bias are parameters, so that M alone is dynamic, and for each of ``--sizes`` with a
static M, by default mode and by the hook. Other processes compile first, for half
of ``--seconds``. Then one process takes everything from their cache, captures it in CUDA graphs, and times the graphs
in interleaved rounds with a cold L2 cache. Times go to ``--out``, a line for each family and M. Run again with the same
file, it goes on with the families that are missing. PyTorch compiles M = 1 by itself also where M is dynamic; this does
not count as a recompile.

``--dispatch`` measures what a call costs on the CPU with three kernels for a dynamic M, and with one, for each of
``--sizes``: the difference is a median over turns, with its 95 % interval. After ``--seconds`` it stops. ``--decode``
compares the layers of a language model, compiled once with a dynamic number of tokens and once for each number, with
and without the hook: tokens per second, and the seconds that compiling takes. Both append lines to ``--out``.
"""

import argparse
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import torch
from modelbench.dynamic import (
    DISPATCHED,
    LARGEST_DISPATCHED,
    Step,
    bound,
    captured,
    fresh,
    measure_dispatch,
    measure_layers,
)
from modelbench.records import append, read
from score_dynamic import families_in
from torch._dynamo.utils import counters

import diode_lut
from diode_lut.measure.gemm import make_operands
from diode_lut.measure.timing import Bench
from diode_lut.problem import Problem

DATASET = Path(__file__).parents[1] / "tables" / "datasets" / "nvidia-h200-models.msgpack.zst"
SIZES = (1, 3, 8, 16, 33, 64, 128, 200, 512, 1024, 2048, 4096)
WAYS = ("aten", "dynamic", "static")
ROUNDS = 40
SLOWER = 0.98
LAST_S = 60.0  # how long compiles that have begun may go on after their time, in seconds


def main() -> None:
    """Measure what the options name, and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, default=DATASET)
    parser.add_argument("--families", type=int, default=40, help="draw this many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        metavar="M",
        help=f"(default: {_listed(SIZES)}; of --dispatch, 2 to {LARGEST_DISPATCHED}: {_listed(DISPATCHED)})",
    )
    parser.add_argument("--seconds", type=float, default=240, help="stop after about this time (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=8, help="that compile (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("dynamic.jsonl"))
    parser.add_argument("--dispatch", action="store_true", help="measure the CPU time of a call instead")
    parser.add_argument("--decode", action="store_true", help="measure a language model instead")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="of --decode")
    parser.add_argument("--tiny", action="store_true", help="try --decode out with a tiny model")
    options = parser.parse_args()
    options.sizes = tuple(options.sizes or (DISPATCHED if options.dispatch else SIZES))
    if options.dispatch:
        if not all(2 <= size <= LARGEST_DISPATCHED for size in options.sizes):
            parser.error(f"--dispatch takes --sizes from 2 to {LARGEST_DISPATCHED}: PyTorch compiles 1 separately")
        measure_dispatch(options.out, options.seconds, options.sizes)
    elif options.decode:
        measure_layers(options.out, options.seconds, device=options.device, tiny=options.tiny)
    else:
        measure_families(options)


def _listed(sizes: Sequence[int]) -> str:
    return " ".join(map(str, sizes))


def measure_families(options: argparse.Namespace) -> None:
    """Compile in parallel, time what is compiled, and sum up all that the file has."""
    started = time.monotonic()
    done = {line["family"] for line in read([options.out] if options.out.exists() else [])}
    known = sorted(problem for problem in families_in([options.dataset]) if problem.layout[0] == "n")
    drawn = random.Random(options.seed).sample(known, min(options.families, len(known)))
    families = [problem for problem in drawn if str(problem) not in done]
    with tempfile.TemporaryDirectory() as caches:
        os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["TRITON_CACHE_DIR"] = caches, f"{caches}/triton"
        compiled = compile_all(families, options, started + options.seconds / 2)
        print(f"{len(compiled)} of {len(families)} families compiled in {time.monotonic() - started:.0f} s", flush=True)
        bench = Bench()
        for problem in compiled:
            if time.monotonic() - started > options.seconds:
                break
            for line in measure(problem, options.sizes, bench):
                append(options.out, line)
    summarize(list(read([options.out] if options.out.exists() else [])))


def compile_all(families: Sequence[Problem], options: argparse.Namespace, until: float) -> list[Problem]:
    """Those that processes have compiled into the cache until then; all where there are none."""
    if not options.processes:
        return list(families)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "2"
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        futures: dict[Future[Any], Problem] = {
            pool.submit(warm, problem, tuple(options.sizes)): problem for problem in families
        }
        wait(futures, timeout=until - time.monotonic())
        workers = list(pool._processes.values())
        pool.shutdown(wait=False, cancel_futures=True)
        wait(futures, timeout=LAST_S)
        for worker in workers:
            worker.kill()
    finished = {future: problem for future, problem in futures.items() if future.done() and not future.cancelled()}
    for future, problem in finished.items():
        if error := future.exception():
            print(f"{problem}: {error!r}")
    return [problem for future, problem in finished.items() if not future.exception()]


def warm(problem: Problem, sizes: Sequence[int]) -> None:
    """Compile the family into the cache."""
    compile_family(problem, sizes)


def with_static_sizes(weight: torch.Tensor) -> torch.Tensor:
    """A parameter: PyTorch takes its sizes as constants, also with ``dynamic=True``."""
    return torch.nn.Parameter(weight, requires_grad=False)


def compile_family(problem: Problem, sizes: Sequence[int]) -> tuple[dict[int, dict[str, Step]], int]:
    """For each M its steps, called once, and how often Dynamo compiled the dynamic one."""
    torch._dynamo.reset()
    gemm = getattr(torch, problem.op)
    dynamic = torch.compile(fresh(gemm), dynamic=True)
    *bias, a, b = make_operands(problem._replace(m=max(sizes)), "cuda")
    *bias, b = map(with_static_sizes, (*bias, b))
    first = next(size for size in sorted(sizes, key=lambda size: abs(size - 100)) if size > 1)
    before = counters["stats"]["unique_graphs"]
    dynamic(*bias, a[:first], b)
    for size in sizes:
        dynamic(*bias, a[:size], b)
    compiles = counters["stats"]["unique_graphs"] - before
    steps: dict[int, dict[str, Step]] = {}
    for size in sizes:
        operands = (*bias, a[:size], b)
        ways = {"dynamic": dynamic, "static": torch.compile(fresh(gemm), dynamic=False)}
        ways["static"](*operands)
        with diode_lut.config.patch(policy="off"):
            ways["aten"] = torch.compile(fresh(gemm), dynamic=False)
            ways["aten"](*operands)
        steps[size] = {name: bound(ways[name], operands) for name in WAYS}
    return steps, compiles


def measure(problem: Problem, sizes: Sequence[int], bench: Bench) -> list[dict[str, Any]]:
    """A line for each M: nanoseconds of each way, and whether the results agree."""
    steps, compiles = compile_family(problem, sizes)
    lines = []
    for size, ways in steps.items():
        expected = ways["aten"]().double()
        wrong = [name for name in WAYS if (ways[name]().double() - expected).norm() > 1e-2 * expected.norm()]
        graphs = [captured(ways[name]) for name in WAYS]
        times = np.median(bench.rounds([graph.replay for graph in graphs], ROUNDS), axis=0).round().tolist()
        recompiled = compiles - 1 - (1 in sizes)
        line = {"family": str(problem), "m": size, "ns": dict(zip(WAYS, times, strict=True))}
        lines.append({**line, "recompiled": recompiled, "wrong": wrong})
    return lines


def summarize(lines: Sequence[Mapping[str, Any]]) -> None:
    """Print the means over all, for each M, and what is slower than aten."""
    if not lines:
        raise SystemExit("nothing was measured: give more --seconds")
    print(f"{'M':>6} {'dynamic':>9} {'static':>9} {'dynamic/static':>15}   (times as fast as aten)")
    for size in (*sorted({line["m"] for line in lines}), None):
        of_size = [line for line in lines if size in (line["m"], None)]
        means = [geometric_mean(gain(line, name) for line in of_size) for name in ("dynamic", "static")]
        print(f"{size or 'all':>6} {means[0]:9.3f} {means[1]:9.3f} {means[0] / means[1]:15.3f}")
    slower = sorted((gain(line, "dynamic"), line["m"], line["family"]) for line in lines)
    below = [each for each in slower if each[0] < SLOWER]
    families = {line["family"]: line for line in lines}
    recompiled = sum(line["recompiled"] != 0 for line in families.values())
    print(f"{len(families)} families, {len(lines)} problems; least {slower[0]}; below {SLOWER}: {len(below)}")
    for ratio, size, family in below:
        print(f"  {ratio:.3f} at M = {size}: {family}")
    print(f"recompiled: {recompiled}; wrong: {sum(bool(line['wrong']) for line in lines)}")


def gain(line: Mapping[str, Any], way: str) -> float:
    """Times as fast as aten."""
    return float(line["ns"]["aten"] / line["ns"][way])


if __name__ == "__main__":
    main()
