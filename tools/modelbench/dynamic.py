"""What kernels for a dynamic size cost on the CPU, and what they do for the layers of a language model."""

import json
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from itertools import accumulate, pairwise
from math import comb
from pathlib import Path
from statistics import median, quantiles
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from modelbench.networks import LlamaLayers
from modelbench.records import append
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache, run_and_get_code

import diode_lut
from diode_lut.measure.timing import Bench
from diode_lut.table import Candidate, Entry, Table, write_table
from diode_lut.templates.config import Config

BLOCKS, BORDERS = (16, 32, 64), (1, 33, 129, 4097)  # BLOCK_M of the kernels, and the borders of the ranges of M
DISPATCHED, LARGEST_DISPATCHED = (8, 40, 136), BORDERS[-1] - 1  # values of M that are measured, and the most

WIDTH = 64

CALLS = 100  # how many calls are timed in a row
LEAST_TURNS = 6  # the fewest values whose median has a 95 % interval

TOKENS = (1, 8, 64, 512, 2048)
TINY_TOKENS = (4, 16)
ROUNDS, CPU_ROUNDS = 40, 5

Step = Callable[[], Tensor]
Line = dict[str, Any]


def fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does the same, and shares no compiled code with any other."""

    def same(*operands: Tensor) -> Any:
        return function(*operands)

    return FunctionType(same.__code__.replace(), same.__globals__, closure=same.__closure__)


def bound(function: Callable[..., Any], operands: Sequence[Tensor]) -> Callable[[], Any]:
    """A step without arguments."""
    return lambda: function(*operands)


def captured(step: Callable[[], Any]) -> Any:
    """A CUDA graph of the step."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def note(path: Path, **fields: Any) -> None:
    """Add a line to the results, and print it."""
    print(json.dumps(fields), flush=True)
    append(path, fields)


def measure_dispatch(out: Path, seconds: float, sizes: Sequence[int] = DISPATCHED, calls: int = CALLS) -> None:
    """Note the CPU's microseconds for a call of a small GEMM with a dynamic M, with one kernel and with three.

    Each of ``sizes``, from 2 to 4,096, gets an equal part of ``seconds``, and at least LEAST_TURNS turns. In a turn,
    ``calls`` of both are timed, in alternating order. The difference is the median over the turns. The line has its
    95 % interval, ``from`` and ``to``, and the quartiles of the turns.
    """
    started = time.monotonic()
    compiled, kernels = {}, {}
    b = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.float16)
    with tempfile.TemporaryDirectory() as directory, fresh_cache():
        for blocks in (BLOCKS[:1], BLOCKS):
            most, path = len(blocks), Path(directory) / f"{len(blocks)}.json"
            write_table(Table(diode_lut.get_detected_hardware(), _rows(blocks)), path)
            compiled[most] = torch.compile(fresh(torch.mm))
            torch._dynamo.mark_dynamic(a := torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.float16), 0)
            with diode_lut.config.patch(tables=[str(path)], tiers=("user",)):
                _, (code, *_) = run_and_get_code(compiled[most], a, b)
            kernels[most] = len(set(re.findall(r"triton_tem_\w+\.run", code)))
    for place, m in enumerate(sizes):
        a = torch.randn(m, WIDTH, device="cuda", dtype=torch.float16)
        steps = {most: bound(function, (a, b)) for most, function in compiled.items()}
        until = started + seconds * (place + 1) / len(sizes)
        turns: list[dict[int, float]] = []
        while len(turns) < LEAST_TURNS or time.monotonic() < until:
            order = sorted(steps, reverse=len(turns) % 2 == 1)
            turns.append({most: microseconds(steps[most], calls) for most in order})
        one, three = (median(turn[most] for turn in turns) for most in compiled)
        differences = [turn[len(BLOCKS)] - turn[1] for turn in turns]
        quarter, middle, three_quarters = quantiles(differences, n=4, method="inclusive")
        low, high = interval_of_median(differences)
        found = {"one": one, "three": three, "difference": middle, "from": low, "to": high}
        us = {name: round(value, 3) for name, value in found.items()}
        spread = [round(quarter, 3), round(three_quarters, 3)]
        note(out, m=m, kernels=list(kernels.values()), turns=len(turns), us=us, quartiles_us=spread)


def interval_of_median(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median of what LEAST_TURNS values or more were drawn from, by the sign test.

    It is from the n-th smallest to the n-th largest value, with the largest n for which at most 2.5 % of samples have
    fewer than n values on either side of the median. The values must be independent, and of any distribution.
    """
    ordered = sorted(values)
    at_most = accumulate(comb(len(ordered), below) for below in range(len(ordered)))
    place = next(below for below, outcomes in enumerate(at_most) if 40 * outcomes > 2 ** len(ordered))
    return ordered[place - 1], ordered[-place]


def _rows(blocks: Sequence[int]) -> list[Entry]:
    """A kernel for each part of the range of M, or one for all of it."""
    configs = [Config.parse(f"triton_mm {block}x32x32 g8 s2 w4") for block in blocks]
    borders = BORDERS if len(blocks) > 1 else (BORDERS[0], BORDERS[-1])
    parts = [(low, end - 1) for low, end in pairwise(borders)]
    kind = ("mm", "float16", "nn", None, None)
    return [
        Entry(*kind, part, None, None, (Candidate(config, 1500),)) for part, config in zip(parts, configs, strict=True)
    ]


def microseconds(step: Callable[[], Any], calls: int) -> float:
    """How long the CPU takes for a call: the median of some, after which it waits for the GPU."""
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return median(times) * 1e6


class Way(NamedTuple):
    """A way to compile the layers, with the settings that it takes."""

    name: str
    dynamic: bool
    settings: Mapping[str, Any]


WAYS = (
    Way("default, dynamic", True, {"policy": "off"}),
    Way("diode_lut, dynamic", True, {}),
    Way("diode_lut, static", False, {}),
    Way("default, static", False, {"policy": "off"}),
)


def measure_layers(out: Path, seconds: float, *, device: str, tiny: bool) -> None:
    """Note the seconds that the compiles of each way take, then the tokens per second for each number of tokens.

    Decoding has few tokens at a time, one for each sequence, and prefilling many. After ``seconds`` nothing is compiled
    any more.
    """
    until = time.monotonic() + seconds
    model = _layers(device, tiny)
    tokens = TINY_TOKENS if tiny else TOKENS
    inputs = {count: torch.randn(count, model.width, device=device, dtype=torch.bfloat16) for count in tokens}
    with diode_lut.config.patch(policy="off"):  # what the first compile of a process has to do, whatever it compiles
        small = _layers(device, tiny=True)
        torch.compile(fresh(small))(torch.randn(2, small.width, device=device, dtype=torch.bfloat16))
    steps = {way.name: _compiled(way, model, inputs, out, until) for way in WAYS}
    exact = deepcopy(model).float()
    for count, x in inputs.items():
        of_size = {name: by_size[count] for name, by_size in steps.items() if count in by_size}
        expected = exact(x.float())
        errors = {name: float((step().float() - expected).norm() / expected.norm()) for name, step in of_size.items()}
        for name, ms in milliseconds(of_size, device).items():
            found = {"ms": round(ms, 4), "tokens_per_s": round(1000 * count / ms), "error": round(errors[name], 5)}
            note(out, way=name, tokens=count, **found)


def _layers(device: str, tiny: bool) -> LlamaLayers:
    width, hidden, heads, layers = (64, 128, (4, 2), 1) if tiny else (4096, 14336, (32, 8), 4)
    return LlamaLayers(width, hidden, heads, layers).to(device, torch.bfloat16).requires_grad_(False)


def _compiled(way: Way, model: LlamaLayers, inputs: Mapping[int, Tensor], out: Path, until: float) -> dict[int, Step]:
    """For each number of tokens the model, compiled and called, as far as there is time."""
    started, before = time.perf_counter(), counters["stats"]["unique_graphs"]
    steps: dict[int, Step] = {}
    with fresh_cache(), diode_lut.config.patch(**way.settings):
        compiled = torch.compile(fresh(model), dynamic=None if way.dynamic else False)
        if way.dynamic and time.monotonic() < until:
            torch._dynamo.mark_dynamic(first := inputs[sorted(inputs)[len(inputs) // 2]].clone(), 0)
            compiled(first)
        for count, x in inputs.items():
            if time.monotonic() < until:
                steps[count] = bound(compiled, (x,))
                steps[count]()
        taken = round(time.perf_counter() - started, 2)
    compiles = counters["stats"]["unique_graphs"] - before
    note(out, way=way.name, sizes=len(steps), compiles=compiles, compile_seconds=taken)
    return steps


def milliseconds(steps: Mapping[str, Callable[[], Any]], device: str) -> dict[str, float]:
    """Of a call of each, on a GPU in CUDA graphs with a cold L2 cache."""
    if device == "cpu":
        return {name: median(microseconds(step, 1) for _ in range(CPU_ROUNDS)) / 1e3 for name, step in steps.items()}
    graphs = [captured(step) for step in steps.values()]
    times = np.median(Bench().rounds([graph.replay for graph in graphs], ROUNDS), axis=0) / 1e6
    return dict(zip(steps, times.tolist(), strict=True))
