"""Measuring a kernel that Inductor generated, alone. Its numbers are normally distributed, indices and masks zero."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
from diode_lut.measure.timing import Bench, Launch, medians
from diode_lut.problem import OF_KERNELS, Problem
from diode_lut.templates.config import DEFAULT, Config

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
        launches: dict[Config, Launch] = {}
        others = (
            _named(task.configs, problem, first) if task.configs else _configs(problem, first, kernel.source, device)
        )
        wanted = [(DEFAULT, first.configs[0]), *others]
        for config, triton_config in wanted:
            if config in [each.config for each in task.failed]:
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
            if (
                not task.configs
                and config != DEFAULT
                and any(getattr(each, "n_spills", 0) for each in autotuner.launchers)
            ):
                continue
            launch = partial(autotuner.run, *arguments, stream=torch.cuda.current_stream().cuda_stream)
            results = partial(_results, launch, memory, before)
            if config == DEFAULT:
                with watch(problem, config):
                    expected = results()
            elif reason := watch.failure(problem, config, lambda: _alike(results(), expected)):  # noqa: B023
                failures.append(Timing(config, None, reason))
                continue
            launches[config] = launch
        if DEFAULT not in launches:
            raise CollectError("Inductor's first config fails")
        if len(launches) == 1 and not task.configs:
            raise CollectError("no config that a table can name computes the same")
        with watch(problem):
            times = medians([*launches.values()], bench)
    timings = (Timing.of(config, round(ns)) for config, ns in zip(launches, times, strict=True))
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


def _named(configs: Iterable[Config], problem: Problem, autotuner: Any) -> Iterator[tuple[Config, triton.Config]]:
    """Yield these configs but the default, by our and Triton's names. CollectError for another form of kernel."""
    for config in configs:
        if config == DEFAULT:
            continue
        built = _as_triton(config, problem)
        form = FORMS[autotuner.heuristic_type.name]
        if config.template != form or built.kwargs.keys() != autotuner.configs[0].kwargs.keys():
            raise CollectError(f"{config} is for another form of kernel than the recorded one, which is {form}")
        yield config, built


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


def _results(
    launch: Callable[[], object], memory: Sequence[torch.Tensor], before: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return what is in memory after a launch, in which the kernel may have read what it replaced."""
    for each, original in zip(memory, before, strict=True):
        each.copy_(original)
    launch()
    return [each.clone() for each in memory]


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
