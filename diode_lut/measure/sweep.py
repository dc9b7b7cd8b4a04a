"""Stage ``sweep``: every candidate on every problem, with kernels that each are compiled once for many problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median_low

import torch

from diode_lut.dataset import Record, Timing
from diode_lut.errors import CollectError
from diode_lut.hardware import Hardware, detect_hardware
from diode_lut.hook.versions import failure_reason
from diode_lut.measure import compiled
from diode_lut.measure.compiled import Bench
from diode_lut.measure.gemm import make_operands, make_result, matmul_precision
from diode_lut.measure.programs import PaddedKernel, Padding
from diode_lut.measure.search_space import Outcome, Task, Watch, candidates, padded_candidates
from diode_lut.measure.standalone import Kernel, Lowering, Specialization, function_of, lowering, shares_kernels
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config, padded

_SLOW_NS = 1_000_000
_SLOW_FACTOR = 2.0
"""A config gets no more launches if each of two takes longer than _SLOW_NS nanoseconds, and _SLOW_FACTOR times as long
as the fastest config."""

_ROUNDS = ((math.inf, 2), (1.5, 2), (1.2, 4))
"""Pairs of a factor and the number of further rounds for the configs within this factor of the best.

About one launch in a thousand takes hundreds of times as long, because the CPU is busy elsewhere. So no decision rests
on one launch, and of two the faster counts.
"""

Launch = Callable[[], object]


def measure(tasks: Sequence[Task], device: str, watch: Watch, search_space: str) -> Iterator[Outcome]:
    """A Measurer. The problems should be of one family, so that they share kernels."""
    if tasks[0].problem.op in compiled.COMPILED:
        yield from compiled.measure(tasks, device, watch, search_space, "sweep")
        return
    hardware = detect_hardware(device)
    complete = [_with_configs(task, hardware, search_space) for task in tasks if shares_kernels(task.problem)]
    for task in tasks:
        if not shares_kernels(task.problem):
            yield Outcome(task.problem, "skipped", reason="too large for a sweep, or not packed: use --method autotune")
    with (
        lowering(torch.device(device, torch.cuda.current_device())) as lowered,
        matmul_precision(tasks[0].problem.dtype),
    ):
        kernels = Kernels(lowered)
        for task in complete:
            kernels.request(task.problem, task.configs)
        bench = Bench()
        for task in complete:
            yield _outcome(task, device, watch, kernels, bench)


class Kernels:
    """Kernels for many problems, which are compiled in the background once they are requested."""

    def __init__(self, lowered: Lowering) -> None:
        self._lowering = lowered

    def request(self, problem: Problem, configs: Sequence[Config]) -> None:
        """Start compiling the Triton kernels that are not compiled yet."""
        for config in configs:
            if not config.kernel.tiled:
                continue
            key = _key(problem, config)
            if key not in _kernels:
                kernel = _kernels[key] = self._lowering.specialized(*key)
                if kernel is not None:
                    kernel.compile()

    def get(self, problem: Problem, config: Config) -> Kernel | str | None:
        """The kernel, ready to run; or the reason of its failure; or None if there is no such kernel.

        That of a config with ``pad`` is for the padded problem.
        """
        kernel = _kernels[_key(problem, config)]
        return kernel and (kernel.load() or kernel)


def _key(problem: Problem, config: Config) -> tuple[Specialization, Config]:
    """What the kernel of a config is compiled for, and the config without ``pad``."""
    return Specialization.of(padded(problem, config.pad), config.padded(1)), config.padded(1)


_kernels: dict[tuple[Specialization, Config], Kernel | None] = {}
"""The kernels of this process, which measures one shard after another."""


def _with_configs(task: Task, hardware: Hardware, search_space: str) -> Task:
    """The task with all configs to try, without those that failed before."""
    failed = {timing.config for timing in task.failed}
    configs = task.configs or (
        *candidates(task.problem, hardware, search_space),
        *padded_candidates(task.problem, hardware, search_space),
    )
    possible = (config for config in configs if shares_kernels(padded(task.problem, config.pad)))
    return task._replace(configs=tuple(config for config in possible if config not in failed))


def _outcome(task: Task, device: str, watch: Watch, kernels: Kernels, bench: Bench) -> Outcome:
    try:
        return _measure(task, device, watch, kernels, bench)
    except (CollectError, RuntimeError) as error:  # such as too little memory
        torch.cuda.empty_cache()
        return Outcome(task.problem, "skipped", reason=str(error).splitlines()[0])


def _measure(task: Task, device: str, watch: Watch, kernels: Kernels, bench: Bench) -> Outcome:
    problem = task.problem
    operands = make_operands(problem, device)
    out = make_result(problem, operands)
    launches: dict[Config, Launch] = {}
    failures: list[Timing] = []
    paddings = {
        pad: Padding(problem, pad, operands, out.device, packed=True)
        for pad in {config.pad for config in task.configs} - {1}
    }
    for config in task.configs:
        padding = paddings.get(config.pad)
        if padding is None:
            launch = _launch(problem, config, operands, out, kernels)
        else:
            launch = _padded_launch(problem, config, operands, padding, kernels)
        if isinstance(launch, str):
            failures.append(Timing(config, None, launch))
        elif launch is not None:
            launches[config] = launch
    times = time_all(problem, launches, watch, bench, failures)
    timings = [Timing.of(config, round(ns)) for config, ns in times.items()]
    return Outcome(problem, "measured", Record(problem, (*timings, *failures), "sweep"))


def _launch(
    problem: Problem, config: Config, operands: Sequence[torch.Tensor], out: torch.Tensor, kernels: Kernels
) -> Launch | str | None:
    """A launch of the config; or the reason of its failure; or None if it cannot compute this problem."""
    if config == ATEN:
        return aten_launch(problem, operands, out)
    if config.k_split > 1:
        return partial(_decomposed, config.k_split, *operands)
    kernel = kernels.get(problem, config)
    return kernel.bind(problem, operands, out) if isinstance(kernel, Kernel) else kernel


def _padded_launch(
    problem: Problem, config: Config, operands: Sequence[torch.Tensor], padding: Padding, kernels: Kernels
) -> Launch | str | None:
    """The same for a config with ``pad``; each launch copies the operands first."""
    if config.padded(1) == ATEN:
        return padding.load("library") or partial(padding.library, operands)
    reason = padding.load("copies")
    if reason is not None:
        return reason
    if config.k_split > 1:
        return lambda: _decomposed(config.k_split, *padding.complete(operands, padding.copies(operands)))
    kernel = kernels.get(problem, config)
    return PaddedKernel(kernel, padding).bind(problem, operands, padding.out) if isinstance(kernel, Kernel) else kernel


def aten_launch(problem: Problem, operands: Sequence[torch.Tensor], out: torch.Tensor) -> Launch:
    """A launch of ATen's kernel, which writes to ``out``."""
    return partial(function_of(problem), *operands, out=out)


def _decomposed(parts: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Inductor's decompose_k, without fusing the sum with later operations."""
    (m, k), n = a.shape, b.shape[1]
    a = a.reshape(m, parts, k // parts).transpose(0, 1)
    return torch.bmm(a, b.reshape(parts, k // parts, n), out_dtype=torch.float32).sum(0)


def time_all(
    problem: Problem, launches: dict[Config, Launch], watch: Watch, bench: Bench, failures: list[Timing]
) -> dict[Config, float]:
    """Nanoseconds of each config; configs that do not run are added to ``failures``."""
    times: dict[Config, list[float]] = {}
    for config, launch in launches.items():
        first = _first(problem, config, launch, watch, bench)
        if isinstance(first, str):
            failures.append(Timing(config, None, first))
        else:
            times[config] = [first]
    limit = max(_SLOW_FACTOR * min(each for (each,) in times.values()), _SLOW_NS) if times else 0
    for config, (ns,) in times.items():
        if ns > limit:
            with watch(problem, config):
                times[config] = [min(ns, bench.once(launches[config]))]
    running = [config for config, (ns,) in times.items() if ns <= limit]
    times |= {config: [] for config in running}  # the first launch is slower than the others
    with watch(problem):
        for factor, rounds in _ROUNDS:
            medians = {config: median_low(times[config] or [1.0]) for config in running}
            running = [config for config in running if medians[config] <= factor * min(medians.values())]
            measured = bench.rounds([launches[config] for config in running], rounds)
            for config, column in zip(running, measured.T.tolist(), strict=True):
                times[config] += column
    return {config: median_low(each) for config, each in times.items()}


def _first(problem: Problem, config: Config, launch: Launch, watch: Watch, bench: Bench) -> float | str:
    """Nanoseconds of the second launch, because the first may load the kernel; or the reason of its failure."""
    try:
        with watch(problem, config):
            launch()
            return bench.once(launch)
    except RuntimeError as error:
        return failure_reason(error, "launch")
