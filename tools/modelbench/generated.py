"""The kernels that Inductor generates for a program: their features, and their times with other configs.

``capture`` compiles a program and keeps each kernel's source and arguments in a directory of its own, so that a kernel
that several programs have is measured once. ``compile_part`` and ``measure`` need only that directory. ``replay`` runs
a captured program in CUDA graphs that differ in the configs of its kernels.
"""

import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from modelbench.corpus import build
from modelbench.models import Workload
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.triton import TritonScheduling
from torch._inductor.runtime.hints import HeuristicType
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from triton import Config

from diode_lut.measure.timing import Bench, loaded

KINDS = {
    HeuristicType.POINTWISE: "pointwise",
    HeuristicType.REDUCTION: "reduction",
    HeuristicType.PERSISTENT_REDUCTION: "persistent",
}
MOST_CONFIGS = 34  # number of configs of a kernel besides those that Inductor tries
PART = 8  # number of configs that are compiled in one go

ROUNDS, LAST_ROUNDS, REPLAYS = 14, 30, 40
FINALISTS = 8  # number of configs that are timed again, besides Inductor's: the fastest of the first rounds
MOST_KERNELS = 5  # number of kernels of a program that are replaced alone in its graph: those that gain most
TINY_GAIN = 0.3  # microseconds of a kernel's gain in a step below which it is not replaced alone

META = ("num_load", "num_reduction", "tiling_scores")  # what Inductor writes about a kernel into its code

VARIANTS = ("", "flipped", "split more", "split less")
"""As Inductor would, with looped and persistent reductions exchanged, and with other splits of large reductions."""


class Captured(NamedTuple):
    """A compiled program: by kernel, the autotuners that launch it."""

    name: str
    workload: Workload
    step: Callable[[], Any]
    autotuners: dict[str, list[Any]]


class _Launched:
    """A kernel that a program launched: how often, and with which arguments the first time."""

    def __init__(self, autotuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.autotuner, self.calls = autotuner, 0
        self.args = [_kept(arg) for arg in args]
        self.kwargs = {name: value for name, value in kwargs.items() if name not in ("stream", "benchmark_run")}


def _kept(arg: Any) -> Any:
    """An argument, or how to make a tensor like it; the values of indices matter, those of numbers do not."""
    if not isinstance(arg, torch.Tensor):
        return arg
    values = None if arg.is_floating_point() else arg.detach().to("cpu", copy=True)
    return {"dtype": str(arg.dtype), "size": list(arg.shape), "stride": list(arg.stride()), "values": values}


def _made(kept: Any) -> Any:
    if not isinstance(kept, dict):
        return kept
    extent = 1 + sum((size - 1) * stride for size, stride in zip(kept["size"], kept["stride"], strict=True))
    dtype = getattr(torch, kept["dtype"].removeprefix("torch."))
    if kept["values"] is None:
        flat = torch.randn(max(extent, 1), dtype=torch.bfloat16, device="cuda").to(dtype)
        return flat.as_strided(kept["size"], kept["stride"])
    made = torch.zeros(max(extent, 1), dtype=dtype, device="cuda").as_strided(kept["size"], kept["stride"])
    return made.copy_(kept["values"])


def capture(name: str, variant: str, kernels: Path) -> tuple[Captured, dict[str, Any]]:
    """Compile the program, and keep its kernels; return it and a record of which kernels it launches how often."""
    started = time.perf_counter()
    torch._dynamo.reset()
    workload = build(name, "cuda")
    module = torch.compile(workload.module)
    launched: dict[int, _Launched] = {}
    features: dict[str, dict[str, Any]] = {}
    with _recording(launched, features), _varied(variant):
        workload.step(module)
        for each in launched.values():
            each.calls = 0
        workload.step(module)
        torch.cuda.synchronize()
    autotuners: dict[str, list[Any]] = {}
    calls: dict[str, int] = {}
    size: dict[str, int] = {}
    for each in launched.values():
        if each.calls:
            kernel = _write(each, features, kernels)
            autotuners.setdefault(kernel, []).append(each.autotuner)
            calls[kernel] = calls.get(kernel, 0) + each.calls
            size[kernel] = _bytes(each.args)
    record = {"program": name, "variant": variant, "seconds": round(time.perf_counter() - started, 1)}
    return (
        Captured(name, workload, lambda: workload.step(module), autotuners),
        {**record, "kernels": calls, "bytes": size},
    )


@contextmanager
def _recording(launched: dict[int, _Launched], features: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Look at what is generated and launched; only the first config of each kernel is compiled."""
    init, run, define = CachingAutotuner.__init__, CachingAutotuner.run, TritonScheduling.define_kernel

    def short_init(autotuner: Any, *args: Any, **kwargs: Any) -> None:
        if "configs" in kwargs:
            kwargs["configs"] = kwargs["configs"][:1]
        init(autotuner, *args, **kwargs)

    def recording_run(autotuner: Any, *args: Any, **kwargs: Any) -> Any:
        if autotuner.heuristic_type in KINDS and "grid_type" in autotuner.inductor_meta:
            if id(autotuner) not in launched:
                launched[id(autotuner)] = _Launched(autotuner, args, kwargs)
            launched[id(autotuner)].calls += 1
        return run(autotuner, *args, **kwargs)  # type: ignore[no-untyped-call]

    def recording_define(scheduling: Any, src_code: str, node_schedule: Any, kernel: Any) -> str:
        name: str = define(scheduling, src_code, node_schedule, kernel)  # type: ignore[no-untyped-call]
        try:
            features[name] = features_of(kernel)
        except Exception as error:  # noqa: BLE001 - a feature that cannot be had is missing
            features[name] = {"error": repr(error)}
        return name

    CachingAutotuner.__init__ = short_init  # type: ignore[method-assign, assignment]
    CachingAutotuner.run = recording_run  # type: ignore[method-assign, assignment]
    TritonScheduling.define_kernel = recording_define  # type: ignore[method-assign]
    try:
        yield
    finally:
        CachingAutotuner.__init__ = init  # type: ignore[method-assign]
        CachingAutotuner.run, TritonScheduling.define_kernel = run, define  # type: ignore[method-assign]


@contextmanager
def _varied(variant: str) -> Iterator[None]:
    """Have Inductor decide about reductions as ``VARIANTS`` says."""
    persistent, split = InductorChoices.should_use_persistent_reduction, InductorChoices.reduction_split_factor

    def flipped(features: Any, cooperative_reduction: bool) -> bool:
        size = features.reduction_numel
        return not persistent(features, cooperative_reduction) and bool(size.is_number and int(size) <= 8192)

    def other_split(*args: Any, **kwargs: Any) -> int:
        usual = split(*args, **kwargs)
        return usual if usual == 1 else max(usual * 4 if variant == "split more" else usual // 4, 1)

    if variant == "flipped":
        InductorChoices.should_use_persistent_reduction = staticmethod(flipped)  # type: ignore[method-assign]
    if variant.startswith("split"):
        InductorChoices.reduction_split_factor = staticmethod(other_split)  # type: ignore[method-assign]
    try:
        yield
    finally:
        InductorChoices.should_use_persistent_reduction = staticmethod(persistent)  # type: ignore[method-assign]
        InductorChoices.reduction_split_factor = staticmethod(split)  # type: ignore[method-assign]


def features_of(kernel: Any) -> dict[str, Any]:
    """Features of a kernel that are known before its code is written.

    Loads are counted by how they are in x: contiguous, broadcast, otherwise.
    """
    features = kernel.features
    in_x, *_ = features.memory_stats().get(bool(kernel.persistent_reduction)).reads.dim
    counts = ("contiguous", "broadcast", "non_contiguous")
    return {
        "numel": int(features.numel),
        "rnumel": int(features.reduction_numel),
        "tiling": {name: int(size) for name, size in kernel.numels.items()},
        "reads": {"x": [getattr(in_x, f"count_per_thread_{count}") for count in counts]},
    }


def _write(launched: _Launched, features: Mapping[str, Any], kernels: Path) -> str:
    """Keep the kernel in a directory that is called after its source and sizes, unless it is there."""
    path = Path(launched.autotuner.filename)
    name = launched.autotuner.inductor_meta["kernel_name"]
    source = path.read_text()
    numbers = [arg for arg in launched.args if not isinstance(arg, dict)]
    kernel = hashlib.sha256(f"{source.replace(name, 'kernel')} {numbers}".encode()).hexdigest()[:16]
    directory = kernels / kernel
    if (directory / "about.json").exists():
        return kernel
    directory.mkdir(exist_ok=True)
    fresh = loaded(path)
    meta = {name: fresh.inductor_meta[name] for name in META if name in fresh.inductor_meta}
    kind = KINDS[fresh.heuristic_type]
    configs = _unique([*fresh.configs, *others(kind, fresh, source)])
    about = {
        "kernel": kernel,
        "kind": kind,
        "name": name,
        "hints": fresh.size_hints,
        "hint": getattr(fresh.inductor_meta.get("reduction_hint"), "name", None),
        "meta": meta,
        "features": features.get(name),
        "args": [[arg["dtype"], arg["size"], arg["stride"]] if isinstance(arg, dict) else arg for arg in launched.args],
        "bytes": _bytes(launched.args),
        "own": len(_unique(fresh.configs)),
        "configs": [
            {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages} for config in configs
        ],
        "source": str(path),
    }
    part = directory / f"part.{os.getpid()}"
    torch.save((launched.args, launched.kwargs), part)
    part.replace(directory / "args.pt")
    part.write_text(json.dumps(about, default=str))
    part.replace(directory / "about.json")
    return kernel


def _bytes(args: Sequence[Any]) -> int:
    """Bytes of all tensors, each counted once."""
    return sum(
        math.prod(arg["size"]) * getattr(torch, arg["dtype"].removeprefix("torch.")).itemsize
        for arg in args
        if isinstance(arg, dict)
    )


def others(kind: str, autotuner: Any, source: str) -> list[Config]:
    """The configs that are tried besides Inductor's: the same for all kernels of a kind and sizes.

    None where the code has other blocks, or needs Inductor's.
    """
    hints: dict[str, int] = autotuner.size_hints
    first: dict[str, int] = autotuner.configs[0].kwargs
    blocks = set(first)
    tiles: list[tuple[dict[str, int], int]] = []
    if blocks == {"XBLOCK"} and kind == "pointwise":
        tiles = [
            ({"XBLOCK": 1 << x}, 1 << warps) for x in range(6, 13) for warps in range(6) if 1 <= x - 5 - warps <= 4
        ]
    elif blocks == {"XBLOCK", "YBLOCK"} and kind == "pointwise":
        tiles = [
            ({"XBLOCK": 1 << x, "YBLOCK": 1 << area - x}, 1 << warps)
            for area, flattest, several in (
                (9, 3, (1,)),
                (10, 4, (2,)),
                (10, 1, (1, 3)),
                (11, 3, (2,)),
                (11, 1, (3,)),
                (12, 2, (2, 3)),
            )
            for x in range(area + 1)
            if abs(2 * x - area) <= 2 * flattest + 1 or (x in (0, area) and flattest > 2)
            for warps in several
        ]
    elif kind == "persistent" and blocks <= {"XBLOCK"} and set(hints) <= {"x", "r0_"}:
        r = hints["r0_"].bit_length() - 1
        most = 10 if blocks else 0
        tiles = [
            ({"XBLOCK": 1 << x} if blocks else {}, 1 << warps)
            for x in range(most + 1)
            for warps in range(6)
            if x + r <= 13 and 1 <= x + r - 5 - warps <= (5 if warps < 4 else 6)
        ]
    elif kind == "reduction" and blocks == {"XBLOCK", "R0_BLOCK"} and set(hints) == {"x", "r0_"}:
        hint = getattr(autotuner.inductor_meta.get("reduction_hint"), "name", "DEFAULT")
        tiles = _looped(hints, (True, False) if hint == "DEFAULT" else (hint == "INNER",))
    least = int((re.search(r"min_elem_per_thread=(\d+)", source) or [0, 0])[1])
    limits = {"XBLOCK": min(4096, hints.get("x", 1)), "YBLOCK": min(1024, hints.get("y", 1)), "R0_BLOCK": 1 << 14}
    found = [
        Config(values, num_warps=warps, num_stages=autotuner.configs[0].num_stages)
        for values, warps in tiles
        if all(values[name] <= limits[name] for name in values) and math.prod(values.values()) >= least * 32 * warps
    ]
    if kind == "reduction":
        found += [Config(config.kwargs, num_warps=config.num_warps, num_stages=3) for config in found[:4]]
    return found[: MOST_CONFIGS + 6]


def _looped(hints: Mapping[str, int], inner: Sequence[bool]) -> list[tuple[dict[str, int], int]]:
    """Blocks and warps of a looped reduction, the likeliest first: of one contiguous in r, in x, or of either."""
    size_x, size_r = (hints[name].bit_length() - 1 for name in ("x", "r0_"))
    tiles: list[tuple[dict[str, int], int]] = []
    for contiguous in inner:
        order: list[tuple[float, int, int, int]] = []
        for x in range(min(size_x, 5 if contiguous else 8) + 1):
            for r in range(6 if contiguous else 1, min(size_r, 13) + 1):
                for warps in range(6):
                    each = x + r - 5 - warps
                    if not 1 <= each <= 5 or x + r > 13:
                        continue
                    idle = max(0.0, 7 - (size_x - x))
                    loops = size_r - r
                    wide = 0.0 if contiguous else abs(min(x, size_x) - 5.5) * 0.5
                    order.append(
                        (abs(each - 3.2) + 0.4 * abs(warps - 2) + idle * 0.6 + loops * 0.25 + wide, x, r, warps)
                    )
        tiles += [
            ({"XBLOCK": 1 << x, "R0_BLOCK": 1 << r}, 1 << warps)
            for _, x, r, warps in sorted(order)[: MOST_CONFIGS // len(inner)]
        ]
    return tiles


def text(config: Any) -> str:
    """``XBLOCK 1 R0_BLOCK 512 w4 s1``."""
    blocks = " ".join(f"{name} {value}" for name, value in config.kwargs.items())
    return f"{blocks} w{config.num_warps} s{config.num_stages}"


def _unique(configs: Sequence[Config]) -> list[Config]:
    return list({text(config): config for config in configs}.values())


def _config(values: Mapping[str, int]) -> Config:
    blocks = {name: value for name, value in values.items() if name not in ("num_warps", "num_stages")}
    return Config(blocks, num_warps=values["num_warps"], num_stages=values["num_stages"])


def compile_part(directory: Path, part: int) -> None:
    """Compile some of the kernel's configs into Triton's cache, and note which can be compiled."""
    about = json.loads((directory / "about.json").read_text())
    autotuner = loaded(about["source"])
    done = []
    for number in range(part * PART, min((part + 1) * PART, len(about["configs"]))):
        try:
            autotuner._precompile_config(_config(about["configs"][number]))
            done.append(number)
        except Exception:  # noqa: BLE001, PERF203 - what cannot be compiled is no candidate
            continue
    (directory / f"part-{part}.tmp").write_text(json.dumps(done))
    (directory / f"part-{part}.tmp").replace(directory / f"part-{part}.json")


def parts(about: Mapping[str, Any]) -> int:
    """Into how many parts the configs are divided."""
    return -(-len(about["configs"]) // PART)


class Loaded(NamedTuple):
    """A kernel that can be measured: the numbers of its configs, and their launchers."""

    about: dict[str, Any]
    numbers: list[int]
    launchers: list[Any]
    launches: list[partial[object]]


def load(directory: Path) -> Loaded:
    """The kernel with all configs that were compiled, and arguments for it."""
    about = json.loads((directory / "about.json").read_text())
    autotuner = loaded(about["source"])
    numbers = [
        number for part in range(parts(about)) for number in json.loads((directory / f"part-{part}.json").read_text())
    ]
    launchers, kept = [], []
    for number in numbers:
        try:
            launchers.append(autotuner._precompile_config(_config(about["configs"][number])).make_launcher())
            kept.append(number)
        except Exception:  # noqa: BLE001, PERF203 - for example too much shared memory
            continue
    args, kwargs = torch.load(directory / "args.pt", map_location="cuda", weights_only=True)
    stream = torch.cuda.current_stream().cuda_stream
    made = [_made(arg) for arg in args]
    return Loaded(about, kept, launchers, [partial(each, *made, **kwargs, stream=stream) for each in launchers])


def measure(kernel: Loaded, bench: Bench) -> dict[str, Any]:
    """Microseconds of each config after the cache was flushed, and right after the same kernel; a record of all."""
    about, launches = kernel.about, kernel.launches
    for launch in launches:
        launch()
    torch.cuda.synchronize()
    cold = [median(column) / 1000 for column in bench.rounds(launches, ROUNDS).T.tolist()]
    again = {
        *sorted(range(len(launches)), key=lambda number: cold[number])[:FINALISTS],
        *(place for place, number in enumerate(kernel.numbers) if number < about["own"]),
    }
    finalists = sorted(again)
    last = bench.rounds([launches[number] for number in finalists], LAST_ROUNDS)
    for number, column in zip(finalists, last.T.tolist(), strict=True):
        cold[number] = median(column) / 1000
    warm = [median(column) / 1000 for column in bench.rounds(launches, ROUNDS, warm=True).T.tolist()]
    return {
        **about,
        "blocks": list(about["configs"][0])[:-2],
        "configs": [list(about["configs"][number].values()) for number in kernel.numbers],
        "own": sum(number < about["own"] for number in kernel.numbers),
        "resources": [[each.n_regs, each.n_spills, each.shared] for each in kernel.launchers],
        "cold": [round(each, 3) for each in cold],
        "warm": [round(each, 3) for each in warm],
    }


def replay(program: Captured, kernels: Path, measured: Mapping[str, dict[str, Any]], bench: Bench) -> dict[str, Any]:
    """Microseconds of a step with Inductor's first configs, its choices, the best cold and warm, and single kernels."""
    known = {kernel: measured[kernel] for kernel in program.autotuners if kernel in measured}
    first = {kernel: autotuners[0].launchers[0] for kernel, autotuners in program.autotuners.items()}

    def fastest(label: str, record: dict[str, Any], count: int | None = None) -> Any:
        return _launcher(record, record[label].index(min(record[label][:count])))

    ways = {
        "first": first,
        "chosen": {},
        "own": {**first, **{kernel: fastest("cold", record, record["own"]) for kernel, record in known.items()}},
        "cold": {**first, **{kernel: fastest("cold", record) for kernel, record in known.items()}},
        "warm": {**first, **{kernel: fastest("warm", record) for kernel, record in known.items()}},
    }
    for kernel in program.autotuners:
        about = json.loads((kernels / kernel / "about.json").read_text())
        args, kwargs = torch.load(kernels / kernel / "args.pt", map_location="cuda", weights_only=True)
        fresh = loaded(about["source"])
        fresh.run(*map(_made, args), **kwargs, stream=torch.cuda.current_stream().cuda_stream)
        ways["chosen"][kernel] = fresh.launchers[0]
    chosen = {kernel: text(launcher.config) for kernel, launcher in ways["chosen"].items()}
    gains = {kernel: record["cold"][0] - min(record["cold"]) for kernel, record in known.items()}
    for kernel in sorted(gains, key=lambda kernel: -gains[kernel])[:MOST_KERNELS]:
        if gains[kernel] > TINY_GAIN:
            for label in ("cold", "warm"):
                ways[f"{label} {kernel}"] = {**first, kernel: ways[label][kernel]}
    outputs, graphs = {}, []
    pool = torch.cuda.graph_pool_handle()
    for label, launchers in ways.items():
        _put(program, launchers)
        if label in ("first", "cold"):
            torch.manual_seed(1)
            outputs[label] = [each.detach().double() for each in program.step() if each.is_floating_point()]
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
    return {
        "replayed": program.name,
        "times": dict(zip(ways, times, strict=True)),
        "chosen": chosen,
        "missing": [kernel for kernel in program.autotuners if kernel not in known],
        "errors": _errors(program, outputs),
    }


def _launcher(record: Mapping[str, Any], number: int) -> Any:
    """The launcher of one of a measured kernel's configs."""
    names = [*record["blocks"], "num_warps", "num_stages"]
    config = _config(dict(zip(names, record["configs"][number], strict=True)))
    return loaded(record["source"])._precompile_config(config).make_launcher()


def _put(program: Captured, launchers: Mapping[str, Any]) -> None:
    for kernel, launcher in launchers.items():
        for autotuner in program.autotuners[kernel]:
            autotuner.launchers = [launcher]


def _errors(program: Captured, outputs: Mapping[str, list[Any]]) -> dict[str, float] | str:
    """Norm of the difference from float64, over the norm of the result, by way; of programs without random numbers."""
    try:
        exact = program.workload.in_float64()
        torch.manual_seed(1)
        results = [each for each in exact.step(exact.module) if each.is_floating_point()]
        return {
            label: max(float((each - right).norm() / right.norm()) for each, right in zip(found, results, strict=True))
            for label, found in outputs.items()
        }
    except Exception as error:  # noqa: BLE001 - not all programs run in float64
        return repr(error)[:200]
