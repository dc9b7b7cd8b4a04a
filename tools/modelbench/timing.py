"""All labels of one model, timed in one process, and their errors."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from modelbench.compiling import synchronize
from modelbench.labels import Label
from modelbench.models import Workload, build
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor.utils import clear_caches

from diode_lut.collect.gemm import Bench

EAGER = "eager"
ROUNDS = 60
CPU_ROUNDS = 3
NOT_COMPUTED = 0.5
"""Relative error in bfloat16 of tensors that say nothing, such as gradients that are zero in exact arithmetic."""


class Compiled(NamedTuple):
    """One compile to time: its label, its number among those of the label, and the directory of its caches."""

    label: Label
    repetition: int
    caches: Path


class Runner(NamedTuple):
    """What can be timed: ``run`` leaves the results in ``results()``."""

    name: str
    run: Callable[[], object]
    results: Callable[[], tuple[Tensor, ...]]


def time_model(
    model: str, compiles: list[Compiled], device: str, tiny: bool, alone: Callable[[], None]
) -> dict[str, Any]:
    """Microseconds of one step and relative errors, for each label a list of one for each of its compiles, and eager.

    Compiles come from their caches, and are made again where these have none. ``alone`` is called before times are
    taken, and returns once nothing else uses the device.
    """
    workload = build(model, device, tiny)
    exact = _exact(workload)
    times, errors = (_on_gpu if device == "cuda" else _on_cpu)(workload, compiles, exact, alone)
    return {
        "us": times,
        "errors": errors,
        "cache_hits": counters["inductor"]["fxgraph_cache_hit"],
        "cache_misses": counters["inductor"]["fxgraph_cache_miss"],
    }


def _exact(workload: Workload) -> tuple[Tensor, ...]:
    copied = workload.in_float64()
    return copied.step(copied.module)


Measured = tuple[dict[str, list[float]], dict[str, list[float]]]


def _on_gpu(
    workload: Workload, compiles: list[Compiled], exact: tuple[Tensor, ...], alone: Callable[[], None]
) -> Measured:
    """Each compile in a CUDA graph, all in each round in a new order, with a cold L2 cache.

    The graphs share their memory, so results are those of the latest replay.
    """
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    runners = [_captured(EAGER, lambda: workload.step(workload.module), pool, stream)]
    for each in compiles:
        step = _loaded(workload, each)
        with each.label.in_force():
            runners.append(_captured(each.label.name, step, pool, stream))
    alone()
    bench = Bench()
    rounds = bench.rounds([runner.run for runner in runners], ROUNDS)
    times = [median(column) / 1000 for column in rounds.T.tolist()]
    return _by_label(runners, times), _by_label(runners, _errors(runners, exact))


def _captured(name: str, step: Callable[[], tuple[Tensor, ...]], pool: Any, stream: Any) -> Runner:
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        results = step()
    return Runner(name, graph.replay, lambda: results)


def _on_cpu(
    workload: Workload, compiles: list[Compiled], exact: tuple[Tensor, ...], alone: Callable[[], None]
) -> Measured:
    """One compile after the other, because loading the next one lets Dynamo forget the last."""
    alone()
    runners, times = [], []
    for name, each in [(EAGER, None), *((each.label.name, each) for each in compiles)]:
        step = _loaded(workload, each) if each else lambda: workload.step(workload.module)
        results = step()
        runners.append(Runner(name, step, partial(tuple, results)))
        times.append(median(_seconds(step) for _ in range(CPU_ROUNDS)) * 1e6)
    return _by_label(runners, times), _by_label(runners, _errors(runners, exact, again=False))


def _seconds(step: Callable[[], object]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def _loaded(workload: Workload, compiled: Compiled) -> Callable[[], tuple[Tensor, ...]]:
    """The step, compiled and called once, with nothing in memory of other compiles."""
    torch._dynamo.reset()
    clear_caches()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(compiled.caches)
    os.environ["TRITON_CACHE_DIR"] = str(compiled.caches / "triton")
    module = compiled.label.compile(workload.module)
    with compiled.label.in_force():
        workload.step(module)
    return lambda: workload.step(module)


def _errors(runners: list[Runner], exact: tuple[Tensor, ...], again: bool = True) -> list[float]:
    """Relative errors of the runners, the first of which is eager mode."""
    by_tensor = []
    for runner in runners:
        if again:
            runner.run()
            synchronize("cuda")
        by_tensor.append([_relative_error(*pair) for pair in zip(runner.results(), exact, strict=True)])
    computed = [index for index, error in enumerate(by_tensor[0]) if error < NOT_COMPUTED]
    return [_root_mean_square([errors[index] for index in computed]) for errors in by_tensor]


def _relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def _root_mean_square(values: list[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).square().mean().sqrt())


def _by_label(runners: list[Runner], values: list[float]) -> dict[str, list[float]]:
    by_label: dict[str, list[float]] = {}
    for runner, value in zip(runners, values, strict=True):
        by_label.setdefault(runner.name, []).append(value)
    return by_label
