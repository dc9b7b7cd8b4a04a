"""Stage ``final``: the sweep's best configs, as the kernels that users will run, timed with care and checked."""

from __future__ import annotations

import math
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from functools import partial
from itertools import islice
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NamedTuple

import torch

from diode_lut.dataset import Record, Timing
from diode_lut.errors import CollectError, HardwareError
from diode_lut.hardware import Hardware, detect_hardware
from diode_lut.measure import compiled
from diode_lut.measure.compiled import Bench, medians
from diode_lut.measure.gemm import (
    EPILOGUES,
    exact_result,
    make_operands,
    make_result,
    make_tensors,
    matmul_precision,
    with_epilogue,
)
from diode_lut.measure.programs import PaddedKernel, PaddedLibrary, Padding, Program, generate
from diode_lut.measure.search_space import Outcome, Task, Watch
from diode_lut.measure.standalone import COMPILE_LIMIT_S, Kernel, Lowering, Subgraph, lowering
from diode_lut.measure.sweep import Launch, aten_launch
from diode_lut.problem import FLOAT8, INT8, NO_EPILOGUE, Problem
from diode_lut.templates.config import ATEN, Config

if TYPE_CHECKING:
    from diode_lut.dataset import Header


_COMPILING_PROBLEMS = 16
"""Problems that are compiled in the background while one is timed."""

_POLL_S = 0.01
"""Time between two looks at what is compiled, in seconds."""

_TOLERANCE = {
    "float16": 0.02,
    "bfloat16": 0.12,
    "tf32": 0.02,
    "float32": 1e-4,
    **dict.fromkeys(FLOAT8, 0.25),
    INT8: 0.12,
}
"""By dtype: largest error of an element over the square root of K, for normally distributed matrices.

Tensor cores add products of float8 with some 14 bits, and cut off the rest. That of int8 is of the scaled result, in
bfloat16; without an epilogue there is no error.
"""


def measure(tasks: Sequence[Task], device: str, watch: Watch, search_space: str) -> Iterator[Outcome]:
    """A Measurer. Every task must have its configs; ``search_space`` has no effect."""
    gemms = [task for task in tasks if task.problem.op not in compiled.COMPILED]
    others = [task for task in tasks if task.problem.op in compiled.COMPILED]
    if gemms:
        yield from _measure_gemms(gemms, device, watch)
    if others:
        yield from compiled.measure(others, device, watch, search_space, "final")


def _measure_gemms(tasks: Sequence[Task], device: str, watch: Watch) -> Iterator[Outcome]:
    bench = Bench()
    place = torch.device(device, torch.cuda.current_device())
    fused = [task for task in tasks if task.problem.epilogue != NO_EPILOGUE]
    alone = [task for task in tasks if task.problem.epilogue == NO_EPILOGUE]
    programs = Ahead(fused, partial(_prepare_programs, device=place))
    programs.begin()  # so that the processes that generate code start together with those that compile
    with lowering(place) as lowered:
        kernels = Ahead(alone, partial(_prepare_kernels, lowered=lowered))
        while prepared := take_compiled([programs, kernels]):
            yield _measure(prepared, device, watch, bench)


class Ahead:
    """Tasks whose kernels are compiled in the background; ``prepare`` begins that.

    ``waiting`` are at most _COMPILING_PROBLEMS that are being compiled.
    """

    def __init__(self, tasks: Iterable[Task], prepare: Callable[[Task], Prepared]) -> None:
        self._prepared = map(prepare, tasks)
        self.waiting: list[Prepared] = []

    def begin(self) -> None:
        """Begin with as many more tasks as may be compiled at the same time."""
        self.waiting.extend(islice(self._prepared, _COMPILING_PROBLEMS - len(self.waiting)))


def take_compiled(queues: Sequence[Ahead]) -> Prepared | None:
    """Take out the first that is compiled, once there is one; the first of all if that takes too long.

    Others are begun in its place. None if no task is left.
    """
    for queue in queues:
        queue.begin()
    waiting = [(queue, each) for queue in queues for each in queue.waiting]
    if not waiting:
        return None
    latest = time.monotonic() + COMPILE_LIMIT_S
    while not any(each.is_compiled for _, each in waiting) and time.monotonic() < latest:
        time.sleep(_POLL_S)
    queue, taken = next((pair for pair in waiting if pair[1].is_compiled), waiting[0])
    queue.waiting.remove(taken)
    return taken


Runnable = Kernel | Subgraph | Program | PaddedKernel | PaddedLibrary
"""What runs a config other than ``aten``."""


class Prepared(NamedTuple):
    """A task and its kernels, which are compiled in the background."""

    task: Task
    kernels: dict[Config, Runnable]

    @property
    def is_compiled(self) -> bool:
        """Whether loading its kernels does not have to wait."""
        return all(kernel.is_compiled for kernel in self.kernels.values())


def _prepare_programs(task: Task, device: torch.device) -> Prepared:
    """Of a problem with an epilogue; kernels with an epilogue in them take operands as they are, without ``pad``."""
    configs = [config for config in task.remaining if config.pad == 1]
    return _compiling(
        task, {config: Program(partial(generate_program, task.problem, device, config)) for config in configs}
    )


def _prepare_kernels(task: Task, lowered: Lowering) -> Prepared:
    """Of a problem without an epilogue; ``aten`` needs no kernel."""
    problem, shapes = task.problem, make_operands(task.problem, "meta")
    kernels: dict[Config, Runnable] = {}
    paddings = {
        pad: Padding(problem, pad, shapes, lowered.device) for pad in {config.pad for config in task.configs} - {1}
    }
    with matmul_precision(problem.dtype):
        for config in task.remaining:
            kernel: Runnable | None = None
            if config.pad in paddings:
                kernel = paddings[config.pad].kernel(config, lowered)
            elif config != ATEN:
                kernel = lowered.for_problem(problem, config, shapes)
            if kernel is not None:
                kernels[config] = kernel
    return _compiling(task, kernels)


def _compiling(task: Task, kernels: dict[Config, Runnable]) -> Prepared:
    for kernel in kernels.values():
        kernel.compile()
    return Prepared(task, kernels)


def generate_program(problem: Problem, device: torch.device, config: Config) -> str:
    """Inductor's code for a problem with its epilogue; runs in any process."""
    tensors = (*make_operands(problem, "meta"), *make_tensors(problem, "meta"))
    with matmul_precision(problem.dtype):
        return generate(with_epilogue(problem), tensors, device, config)


def _measure(prepared: Prepared, device: str, watch: Watch, bench: Bench) -> Outcome:
    problem = prepared.task.problem
    try:
        with matmul_precision(problem.dtype):
            timings = _timings(prepared, watch, bench, make_operands(problem, device), make_tensors(problem, device))
    except (CollectError, RuntimeError) as error:  # such as too little memory
        torch.cuda.empty_cache()
        return Outcome(problem, "skipped", reason=str(error).splitlines()[0])
    return Outcome(problem, "measured", Record(problem, timings, "final"))


def _timings(
    prepared: Prepared,
    watch: Watch,
    bench: Bench,
    operands: tuple[torch.Tensor, ...],
    tensors: tuple[torch.Tensor, ...],
) -> tuple[Timing, ...]:
    problem = prepared.task.problem
    check = GemmCheck(problem, operands, tensors)
    alone = problem.epilogue == NO_EPILOGUE
    launches: dict[Config, Launch] = {ATEN: aten_launch(problem, operands, check.out)} if alone else {}
    failures: list[Timing] = []
    for config, kernel in prepared.kernels.items():
        reason = kernel.load()
        if reason is None:
            if isinstance(kernel, PaddedKernel):
                check.padded = kernel.padding.out
            launch = kernel.bind(problem, (*operands, *tensors), check.out)
            reason = watch.failure(problem, config, partial(check.passes, launch))
            launches |= {} if reason else {config: launch}
        if reason is not None:
            failures.append(Timing(config, None, reason))
    with watch(problem):
        middle = medians(list(launches.values()), bench)
    return (*(Timing.of(config, round(ns)) for config, ns in zip(launches, middle, strict=True)), *failures)


class GemmCheck:
    """Compares each element of a kernel's result with that of float64.

    Kernels write to ``out``, or to ``padded`` where the operands are padded.
    """

    def __init__(
        self, problem: Problem, operands: tuple[torch.Tensor, ...], tensors: tuple[torch.Tensor, ...] = ()
    ) -> None:
        self.out = self.padded = make_result(problem, operands)
        growth = 1.0 if problem.epilogue == NO_EPILOGUE else EPILOGUES[problem.epilogue].factor
        self._exact = not self.out.is_floating_point()
        self._never = -(2**31) if self._exact else torch.nan
        self._limit = growth * _TOLERANCE[problem.dtype] * math.sqrt(problem.k)
        self._reference = exact_result(problem, operands, tensors).to(_REFERENCE[self.out.dtype])

    def passes(self, launch: Callable[[], object]) -> bool:
        """Whether one launch computes the right result; elements that it does not write never pass.

        They are NaN, or the least integer. That holds for results in ``out`` and ``padded``, and nearly always for
        those in new memory. Integers must be equal.
        """
        torch.full_like(self.out, self._never)  # the allocator hands out this memory next
        for out in (self.out, self.padded):
            out.fill_(self._never)
        launched = launch()
        result = launched if isinstance(launched, torch.Tensor) else self.out
        if self._exact:
            return torch.equal(result, self._reference)
        error = result - self._reference
        return bool(error.abs_().max() <= self._limit)


_REFERENCE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
    torch.int32: torch.int32,
}


_FIRST_YEAR = 2026
"""The year of the first release: an earlier date is wrong."""


class Setup(NamedTuple):
    """How a collection measures. ``device`` is ``cuda`` or ``cpu``, ``method`` one of METHODS."""

    device: str
    method: str
    search_space: str
    header: Header


def find_setup(device: str | None, method: str | None, search_space: str) -> Setup:
    """This process's setup; by default CUDA where there is any, method ``sweep`` on CUDA and ``autotune`` elsewhere.

    HardwareError without such a device, or with one that the method is not for.
    """
    import torch

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    method = method or ("sweep" if device == "cuda" else "autotune")
    if method == "sweep" and device == "cpu":
        raise HardwareError("cpu: method sweep times Triton kernels, which need CUDA: use --method autotune")
    return Setup(device, method, search_space, _make_header(device, method, search_space))


def difference(one: Setup, other: Setup) -> str:
    """Why timings of the two setups cannot be mixed, as text; empty if they can."""
    from diode_lut.dataset.record import SOFTWARE

    for name in ("hardware", *SOFTWARE):
        mine, others = getattr(one.header, name), getattr(other.header, name)
        if mine != others:
            return f"{name} {mine} and {others}"
    return ""


def _make_header(device: str, method: str, search_space: str) -> Header:
    import torch

    from diode_lut.dataset import Header

    on_gpu = device != "cpu"
    return Header(
        hardware=detect_hardware(device),
        torch=torch.__version__,
        triton=_triton_version(),
        cuda=(torch.version.cuda or torch.version.hip or "") if on_gpu else "",
        driver=_driver_version() if on_gpu else "",
        benchmarker=f"inductor max_autotune {search_space}" if method == "autotune" else "diode_lut sweep 1",
        measured_on=today(),
    )


def today() -> str:
    """The ISO date for a header; empty if the clock is wrong, as it says a year before _FIRST_YEAR."""
    day = date.today()
    return day.isoformat() if day.year >= _FIRST_YEAR else ""


def _triton_version() -> str:
    try:
        import triton
    except ImportError:
        return ""
    return str(triton.__version__)


def _driver_version() -> str:
    """The GPU driver's version as nvidia-smi gives it, empty where there is no nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)  # noqa: S603 - a fixed program
    return answer.stdout.strip().splitlines()[0] if answer.returncode == 0 else ""


METHODS = {"autotune": ("autotune",), "sweep": ("sweep", "final")}
"""The stages of each method, in order: all problems go through one stage before any goes through the next."""

SETS = {
    "models": "GEMMs of model suites in float16 and of language models in bfloat16, then some of them with epilogues",
    "llm": "those in bfloat16, of language models",
    "quick": "the first 128 of models",
    "fp8": "linear layers of language models in float8: scaled_mm, forward and backward, up to 8,192 rows",
    "int8": "linear layers of language models in int8: int_mm, alone and with scales behind it, 17 to 8,192 rows",
    "attention": "flex attention, forward, backward and decoding: head dimensions from 64 to 256, lengths to 32,768",
    "grouped": "grouped matmuls of the experts of six public models: 64 to 16,384 rows",
}
"""The sets of problems by name. The first three begin with the GEMMs that gained most over aten on an H200."""

MEASURERS = {
    "autotune": "diode_lut.measure.autotune:measure",
    "sweep": "diode_lut.measure.sweep:measure",
    "final": "diode_lut.measure.final:measure",
}
"""The Measurer of each stage."""

FINALISTS = "diode_lut.measure.search_space:finalists"
"""The function that makes the tasks of stage ``final`` from the records of stage ``sweep``."""


def final_tasks(records: Iterable[Record], problems: Sequence[Problem], hardware: Hardware) -> list[Task]:
    """The tasks of stage ``final``, from the records of stage ``sweep`` on such a device."""
    tasks: list[Task] = resolve_name(FINALISTS)(records, problems, hardware)
    return tasks


def measure_tasks(tasks: Sequence[Task], measurer: str, setup: Setup, watch: Watch) -> Iterator[Outcome]:
    """The outcomes of one of MEASURERS; records include the configs that failed before.

    ``tasks`` are those of a shard.
    """
    failed = {task.problem: task.failed for task in tasks}
    for outcome in resolve_name(measurer)(tasks, setup.device, watch, setup.search_space):
        yield _with_failures(outcome, failed[outcome.problem])


def _with_failures(outcome: Outcome, failed: tuple[Timing, ...]) -> Outcome:
    if outcome.record is None:
        return outcome
    configs = {timing.config for timing in failed}
    others = (timing for timing in outcome.record.timings if timing.config not in configs)
    return outcome._replace(record=outcome.record._replace(timings=(*others, *failed)))
