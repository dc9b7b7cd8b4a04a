"""What kernels for a dynamic size cost on the CPU, and what they do for the layers of a language model."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from types import FunctionType
from typing import Any

import numpy as np
import torch
from modelbench.networks import LlamaLayers
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor.codecache import PyCodeCache
from torch._inductor.utils import fresh_cache, run_and_get_code

import diode_lut
from diode_lut.collect.gemm import Bench
from diode_lut.kernels.config import Config
from diode_lut.table import Candidate, Entry, Table, write_table

TOKENS = (1, 8, 64, 512, 2048)
ROUNDS = 40
CALLS = 5_000

Step = Callable[[], Tensor]


def fresh(op: str) -> Callable[..., Tensor]:
    """The op as a function that shares no compiled code with any other."""
    gemm: Callable[..., Tensor] = getattr(torch, op)

    def function(*operands: Tensor) -> Tensor:
        return gemm(*operands)

    return FunctionType(function.__code__.replace(), function.__globals__, closure=function.__closure__)


def bound(function: Callable[..., Tensor], operands: Sequence[Tensor]) -> Step:
    """A step without arguments."""
    return lambda: function(*operands)


def captured(step: Step) -> Any:
    """A CUDA graph of the step."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def measure_dispatch() -> None:
    """Print the CPU's microseconds for a call of a small GEMM with a dynamic M, with one kernel and with three."""
    parts = {(1, 32): 16, (33, 128): 32, (129, 4096): 64}
    configs = {part: Config.parse(f"triton_mm {block}x32x32 g8 s2 w4") for part, block in parts.items()}
    kind = ("mm", "float16", "nn", None, None)
    rows = [Entry(*kind, part, None, None, (Candidate(config, 1500),)) for part, config in configs.items()]
    b = torch.randn(64, 64, device="cuda", dtype=torch.float16)
    compiled, kernels = {}, {}
    with tempfile.TemporaryDirectory() as directory, fresh_cache():
        path = Path(directory) / "table.json"
        write_table(Table(diode_lut.get_detected_hardware(), rows), path)
        for most in (1, 3):
            compiled[most] = torch.compile(fresh("mm"))
            a = torch.randn(64, 64, device="cuda", dtype=torch.float16)
            torch._dynamo.mark_dynamic(a, 0)
            with diode_lut.config.patch(tables=[str(path)], tiers=("user",), dynamic_kernels=most):
                _, (code, *_) = run_and_get_code(compiled[most], a, b)
            kernels[most] = len(set(re.findall(r"triton_tem_\w+\.run", code)))
    for m in (16, 64, 256):
        a = torch.randn(m, 64, device="cuda", dtype=torch.float16)
        times: dict[int, list[float]] = {most: [] for most in compiled}
        for most in [*compiled] * (CALLS // 100):
            times[most] += [seconds(bound(compiled[most], (a, b))) for _ in range(100)]
            torch.cuda.synchronize()
        one, three = (median(each) * 1e6 for each in times.values())
        print(f"M = {m}: {one:.2f} us, {three:.2f} us, {three - one:+.2f} us with {kernels} kernels")


def seconds(step: Step) -> float:
    """How long the CPU takes for a call."""
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def measure_layers(*, tiny: bool) -> None:
    """Print milliseconds for each number of tokens, and the seconds that all compiles of a way take."""
    width, hidden, heads = (64, 128, (4, 2)) if tiny else (4096, 14336, (32, 8))
    layers = LlamaLayers(width, hidden, heads, layers=4).to("cuda", torch.bfloat16).requires_grad_(False)
    inputs = {count: torch.randn(count, width, device="cuda", dtype=torch.bfloat16) for count in TOKENS}
    ways: dict[str, dict[str, Any]] = {
        "default, dynamic": {"policy": "off"},
        "diode_lut, dynamic": {},
        "default, static": {"policy": "off"},
        "diode_lut, static": {},
    }
    graphs, kept = {}, []
    for way, settings in ways.items():
        torch._dynamo.reset()
        started, before = time.perf_counter(), counters["stats"]["unique_graphs"]
        with fresh_cache(), diode_lut.config.patch(**settings):
            compiled = torch.compile(layers, dynamic=False if "static" in way else None)
            if "dynamic" in way:
                torch._dynamo.mark_dynamic(first := inputs[64].clone(), 0)
                compiled(first)
            for x in inputs.values():
                compiled(x)
            torch.cuda.synchronize()
            graphs_compiled = counters["stats"]["unique_graphs"] - before
            print(f"{way}: {time.perf_counter() - started:.1f} s for {graphs_compiled} compiles", flush=True)
            kept += PyCodeCache.modules  # with the kernels and constants that the graphs use
            graphs[way] = {count: captured(bound(compiled, (x,))) for count, x in inputs.items()}
    bench = Bench()
    print(f"{'tokens':>6}", *(f"{way:>18}" for way in ways), "  (ms)")
    for count in TOKENS:
        times = np.median(bench.rounds([graphs[way][count].replay for way in ways], ROUNDS), axis=0) / 1e6
        print(f"{count:>6}", *(f"{time:18.3f}" for time in times), flush=True)
