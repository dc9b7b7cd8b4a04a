"""Timing launches on a GPU: the kernels of a problem take turns in rounds.

Kernels that Inductor generated are timed alone. Their numbers are normally distributed, indices and masks zero. Their
time is the mean of two: with a cold L2 cache, and right after the same launch. In a program, the kernel before often
leaves part of what they read in the cache. There, a GPU may start blocks more slowly than small blocks end, which a
cold cache hides.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import median_low
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import torch
import triton
from torch._inductor.runtime.runtime_utils import next_power_of_2
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from diode_lut.dataset import Record, Timing
from diode_lut.errors import CollectError, ProblemError
from diode_lut.files import write_atomically
from diode_lut.hardware import architecture, detect_hardware
from diode_lut.hook.versions import FORMS, KWARGS, failure_reason
from diode_lut.measure.problems import RecordedKernel
from diode_lut.measure.tasks import Task, Watch
from diode_lut.problem import OF_KERNELS, Problem
from diode_lut.templates.config import DEFAULT, Config

Launch = Callable[[], object]

Nanoseconds = npt.NDArray[np.float64]

_FLUSHES = 4
"""Memory written between two kernels, in sizes of the L2 cache. Writing it takes longer than the CPU needs to launch
the next kernel, so launches are not measured."""

_LEAD_CYCLES = 1_000_000  # clock cycles, half a millisecond, that the GPU waits before a round, so the CPU gets ahead
_TRIES = 5  # maximum number of tries of a round if the CPU falls behind, each with twice the lead


class Bench:
    """Times launches of kernels on the current CUDA device."""

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties()
        size = _FLUSHES * int(getattr(properties, "L2_cache_size", 64 << 20))
        self._flushed = torch.empty(size, dtype=torch.int8, device="cuda")
        self._events: list[tuple[Any, Any]] = []
        self._order = np.random.default_rng(0)

    def once(self, function: Launch) -> float:
        """Return roughly the nanoseconds of a call, with the CPU's time to launch."""
        ((start, end),) = self._some_events(1)
        start.record()
        function()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e6

    def rounds(self, functions: Sequence[Launch], count: int, *, warm: bool = False) -> Nanoseconds:
        """Return nanoseconds of each function (columns) by round (rows), shuffled. Late rounds are tried again.

        The L2 cache is cold, or ``warm`` from the same function.
        """
        times = np.empty((count, len(functions)))
        lead = _LEAD_CYCLES
        for row in times:
            for _ in range(_TRIES):
                if self._round(functions, row, lead, warm):
                    break
                lead = min(2 * lead, _LEAD_CYCLES << _TRIES)
        return times

    def _round(self, functions: Sequence[Launch], row: Nanoseconds, lead: int, warm: bool) -> bool:
        """Time each function once. Return False if the GPU got to a function before the CPU had launched it."""
        order = self._order.permutation(len(functions))
        events = self._some_events(len(functions))
        ahead = True
        torch.cuda._sleep(lead)  # type: ignore[no-untyped-call]
        for number, (start, end) in zip(order, events, strict=True):
            (functions[number] if warm else self._flushed.zero_)()
            start.record()
            functions[number]()
            end.record()
            ahead = ahead and not start.query()
        torch.cuda.synchronize()
        row[order] = [start.elapsed_time(end) * 1e6 for start, end in events]
        return ahead

    def _some_events(self, count: int) -> list[tuple[Any, Any]]:
        while len(self._events) < count:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            self._events.append((start, end))
        return self._events[:count]


_SLOW_NS = 1_000_000
_SLOW_FACTOR = 2.0
"""A config gets no more launches if each of two takes longer than _SLOW_NS nanoseconds, and _SLOW_FACTOR times as long
as the fastest config."""

_QUICK_ROUNDS = ((math.inf, 2), (1.5, 2), (1.2, 4))
"""Pairs of a factor and the number of further rounds for the configs within this factor of the best.

About a launch in a thousand takes hundreds of times as long, because the CPU is busy elsewhere. So no decision rests
on a single launch, and of two the faster counts.
"""


def time_all(
    problem: Problem, launches: dict[Config, Launch], watch: Watch, bench: Bench, failures: list[Timing]
) -> dict[Config, float]:
    """Return quickly measured nanoseconds of each config. Failing configs are added to ``failures``."""
    first: dict[Config, float] = {}
    for config, launch in launches.items():
        try:
            with watch(problem, config):
                launch()  # may load the kernel
                first[config] = bench.once(launch)
        except RuntimeError as error:  # noqa: PERF203
            failures.append(Timing(config, None, failure_reason(error, "launch")))
    limit = max(_SLOW_FACTOR * min(first.values()), _SLOW_NS) if first else 0
    for config, ns in first.items():
        if ns > limit:
            with watch(problem, config):
                first[config] = min(ns, bench.once(launches[config]))
    running = [config for config, ns in first.items() if ns <= limit]
    times = {config: [ns] if ns > limit else [] for config, ns in first.items()}
    with watch(problem):
        for factor, rounds in _QUICK_ROUNDS:
            middle = {config: median_low(times[config] or [1.0]) for config in running}
            running = [config for config in running if middle[config] <= factor * min(middle.values())]
            measured = bench.rounds([launches[config] for config in running], rounds)
            for config, column in zip(running, measured.T.tolist(), strict=True):
                times[config] += column
    return {config: median_low(each) for config, each in times.items()}


_ROUNDS = 10
_MAX_ROUNDS = 60
_MAX_STANDARD_ERROR = 0.004  # of each contender's median, relative to it, until which rounds go on
_CONTENDER_FACTOR = 1.06  # configs within this factor of the best are contenders, and so is the baseline


def medians(launches: Sequence[Launch], bench: Bench, *, warm: bool = False) -> list[float]:
    """Return carefully measured median nanoseconds of each launch, the baseline first. Contenders get more rounds.

    The L2 cache is cold, or ``warm`` from the same launch.
    """
    for launch in launches:
        launch()
    columns: list[Nanoseconds] = list(bench.rounds(launches, _ROUNDS, warm=warm).T)
    running = list(range(len(launches)))
    for _ in range(_ROUNDS, _MAX_ROUNDS, _ROUNDS):
        middle = np.array([np.median(column) for column in columns])
        running = [number for number in running if middle[number] <= _CONTENDER_FACTOR * middle.min() or number == 0]
        if all(_standard_error(columns[number]) <= _MAX_STANDARD_ERROR * middle[number] for number in running):
            break
        more = bench.rounds([launches[number] for number in running], _ROUNDS, warm=warm)
        for number, column in zip(running, more.T, strict=True):
            columns[number] = np.concatenate([columns[number], column])
    return [float(np.median(column)) for column in columns]


def _standard_error(times: Nanoseconds) -> float:
    """Return the standard error of the median, from the median deviation, as for a normal distribution."""
    deviation = 1.4826 * float(np.median(np.abs(times - np.median(times))))
    return 1.2533 * deviation / math.sqrt(len(times))


_CONFIGS = Path(__file__).with_name("generated_configs.json")
"""By form, variant and r: configs to try, the most useful first. ``tools/describe_generated.py`` writes it."""

_OF_INTEGERS = 1e-3  # share of integers that may differ from the first config's: another order may round to the next
_OF_NUMBERS = 1e-3  # largest difference from the first config's, over the largest result, or 4 units in the last place


def measure_kernel(kernel: RecordedKernel, task: Task, device: str, watch: Watch, bench: Bench) -> Record:
    """Time a kernel with Inductor's configs and more. Configs that spill, or fail, or compute something else, are out.

    If the task has configs, these are timed beside Inductor's first, although they may spill. CollectError if
    Inductor's first config fails, or all others, or if the task's are for another form of kernel.
    """
    problem, failures = task.problem, list[Timing]()
    with TemporaryDirectory() as directory:
        path = Path(directory) / "kernel.py"
        write_atomically(path, kernel.source.encode())
        first = loaded(path)
        memory, arguments = made_arguments(kernel.arguments, device)
        before = [each.clone() for each in memory]

        def after(launch: Launch) -> list[torch.Tensor]:
            """Return what is in memory after a launch, in which the kernel may have read what it replaced."""
            for each, original in zip(memory, before, strict=True):
                each.copy_(original)
            launch()
            return [each.clone() for each in memory]

        launches: dict[Config, Launch] = {}
        failed = {each.config for each in task.failed}
        wanted = [(DEFAULT, first.configs[0])]
        if not task.configs:
            wanted += _configs(problem, first, kernel.source, device)
        for config in [each for each in task.configs if each != DEFAULT]:
            built, form = _as_triton(config, problem), FORMS[first.heuristic_type.name]
            if config.template != form or built.kwargs.keys() != first.configs[0].kwargs.keys():
                raise CollectError(f"{config} is for another form of kernel than the recorded one, which is {form}")
            wanted.append((config, built))
        for config, triton_config in wanted:
            if config in failed:
                continue
            autotuner = loaded(path)
            autotuner.configs = [triton_config]
            autotuner.inductor_meta |= {"dynamic_scale_rblock": False, "coordinate_descent_tuning": False}
            try:
                with watch(problem, config, "compile"):
                    autotuner.precompile()
            except Exception as error:
                failures.append(Timing(config, None, failure_reason(error, "compile")))
                continue
            spills = any(getattr(each, "n_spills", 0) for each in autotuner.launchers)
            if spills and config != DEFAULT and not task.configs:
                continue
            launch = partial(autotuner.run, *arguments, stream=torch.cuda.current_stream().cuda_stream)
            if config == DEFAULT:
                with watch(problem, config):
                    expected = after(launch)
            elif reason := watch.failure(problem, config, lambda: _alike(after(launch), expected)):  # noqa: B023
                failures.append(Timing(config, None, reason))
                continue
            launches[config] = launch
        if DEFAULT not in launches:
            raise CollectError("Inductor's first config fails")
        if len(launches) == 1 and not task.configs:
            raise CollectError("no config that a table can name computes the same")
        with watch(problem):
            cold, warm = (medians([*launches.values()], bench, warm=warm) for warm in (False, True))
    timings = (Timing.of(config, round((a + b) / 2)) for config, a, b in zip(launches, cold, warm, strict=True))
    return Record(problem, (*timings, *failures), "final")


def loaded(path: Path | str) -> Any:
    """Return the kernel in a file, with the configs that Inductor tries, none of them compiled."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return next(each for each in vars(module).values() if isinstance(each, CachingAutotuner))


def made_arguments(described: Sequence[Any], device: str) -> tuple[list[torch.Tensor], list[Any]]:
    """Return the memory of all tensors, and the arguments, which are views of it."""
    memory, arguments = [], []
    for each in described:
        if not isinstance(each, list | tuple):
            arguments.append(each)
            continue
        dtype, shape, stride = getattr(torch, each[0]), each[1], each[2]
        extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        flat = torch.zeros(max(extent, 1), dtype=dtype, device=device)
        if dtype.is_floating_point:
            flat = torch.randn(flat.shape, dtype=torch.bfloat16, device=device).to(dtype)
        memory.append(flat)
        arguments.append(flat.as_strided(shape, stride))
    return memory, arguments


def _as_triton(config: Config, problem: Problem) -> triton.Config:
    """Return a config by Triton's names, as the hook has it: with no more elements along r than there are."""
    values = config.kernel.values(config.params)
    fields = {theirs: values[name] for name, theirs in KWARGS[config.template].items() if values.get(name)}
    if "R0_BLOCK" in fields:
        fields["R0_BLOCK"] = min(fields["R0_BLOCK"], next_power_of_2(problem.r))
    warps, stages = fields.pop("num_warps"), fields.pop("num_stages")
    return triton.Config(fields, num_warps=warps, num_stages=stages)


def _configs(problem: Problem, autotuner: Any, source: str, device: str) -> Iterator[tuple[Config, triton.Config]]:
    """Yield each of Inductor's configs that tables can name, then those to try besides, by our and Triton's names."""
    template = FORMS[autotuner.heuristic_type.name]
    names, blocks = KWARGS[template], set(autotuner.configs[0].kwargs)
    own: list[Config] = []
    for each in autotuner.configs:
        values = {**each.kwargs, "num_warps": each.num_warps, "num_stages": each.num_stages}
        fields = {name: values[theirs] for name, theirs in names.items() if theirs in values}
        try:
            own.append(Config.from_json({"template": template, **fields}))
        except ProblemError:
            continue
    tiled = {"tiled" if "YBLOCK" in blocks else "flat"} if template == "pointwise" else {problem.variant}
    variant = next(iter(tiled & {"inner", "flat", "tiled"}), "outer")
    alike = [(r, configs) for (form, kind, r), configs in _tried().items() if (form, kind) == (template, variant)]
    _, more = min(alike, key=lambda each: abs(math.log2(each[0] / next_power_of_2(problem.r))))
    found = re.search(r"min_elem_per_thread=(\d+)", source)
    arch = architecture(detect_hardware(device).arch)
    least = int(found[1]) * arch.warp_size if found else 0
    for config in dict.fromkeys((*own, *more)):
        values = config.kernel.values(config.params)
        built = _as_triton(config, problem)
        sizes = {size: values.get(f"block_{size}", 0) for size in OF_KERNELS}
        fits = all(block <= next_power_of_2(getattr(problem, size)) for size, block in sizes.items())
        enough = math.prod(built.kwargs.values()) >= least * values["num_warps"]
        if config in own or (fits and enough and config.kernel.suits(config.params, problem, arch)):
            yield config, built


@cache
def _tried() -> Mapping[tuple[str, str, int], tuple[Config, ...]]:
    """Return the configs to try, by form, variant and r."""
    found = {}
    for key, configs in orjson.loads(_CONFIGS.read_bytes()).items():
        template, variant, r = key.split()
        found[template, variant, int(r)] = tuple(Config.make(template, each) for each in configs)
    return found


def _alike(results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    """Return whether results are those of another config but for the order of sums."""
    for one, other in zip(results, expected, strict=True):
        if not one.dtype.is_floating_point:
            if float((one != other).float().mean()) > _OF_INTEGERS:
                return False
            continue
        wide = torch.promote_types(one.dtype, torch.float32)
        a, b = one.to(wide), other.to(wide)
        finite = a.isfinite() & b.isfinite()
        if not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
            return False
        a, b = torch.where(finite, a, 0), torch.where(finite, b, 0)
        tolerance = max(_OF_NUMBERS, 4 * torch.finfo(one.dtype).eps)
        if float((a - b).abs().max()) > tolerance * float(b.abs().max()):
            return False
    return True
