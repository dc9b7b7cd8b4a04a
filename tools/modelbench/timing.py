"""All labels of one model, timed in one process, and their errors."""

import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import torch
from modelbench.labels import EAGER, Label
from modelbench.models import Workload, build
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor.codecache import PyCodeCache
from torch._inductor.utils import clear_caches

from diode_lut.measure.timing import Bench

ROUNDS = 60
CPU_ROUNDS = 3
NOT_COMPUTED = 0.5  # relative error in eager mode of tensors that say nothing, such as gradients of zero


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """While no other process that has this file locks it, such as for the times on a GPU."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Compiled(NamedTuple):
    """One compile to time: its label, its number among those of the label, and the directory of its caches."""

    label: Label
    repetition: int
    caches: Path


Step = Callable[[], tuple[Tensor, ...]]  # runs the model once, and returns its results


def time_model(
    model: str, compiles: list[Compiled], device: str, tiny: bool, alone: Callable[[], None]
) -> dict[str, Any]:
    """Microseconds of one step and relative errors: for each label a list, with one for each of its compiles.

    Compiles come from their caches, and are made again where these have none. ``alone`` is called before times are
    taken, and returns once nothing else uses the device.
    """
    workload = build(model, device, tiny)
    errors = Errors(workload)
    times = (_on_gpu if device == "cuda" else _on_cpu)(workload, compiles, errors, alone)
    return {
        "us": times,
        "errors": errors.by_label,
        "cache_hits": counters["inductor"]["fxgraph_cache_hit"],
        "cache_misses": counters["inductor"]["fxgraph_cache_miss"],
    }


class Errors:
    """Relative errors of results, against the same model in float64; ``by_label`` has eager mode's first.

    ValueError if no result says anything, such as those of a model whose last layer's weights are zero.
    """

    def __init__(self, workload: Workload) -> None:
        reference = workload.in_float64()
        self._exact = reference.step(reference.module)
        eager = self._of_each(workload.step(workload.module))
        self._computed = [index for index, error in enumerate(eager) if error < NOT_COMPUTED]
        if not self._computed:
            raise ValueError("no result to compare: in float64 all are zero, or eager mode's are far from them")
        self.by_label = {EAGER: [self._mean(eager)]}

    def add(self, label: str, results: tuple[Tensor, ...]) -> None:
        """Take in the results of one compile."""
        self.by_label.setdefault(label, []).append(self._mean(self._of_each(results)))

    def _of_each(self, results: tuple[Tensor, ...]) -> list[float]:
        pairs = zip(results, self._exact, strict=True)
        return [float((found.double() - exact).norm() / exact.norm()) for found, exact in pairs]

    def _mean(self, errors: list[float]) -> float:
        """The root mean square over the tensors."""
        return math.sqrt(fmean(errors[index] ** 2 for index in self._computed))


def _on_gpu(
    workload: Workload, compiles: list[Compiled], errors: Errors, alone: Callable[[], None]
) -> dict[str, list[float]]:
    """Each compile in a CUDA graph, all in each round in a new order, with a cold L2 cache.

    The graphs share their memory, so results are those of the latest replay.
    """
    pool = torch.cuda.graph_pool_handle()
    graphs, results, kept = [], [], []
    for each in compiles:
        graph, result = captured(_loaded(workload, each), pool)
        graphs.append(graph)
        results.append(result)
        kept += PyCodeCache.modules  # with the kernels and constants that the graph uses
    alone()
    rounds = Bench().rounds([graph.replay for graph in graphs], ROUNDS)
    for each, graph, result in zip(compiles, graphs, results, strict=True):
        graph.replay()
        torch.cuda.synchronize()
        errors.add(each.label.name, result)
    return _by_label(compiles, [median(column) / 1000 for column in rounds.T.tolist()])


def captured(step: Step, pool: Any) -> tuple[Any, tuple[Tensor, ...]]:
    """A CUDA graph of the step, and its results."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        results = step()
    return graph, results


def _on_cpu(
    workload: Workload, compiles: list[Compiled], errors: Errors, alone: Callable[[], None]
) -> dict[str, list[float]]:
    """One compile after the other, because loading the next one lets Dynamo forget the last."""
    alone()
    times = []
    for each in compiles:
        step = _loaded(workload, each)
        times.append(median(_seconds(step) for _ in range(CPU_ROUNDS)) * 1e6)
        errors.add(each.label.name, step())
    return _by_label(compiles, times)


def _seconds(step: Step) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def _loaded(workload: Workload, compiled: Compiled) -> Step:
    """The step, compiled and called once, with nothing in memory of other compiles."""
    torch._dynamo.reset()
    clear_caches()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(compiled.caches)
    os.environ["TRITON_CACHE_DIR"] = str(compiled.caches / "triton")
    module = compiled.label.compile(workload.module)
    with compiled.label.in_force():
        workload.step(module)
    return lambda: workload.step(module)


def _by_label(compiles: list[Compiled], values: list[float]) -> dict[str, list[float]]:
    by_label: dict[str, list[float]] = {}
    for each, value in zip(compiles, values, strict=True):
        by_label.setdefault(each.label.name, []).append(round(value, 3))
    return by_label
