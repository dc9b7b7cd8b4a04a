"""The stages of method ``sweep``: many configs quickly, on shared kernels, then the best with care, as users do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch

from diode_lut.dataset import Record, Timing
from diode_lut.errors import CollectError
from diode_lut.hardware import detect_hardware
from diode_lut.measure import gemm
from diode_lut.measure.attention import AttentionCheck, make_attention
from diode_lut.measure.kernels import Kernel, Lowering, PaddedKernel, Padding, lowering
from diode_lut.measure.programs import COMPILE_LIMIT_S, FastestOf, Program, Runnable, WithWork, generate
from diode_lut.measure.tasks import Outcome, Task, Watch, apart, candidates, padded_candidates
from diode_lut.measure.timing import Bench, Launch, measure_kernel, medians, time_all
from diode_lut.problem import ATTENTION, FUSED, GROUPED, NO_EPILOGUE, TOGETHER, Problem
from diode_lut.templates.config import ATEN, DEFAULT, Config, padded

_shared: dict[tuple[gemm.Specialization, Config], Kernel | None] = {}
"""The kernels for many problems of this process, which measures shard after shard."""


def sweep(tasks: Sequence[Task], device: str, watch: Watch, search_space: str) -> Iterator[Outcome]:
    """Measure stage ``sweep``, as a Measurer. The problems should be of the same family, so they share kernels."""
    if tasks[0].problem.op in COMPILED:
        yield from _measure_compiled(tasks, device, watch, search_space, "sweep")
        return
    hardware = detect_hardware(device)
    complete = []
    for task in tasks:
        if gemm.shares_kernels(task.problem):
            where = task.problem, hardware, search_space
            configs = task.configs or (*candidates(*where), *padded_candidates(*where))
            remaining = task._replace(configs=configs).remaining
            possible = (config for config in remaining if gemm.shares_kernels(padded(task.problem, config.pad)))
            complete.append(task._replace(configs=tuple(possible)))
        else:
            reason = "too large for a sweep, or not packed: use --method autotune"
            yield Outcome(task.problem, "skipped", reason=reason)
    place = torch.device(device, torch.cuda.current_device())
    with lowering(place) as lowered, gemm.matmul_precision(tasks[0].problem.dtype):
        for task in complete:
            for config in task.configs:
                key = _key(task.problem, config) if config.kernel.tiled else None
                if key is not None and key not in _shared:
                    kernel = _shared[key] = lowered.specialized(*key)
                    if kernel is not None:
                        kernel.compile()  # in the background
        bench = Bench()
        for task in complete:
            yield _outcome(task.problem, partial(_sweep, task, device, watch, bench))


def _key(problem: Problem, config: Config) -> tuple[gemm.Specialization, Config]:
    """Return the specialization of a config's kernel, for the padded problem, and the config without ``pad``."""
    return gemm.Specialization.of(padded(problem, config.pad), config.padded(1)), config.padded(1)


def _outcome(problem: Problem, measure: Callable[[], Record]) -> Outcome:
    """Return the outcome with the record, or with an error such as too little memory."""
    try:
        return Outcome(problem, "measured", measure())
    except (CollectError, RuntimeError) as error:
        torch.cuda.empty_cache()
        return Outcome(problem, "skipped", reason=str(error).splitlines()[0])


def _sweep(task: Task, device: str, watch: Watch, bench: Bench) -> Record:
    problem = task.problem
    operands = gemm.make_operands(problem, device)
    out = gemm.make_result(problem, operands)
    launches: dict[Config, Launch] = {}
    failures: list[Timing] = []
    pads = {config.pad for config in task.configs} - {1}
    paddings = {pad: Padding(problem, pad, operands, out.device, packed=True) for pad in pads}
    for config in task.configs:
        launch = _launch(problem, config, operands, out, paddings.get(config.pad))
        if isinstance(launch, str):
            failures.append(Timing(config, None, launch))
        elif launch is not None:
            launches[config] = launch
    times = time_all(problem, launches, watch, bench, failures)
    timings = [Timing.of(config, round(ns)) for config, ns in times.items()]
    return Record(problem, (*timings, *failures), "sweep")


def _launch(
    problem: Problem, config: Config, operands: Sequence[torch.Tensor], out: torch.Tensor, padding: Padding | None
) -> Launch | str | None:
    """Return a launch of the config, which pads first if asked, the reason of its failure, or None if it cannot run."""
    if padding is not None and config.padded(1) == ATEN:
        return padding.load("library") or partial(padding.library, operands)
    if padding is not None and (reason := padding.load("copies")) is not None:
        return reason
    if config == ATEN:
        return aten_launch(problem, operands, out)
    if config.k_split > 1:
        if padding is None:
            return partial(_decomposed, config.k_split, *operands)
        return lambda: _decomposed(config.k_split, *padding.complete(operands, padding.copies(operands)))
    kernel = _shared[_key(problem, config)]
    if kernel is None:
        return None
    if padding is None:
        return kernel.load() or partial(kernel.bind(problem, out), operands)
    return kernel.load() or partial(PaddedKernel(kernel, padding).bind(problem, padding.out), operands)


def aten_launch(problem: Problem, operands: Sequence[torch.Tensor], out: torch.Tensor) -> Launch:
    """Return a launch of ATen's kernel, which writes to ``out``."""
    return partial(gemm.function_of(problem), *operands, out=out)


def _decomposed(parts: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute Inductor's decompose_k, without fusing the sum with later operations."""
    (m, k), n = a.shape, b.shape[1]
    a = a.reshape(m, parts, k // parts).transpose(0, 1)
    return torch.bmm(a, b.reshape(parts, k // parts, n), out_dtype=torch.float32).sum(0)


def final(tasks: Sequence[Task], device: str, watch: Watch, search_space: str) -> Iterator[Outcome]:
    """Measure stage ``final``, as a Measurer. Every task must have its configs, and ``search_space`` has no effect."""
    recorded = [(task.kernel, task) for task in tasks if task.kernel is not None]
    gemms = [task for task in tasks if task.problem.op not in COMPILED and task.kernel is None]
    if recorded:
        bench = Bench()
        for kernel, task in recorded:
            yield _outcome(task.problem, partial(measure_kernel, kernel, task, device, watch, bench))
    if gemms:
        bench = Bench()
        place = torch.device(device, torch.cuda.current_device())
        fused = [task for task in gemms if task.problem.epilogue != NO_EPILOGUE]
        alone = [task for task in gemms if task.problem.epilogue == NO_EPILOGUE]
        programs = Ahead(fused, partial(_prepare_programs, device=place))
        programs.begin()  # so that the processes that generate code start together with those that compile
        with lowering(place) as lowered:
            kernels = Ahead(alone, partial(_prepare_kernels, lowered=lowered))
            while prepared := take_compiled([programs, kernels]):
                yield _outcome(prepared.task.problem, partial(_finish, prepared, device, watch, bench))
    others = [task for task in tasks if task.problem.op in COMPILED]
    if others:
        yield from _measure_compiled(others, device, watch, search_space, "final")


_COMPILING_PROBLEMS = 16  # maximum number of problems compiled in the background at the same time
_POLL_S = 0.01  # seconds between two looks for compiled kernels


class Prepared(NamedTuple):
    """A task and its kernels, compiled in the background."""

    task: Task
    kernels: dict[Config, Runnable]

    @property
    def is_compiled(self) -> bool:
        """Whether loading its kernels does not have to wait."""
        return all(kernel.is_compiled for kernel in self.kernels.values())


class Ahead:
    """Tasks whose kernels are compiled in the background: at most ``most`` are ``waiting``."""

    def __init__(
        self, tasks: Iterable[Task], prepare: Callable[[Task], Prepared], most: int = _COMPILING_PROBLEMS
    ) -> None:
        self._prepared = map(prepare, tasks)
        self._most = most
        self.waiting: list[Prepared] = []

    def begin(self) -> None:
        """Begin with as many more tasks as may be compiled at the same time."""
        self.waiting.extend(islice(self._prepared, self._most - len(self.waiting)))


def take_compiled(queues: Sequence[Ahead]) -> Prepared | None:
    """Take out the first compiled task, or after COMPILE_LIMIT_S the first of all, and begin others, or None."""
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


def _prepare_programs(task: Task, device: torch.device) -> Prepared:
    """Compile a problem with an epilogue. Kernels with a fused epilogue take operands as they are, without ``pad``."""
    kernels: dict[Config, Runnable] = {}
    for config in task.remaining:
        if config.pad == 1:
            kernels[config] = Program(partial(generate_program, task.problem, device, config))
            kernels[config].compile()
    return Prepared(task, kernels)


def generate_program(problem: Problem, device: torch.device, config: Config) -> str:
    """Return Inductor's code for a problem with its epilogue, in any process."""
    tensors = (*gemm.make_operands(problem, "meta"), *gemm.make_tensors(problem, "meta"))
    with gemm.matmul_precision(problem.dtype):
        return generate(gemm.with_epilogue(problem), tensors, device, config)


def _prepare_kernels(task: Task, lowered: Lowering) -> Prepared:
    """Compile a problem without an epilogue. ``aten`` needs no kernel."""
    problem, shapes = task.problem, gemm.make_operands(task.problem, "meta")
    kernels: dict[Config, Runnable] = {}
    pads = {config.pad for config in task.configs} - {1}
    paddings = {pad: Padding(problem, pad, shapes, lowered.device) for pad in pads}
    with gemm.matmul_precision(problem.dtype):
        for config in task.remaining:
            kernel: Runnable | None = None
            if config.pad in paddings:
                kernel = paddings[config.pad].kernel(config, lowered)
            elif config != ATEN:
                kernel = lowered.for_problem(problem, config, shapes)
            if kernel is not None:
                kernels[config] = kernel
    for kernel in kernels.values():
        kernel.compile()
    return Prepared(task, kernels)


def _finish(prepared: Prepared, device: str, watch: Watch, bench: Bench) -> Record:
    problem = prepared.task.problem
    with gemm.matmul_precision(problem.dtype):
        operands, tensors = gemm.make_operands(problem, device), gemm.make_tensors(problem, device)
        check = gemm.GemmCheck(problem, operands, tensors)

        def bind(kernel: Runnable) -> Launch:
            if isinstance(kernel, PaddedKernel):
                check.padded = kernel.padding.out
            return partial(kernel.bind(problem, check.out), (*operands, *tensors))

        alone = problem.epilogue == NO_EPILOGUE
        launches: dict[Config, Launch] = {ATEN: aten_launch(problem, operands, check.out)} if alone else {}
        return _timed(prepared, launches, bind, check.passes, watch, bench, "final")


def _timed(
    prepared: Prepared,
    launches: dict[Config, Launch],
    bind: Callable[[Any], Launch],
    passes: Callable[[Any], bool],
    watch: Watch,
    bench: Bench,
    stage: str,
) -> Record:
    """Time ``launches`` and the kernels with the right results, once they are loaded."""
    problem, launches, failures = prepared.task.problem, dict(launches), []
    for config, kernel in prepared.kernels.items():
        reason = kernel.load()
        if reason is None:
            launch = bind(kernel)
            reason = watch.failure(problem, config, partial(passes, launch))
            launches |= {} if reason else {config: launch}
        if reason is not None:
            failures.append(Timing(config, None, reason))
    with watch(problem):
        times = medians(list(launches.values()), bench) if launches else []
    timings = (Timing.of(config, round(ns)) for config, ns in zip(launches, times, strict=True))
    return Record(problem, (*timings, *failures), stage)


_Make = Callable[[Problem, str], tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]
_Check = Callable[[Problem, Sequence[torch.Tensor]], AttentionCheck | gemm.TogetherCheck]
_OPS: dict[str, tuple[_Make, _Check]] = {
    **dict.fromkeys(ATTENTION, (make_attention, AttentionCheck)),
    **dict.fromkeys(GROUPED, (gemm.make_grouped, gemm.GroupedMmCheck)),
    **dict.fromkeys(TOGETHER, (gemm.make_together, gemm.TogetherCheck)),
}
"""How an op is measured: what makes its function and operands on a device, and what checks its results."""

COMPILED = tuple(_OPS)  # the ops with a program for each problem and config
_COMPILING_PROGRAMS = 3  # Maximum number of problems of COMPILED compiled at the same time. Each has dozens of configs


def _measure_compiled(
    tasks: Sequence[Task], device: str, watch: Watch, search_space: str, stage: str
) -> Iterator[Outcome]:
    """Measure problems of COMPILED at a stage. Tasks without configs get all candidates."""
    hardware = detect_hardware(device)
    bench = Bench()
    complete = (
        task._replace(configs=task.configs or tuple(candidates(task.problem, hardware, search_space))) for task in tasks
    )
    place = torch.device(device, torch.cuda.current_device())
    queue = Ahead(complete, partial(_prepare_compiled, device=place), _COMPILING_PROGRAMS)
    while prepared := take_compiled([queue]):
        yield _outcome(prepared.task.problem, partial(_time_compiled, prepared, device, watch, bench, stage))


def _prepare_compiled(task: Task, device: torch.device) -> Prepared:
    make, _ = _OPS[task.problem.op]
    function, operands = make(task.problem, "meta")
    shapes = [(tuple(each.shape), each.stride(), each.dtype) for each in operands]
    kernels: dict[Config, Runnable] = {}
    code = partial(generate_code, function, task.problem.dtype, shapes, device)
    for config in task.remaining:
        if task.problem.op not in TOGETHER:
            kernels[config] = Program(partial(code, config))
        elif config == DEFAULT:
            on_their_own = apart(task.problem, detect_hardware(device.type))
            kernels[config] = FastestOf(tuple(Program(partial(code, each)) for each in on_their_own))
        elif task.problem.op in FUSED:
            kernels[config] = WithWork(task.problem.variant, config)
        else:
            kernels[config] = Program(partial(code, config, joined=True))
        kernels[config].compile()
    return Prepared(task, kernels)


def generate_code(
    function: Callable[..., Any],
    dtype: str,
    shapes: Sequence[Any],
    device: torch.device,
    config: Config,
    *,
    joined: bool = False,
) -> str:
    """Return Inductor's code for a function of tensors with these shapes, strides and types, in any process."""
    tensors = [
        torch.empty_strided(shape, stride, dtype=of_tensor, device="meta") for shape, stride, of_tensor in shapes
    ]
    with gemm.matmul_precision(dtype):
        return generate(function, tensors, device, config, joined=joined)


def _time_compiled(prepared: Prepared, device: str, watch: Watch, bench: Bench, stage: str) -> Record:
    problem = prepared.task.problem
    with gemm.matmul_precision(problem.dtype):
        make, make_check = _OPS[problem.op]
        _, operands = make(problem, device)
        check = make_check(problem, operands)

        def bind(program: Any) -> Launch:
            if not isinstance(program, FastestOf):
                return program.run(operands)  # type: ignore[no-any-return]
            with watch(problem):
                right = [launch for launch in program.run(operands) if check.passes(launch)]
                times = medians(right, bench) if right else []
            if not right:
                raise CollectError("no matmul on its own has the right result")
            return right[times.index(min(times))]

        return _timed(prepared, {}, bind, check.passes, watch, bench, stage)
