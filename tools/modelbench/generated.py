"""The kernels that Inductor generates for a program: their features, and their times with other configs.

The collector's rounds time each kernel: all configs in turns, with a cold L2 cache. A second pass times them with a
warm cache, right after the same kernel. Then CUDA graphs replay the whole program with other configs in its kernels.
"""

from __future__ import annotations

import importlib.util
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from modelbench.corpus import build
from modelbench.models import Workload
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.triton import TritonScheduling
from torch._inductor.runtime.hints import HeuristicType
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from triton import Config

from diode_lut.measure.timing import Bench

KINDS = {
    HeuristicType.POINTWISE: "pointwise",
    HeuristicType.REDUCTION: "reduction",
    HeuristicType.PERSISTENT_REDUCTION: "persistent",
}
DRAWN = {"pointwise": 10, "reduction": 18, "persistent": 12}
"""Number of configs drawn for a kernel of each kind, besides those that Inductor tries."""

ROUNDS, REPLAYS = 16, 30
MOST_KERNELS = 5
"""Number of kernels of a program that are replaced alone in its graph: those that gain most."""

TINY_GAIN = 0.3
"""Microseconds of a kernel's gain in a step below which it is not replaced alone."""


class Kernel:
    """One kernel of a program: the autotuner, the arguments of its first launch, and how often a step launches it."""

    def __init__(self, autotuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.autotuner, self.args, self.kwargs = autotuner, args, kwargs
        self.fresh = loaded(autotuner.filename)
        self.calls = 1
        self.name: str = autotuner.inductor_meta["kernel_name"]
        self.kind = KINDS[autotuner.heuristic_type]
        self.own: list[Config] = list(self.fresh.configs)
        self.configs = _unique([*self.own, *drawn(self)])
        self.chosen: Any = None

    @property
    def has_x(self) -> bool:
        """Whether XBLOCK is a tunable; else the code is for one row at a time."""
        return "XBLOCK" in self.own[0].kwargs


class Recorder:
    """The kernels that are launched while it is in force, and features of those that are generated."""

    def __init__(self) -> None:
        self.kernels: dict[int, Kernel] = {}
        self.features: dict[str, dict[str, Any]] = {}

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Look at what is generated and launched."""
        run, define = CachingAutotuner.run, TritonScheduling.define_kernel

        def recording_run(autotuner: Any, *args: Any, **kwargs: Any) -> Any:
            known = self.kernels.get(id(autotuner))
            if known is not None:
                known.calls += 1
            elif autotuner.heuristic_type in KINDS and "grid_type" in autotuner.inductor_meta:
                named = {name: value for name, value in kwargs.items() if name not in ("stream", "benchmark_run")}
                self.kernels[id(autotuner)] = Kernel(autotuner, tuple(map(_kept, args)), named)
            return run(autotuner, *args, **kwargs)  # type: ignore[no-untyped-call]

        def recording_define(scheduling: Any, src_code: str, node_schedule: Any, kernel: Any) -> str:
            name: str = define(scheduling, src_code, node_schedule, kernel)  # type: ignore[no-untyped-call]
            if name not in self.features:
                try:
                    self.features[name] = features_of(kernel)
                except Exception as error:  # noqa: BLE001 - a feature that cannot be had is missing
                    self.features[name] = {"error": repr(error)}
            return name

        CachingAutotuner.run = recording_run  # type: ignore[method-assign, assignment]
        TritonScheduling.define_kernel = recording_define  # type: ignore[method-assign]
        try:
            yield
        finally:
            CachingAutotuner.run, TritonScheduling.define_kernel = run, define  # type: ignore[method-assign]


def _kept(arg: Any) -> Any:
    """An argument for later launches, detached; indices are copied, since a program reuses memory."""
    if not isinstance(arg, torch.Tensor):
        return arg
    return arg.detach() if arg.is_floating_point() else arg.detach().clone()


def features_of(kernel: Any) -> dict[str, Any]:
    """Features of a kernel that are known before its code is written."""
    features = kernel.features
    stats = features.memory_stats()
    kept = stats.get(bool(getattr(kernel, "persistent_reduction", False)))
    memory = {
        part: {
            "bytes": str(of_part.bytes),
            "dim": [{name: str(value) for name, value in vars(dim).items()} for dim in of_part.dim],
            "loop": [vars(loop) for loop in of_part.loop],
        }
        for part, of_part in (("reads", kept.reads), ("writes", kept.writes))
    }
    return {
        "numel": str(features.numel),
        "rnumel": str(features.reduction_numel),
        "hint": str(features.get_reduction_hint()),
        "tiling": {name: str(size) for name, size in kernel.numels.items()},
        "persistent": bool(getattr(kernel, "persistent_reduction", False)),
        "no_x_dim": bool(getattr(kernel, "no_x_dim", False)),
        "cooperative": bool(getattr(kernel, "cooperative_reduction", False)),
        "ops": dict(features.op_counts()),
        "memory": memory,
    }


def drawn(kernel: Kernel) -> list[Config]:
    """Configs drawn at random that the kernel's code allows."""
    draw = random.Random(kernel.name)
    hints: dict[str, int] = kernel.fresh.size_hints
    names = [name for name in hints if name in "xyz"]
    stages = {config.num_stages for config in kernel.own}
    first = kernel.own[0].kwargs
    if any(name.startswith("r1") for name in hints) or "z" in names or "RSPLIT" in first or "RSPLIT_SIZE" in first:
        return []
    r = hints.get("r0_", 1)
    limit = {"x": 4096, "y": 1024}
    found: dict[str, Config] = {}
    for _ in range(1000):
        blocks = {name: 1 << draw.randint(0, 12) for name in names} if kernel.has_x else {}
        if any(size > min(limit[name], max(hints[name], 1) * 2) for name, size in blocks.items()):
            continue
        area = 1
        for size in blocks.values():
            area *= size
        if kernel.kind == "reduction":
            block_r = 1 << draw.randint(4, 13)
            if block_r >= 2 * r:
                continue
            area *= block_r
        elif kernel.kind == "persistent":
            block_r, area = 0, area * r
        else:
            block_r = 0
        warps = 1 << draw.randint(0, 5)
        if not 1 <= area / (32 * warps) <= (64 if kernel.kind == "pointwise" else 128):
            continue
        values = {f"{name.upper()}BLOCK": size for name, size in blocks.items()}
        if block_r:
            values["R0_BLOCK"] = block_r
        more = draw.choice((1, 1, 2, 3)) if kernel.kind == "reduction" else min(stages)
        config = Config({**first, **values}, num_warps=warps, num_stages=more)
        found[text(config)] = config
        if len(found) == DRAWN[kernel.kind]:
            break
    return list(found.values())


def text(config: Any) -> str:
    """``XBLOCK 1 R0_BLOCK 512 w4 s1``."""
    blocks = " ".join(f"{name} {value}" for name, value in config.kwargs.items())
    return f"{blocks} w{config.num_warps} s{config.num_stages}"


def _unique(configs: Sequence[Config]) -> list[Config]:
    return list({text(config): config for config in configs}.values())


def loaded(path: str) -> Any:
    """The autotuner of the kernel in the file ``path``, with the configs that Inductor tries, none of them compiled."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return next(each for each in vars(module).values() if isinstance(each, CachingAutotuner))


def precompile(path: str, configs: list[tuple[dict[str, int], int, int]]) -> int:
    """Compile the kernel in the file ``path`` with these configs, into Triton's cache; return how many compiled."""
    autotuner = loaded(path)
    done = 0
    for values, warps, stages in configs:
        try:
            autotuner._precompile_config(Config(values, num_warps=warps, num_stages=stages))
            done += 1
        except Exception:  # noqa: BLE001, PERF203 - what cannot be compiled is no candidate
            continue
    return done


class Program(NamedTuple):
    """A compiled program and its kernels, whose other configs the jobs compile."""

    name: str
    flipped: bool
    workload: Workload
    step: Callable[[], Any]
    recorder: Recorder
    jobs: list[Any]
    seconds: float


def prepare(name: str, flipped: bool) -> Program:
    """Compile the program; ``flipped`` exchanges persistent and looped reductions."""
    started = time.perf_counter()
    torch._dynamo.reset()
    workload = build(name, "cuda")
    module = torch.compile(workload.module)
    recorder = Recorder()
    with recorder.in_force(), _flipped() if flipped else nullcontext():
        workload.step(module)
        torch.cuda.synchronize()
        for kernel in recorder.kernels.values():
            kernel.calls = 0
        workload.step(module)
        torch.cuda.synchronize()
    jobs = []
    for kernel in recorder.kernels.values():
        kernel.chosen = kernel.autotuner.launchers[0]
        configs = [(config.kwargs, config.num_warps, config.num_stages) for config in kernel.configs]
        jobs += [
            AsyncCompile.process_pool().submit(precompile, kernel.autotuner.filename, configs[part : part + 6])
            for part in range(0, len(configs), 6)
        ]
    return Program(
        name, flipped, workload, lambda: workload.step(module), recorder, jobs, time.perf_counter() - started
    )


@contextmanager
def _flipped() -> Iterator[None]:
    """Make reductions of up to 8,192 elements persistent where Inductor loops, and loop where it does not."""
    decide = InductorChoices.should_use_persistent_reduction

    def other(features: Any, cooperative_reduction: bool) -> bool:
        usual = decide(features, cooperative_reduction)
        size = features.reduction_numel
        return not usual and bool(size.is_number and int(size) <= 8192)

    InductorChoices.should_use_persistent_reduction = staticmethod(other)  # type: ignore[method-assign]
    try:
        yield
    finally:
        InductorChoices.should_use_persistent_reduction = staticmethod(decide)  # type: ignore[method-assign]


def measure(program: Program, bench: Bench, write: Callable[[dict[str, Any]], None], until: float) -> None:
    """Time all kernels of the program, then the program with the kernels that were found."""
    best: dict[str, dict[int, Any]] = {"cold": {}, "warm": {}}
    gains: dict[int, float] = {}
    heads: dict[int, Any] = {}
    for number, kernel in program.recorder.kernels.items():
        if time.time() > until:
            return
        launchers, resources = _launchers(kernel)
        if not launchers:
            continue
        stream = torch.cuda.current_stream().cuda_stream
        launches = [partial(each, *kernel.args, **kernel.kwargs, stream=stream) for each in launchers]
        for launch in launches:
            launch()
        torch.cuda.synchronize()
        cold = [median(column) / 1000 for column in bench.rounds(launches, ROUNDS).T.tolist()]
        warm = [median(column) / 1000 for column in _warm_rounds(bench, launches, ROUNDS)]
        heads[number] = launchers[0]
        best["cold"][number] = launchers[cold.index(min(cold))]
        best["warm"][number] = launchers[warm.index(min(warm))]
        gains[number] = (cold[0] - min(cold)) * kernel.calls
        write(
            {
                "program": program.name,
                "flipped": program.flipped,
                "kernel": kernel.name,
                "kind": kernel.kind,
                "calls": kernel.calls,
                "size_hints": kernel.fresh.size_hints,
                "own": len(kernel.own),
                "chosen": text(kernel.chosen.config),
                "configs": [text(each.config) for each in launchers],
                "resources": resources,
                "cold": [round(each, 3) for each in cold],
                "warm": [round(each, 3) for each in warm],
                "features": program.recorder.features.get(kernel.name),
                "args": [
                    [str(arg.dtype), list(arg.shape), list(arg.stride())] if isinstance(arg, torch.Tensor) else arg
                    for arg in kernel.args
                ],
                "source": Path(kernel.autotuner.filename).read_text(),
            }
        )
    if heads and not program.flipped:
        write(_replayed(program, bench, heads, best, gains))


def _launchers(kernel: Kernel) -> tuple[list[Any], list[list[int]]]:
    """Launchers of the configs that compile; and the registers, spills and shared memory of each."""
    launchers, resources = [], []
    for config in kernel.configs:
        try:
            launcher = kernel.fresh._precompile_config(config).make_launcher()
        except Exception:  # noqa: BLE001 - no candidate
            continue
        launchers.append(launcher)
        resources.append([launcher.n_regs, launcher.n_spills, launcher.shared])
    return launchers, resources


def _warm_rounds(bench: Bench, launches: Sequence[Callable[[], object]], count: int) -> list[list[float]]:
    """Nanoseconds of each launch right after the same launch, by launch."""
    times: list[list[float]] = [[] for _ in launches]
    events = bench._some_events(len(launches))
    for _ in range(count):
        order = bench._order.permutation(len(launches))
        torch.cuda._sleep(2_000_000)  # type: ignore[no-untyped-call]
        for number, (start, end) in zip(order, events, strict=True):
            launches[number]()
            start.record()
            launches[number]()
            end.record()
        torch.cuda.synchronize()
        for number, (start, end) in zip(order, events, strict=True):
            times[number].append(start.elapsed_time(end) * 1e6)
    return times


def _replayed(
    program: Program, bench: Bench, heads: dict[int, Any], best: dict[str, dict[int, Any]], gains: dict[int, float]
) -> dict[str, Any]:
    """Microseconds of a step with Inductor's first configs, its choices, the best cold and warm, and single kernels."""
    chosen = {number: program.recorder.kernels[number].chosen for number in heads}
    largest = sorted((number for number in heads if gains[number] > TINY_GAIN), key=lambda number: -gains[number])
    ways: dict[str, dict[int, Any]] = {"first": heads, "chosen": chosen, **best}
    for number in largest[:MOST_KERNELS]:
        kernel = program.recorder.kernels[number]
        for label in ("cold", "warm"):
            ways[f"{label} {kernel.name}"] = {**heads, number: best[label][number]}
    pool = torch.cuda.graph_pool_handle()
    graphs = []
    for launchers in ways.values():
        for number, launcher in launchers.items():
            program.recorder.kernels[number].autotuner.launchers = [launcher]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            program.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            program.step()
        graphs.append(graph)
    rounds = bench.rounds([graph.replay for graph in graphs], REPLAYS)
    times = [round(median(column) / 1000, 2) for column in rounds.T.tolist()]
    return {"program": program.name, "replayed": dict(zip(ways, times, strict=True)), "seconds": program.seconds}


def append(path: Path, record: dict[str, Any]) -> None:
    """Write a record as a line."""
    with path.open("a") as file:
        file.write(json.dumps(record, default=str) + "\n")
