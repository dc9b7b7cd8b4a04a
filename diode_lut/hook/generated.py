"""Generated kernels: Inductor asks its handler for the arguments of each, and gets one config of the tables.

Inductor generates code for a fixed config, and benchmarks nothing at the first launch. The config's template also
decides whether a reduction loops over r or keeps all of it. If Inductor or a setting of the user's decides about a
kernel, the kernel is left to Inductor, and the reason is recorded.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch._inductor.codegen.triton import FixedTritonConfig, TritonKernel
from torch._inductor.dependencies import Dep, MemoryDep
from torch._inductor.ir import Reduction
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.runtime.runtime_utils import next_power_of_2
from torch._inductor.virtualized import V
from torch._logging._internal import trace_log
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from diode_lut.decide.decide import Axis
from diode_lut.decide.sources import Decision
from diode_lut.hardware import architecture
from diode_lut.hook.choices import in_force, is_on, shared_memory_of
from diode_lut.hook.problems import NO_RANGE, axis_of, hint, is_plain, lacks_a_range
from diode_lut.hook.snapshot import CannotRun, InductorSnapshot, skip
from diode_lut.hook.switch import off_because
from diode_lut.hook.versions import KEEPS_R, KWARGS
from diode_lut.log import log
from diode_lut.problem import MAX_SIZE, NO_DTYPE, NO_LAYOUT, SPLIT, Problem
from diode_lut.templates.config import DEFAULT, Config

_DECIDING = (
    *("coordinate_descent_tuning", "max_autotune", "max_autotune_pointwise", "deterministic", "batch_invariant"),
    *("triton.cooperative_reductions", "triton.force_cooperative_reductions", "triton.multi_kernel"),
    *("triton.use_block_ptr", "triton.use_tensor_descriptor", "triton.native_matmul"),
    "test_configs.force_filter_reduction_configs",
)
"""Inductor's settings with which it, or the user, decides about generated kernels. Not all releases have all."""

_SCAN = re.compile("cum|scan")  # parts of the names of ops that Inductor computes by a scan

NOT_FOR_ALL = "a size may change, and nothing answers for all sizes in its range"
OTHERS_CHANGE = "a size may change that is not x alone"
"""Why Inductor decides about a kernel with sizes that may change."""

ADDS = "it adds tiles or sums to memory"
WRITES_FLOAT8 = "its tiles are written in float8"
HAS_FLOAT64 = "it reads or writes float64"
"""Why Inductor decides about kernels that are unlike those that were timed. On an H200, configs of tables took such
tiles from 202 to 256 us in a step of GraphSAGE, and from 560 to 739 us in a step of torchao's float8 training. They
took sums that are added to memory from 443 to 474 us in a step of a graph attention network, and all generated kernels
of a step in float64 from 1,567 to 1,601 us.
"""

_LEFT_OPEN = {"features", "tiling_scores"}  # the arguments that decide nothing about a kernel's form
_HINTS = {each: each.name.lower() for each in ReductionHint}  # the variant of a reduction by Inductor's hint
_LEAST_MEMORY = 48 << 10  # bytes of shared memory that a block has on any GPU
_LEAST_FP8 = {torch.float8_e4m3fn: 2, torch.float8_e5m2: 4}  # elements that a thread needs to convert the type
_MOST_FP8 = max(_LEAST_FP8.values())


def fixed_arguments(
    kernel_class: type, features: Any, tiling: Mapping[str, Any], arguments: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return more arguments for a kernel with the sizes ``tiling``: the config of a table or model, or nothing.

    Most of its time, the processor waits for this code, which Inductor's code drives out of the caches between two
    kernels. So little code runs: all that a graph or kernels alike have in common is found once.
    """
    graph = V.graph
    context = _context_of(graph, graph.get_current_device_or_throw())
    if context is None:
        return {}
    now, name = context.now, context.device
    plain = is_plain((features.numel, features.reduction_numel, *tiling.values()))
    nodes = features.scheduler_nodes()
    moved = [node.read_writes for node in nodes]
    reads = [dep for each in moved for dep in each.reads if isinstance(dep, MemoryDep)]
    writes = [dep for each in moved for dep in each.writes]
    scores = arguments.get("tiling_scores") or {}
    problem = _problem_of(features, tiling, scores, reads, writes, int if plain else hint)
    why, over = _why_left(kernel_class, features, nodes, tiling, arguments, reads, writes, context), None
    if not (why or plain):
        over, why = _range_of_x(features, tiling, graph.sizevars.shape_env)
    if not why:
        decision = now.decide_kernel(problem, name, over)
        why = NOT_FOR_ALL if over is not None and not decision.configs else ""
    if why:
        now.record_generated_left(problem, name, why)
        return {}
    for config in _configs_of_form(decision, features, nodes, context):
        fixed = _fixed(config, decision, nodes, context)
        if fixed is not None:
            context.record(decision, config)
            return fixed.arguments
    context.record(decision, None)
    return {}


def parts_of(device: torch.device, r: Any, x: Any, *, inner: bool) -> int | None:
    """Return into how many parts to split a reduction. If Inductor decides, return None, and record nothing.

    ``x`` and ``r`` are hints, so Inductor decides if any size of the graph may change. It asks about scans too, and
    decides about these itself.
    """
    graph = V.graph
    context = _context_of(graph, device)
    if context is None or context.why:
        return None
    if graph.sizevars.shape_env.var_to_range or _SCAN.search(str(graph.current_node.target)):
        return None
    sizes = {"x": int(x), "r": int(r)}
    if not all(1 <= size <= MAX_SIZE for size in sizes.values()):
        return None
    now, name = context.now, context.device
    decision = now.decide_kernel(_problem(SPLIT, "inner" if inner else "outer", **sizes), name)
    for config in decision.configs:
        if config == DEFAULT:
            return None
        reason = f"{config.template} is not for {SPLIT}" if SPLIT not in config.kernel.ops else ""
        for complaint in config.kernel.faults_on(decision.problem, config.params, architecture(decision.hardware.arch)):
            reason = reason or complaint.reason
        if not reason:
            context.record(decision, config)
            return config.kernel.values(config.params)["parts"]
        skip(decision, config, reason)
    return None


class _AtLeastTwo(FixedTritonConfig):
    """A fixed config that shows Inductor blocks of two elements along x and y where they have one.

    With one along x, Inductor leaves x out of the code of a persistent reduction. This is not the code that was timed,
    and breaks compiles before torch 2.14. With one along y, it leaves out the mask. More than 65,535 programs along y
    become a grid with another dimension, whose last programs may lie beyond the tensors and need the mask. Code for
    blocks of two has all masks that blocks of one need.
    """

    def __getitem__(self, item: str) -> int:
        value: int = super().__getitem__(item)  # type: ignore[no-untyped-call]
        return 2 if item in ("XBLOCK", "YBLOCK") and value == 1 else value


def _problem_of(
    features: Any,
    tiling: Mapping[str, Any],
    scores: Mapping[str, Any],
    reads: Sequence[MemoryDep],
    writes: Sequence[Dep],
    value: Callable[[Any], int],
) -> Problem:
    """Return the problem of a kernel with these accesses. ``value`` makes a size a number."""

    def size(number: Any) -> int:
        return min(max(value(number), 1), MAX_SIZE)

    if features.is_reduction():
        variant = variant_of_reduction(features.get_reduction_hint(scores or None), scores)
        return _problem("reduction", variant, x=size(features.numel), r=size(features.reduction_numel))
    written = {write.name for write in writes}
    loads = max(len({(read.name, read.index) for read in reads if read.name not in written}), 1)
    if "y" not in tiling:
        return _problem("pointwise", "flat", x=size(features.numel), loads=loads)
    return _problem("pointwise", variant_of_tiles(scores), x=size(tiling["x"]), y=size(tiling["y"]), loads=loads)


@lru_cache(maxsize=4096)
def _problem(op: str, variant: str, *, x: int, y: int = 1, r: int = 1, loads: int = 1) -> Problem:
    """Return the problem of a generated kernel with these sizes, which Inductor's values make valid."""
    return Problem(op, NO_DTYPE, NO_LAYOUT, 16, 1, 1, 1, 1, variant=variant, x=x, y=y, r=r, loads=loads)


def variant_of_reduction(inductors: Any, scores: Mapping[str, Any]) -> str:
    """Return the variant of a reduction by Inductor's hint and scores."""
    variant = _HINTS[inductors]
    return "mixed" if variant == "default" and scores.get("r0_") else variant


def variant_of_tiles(scores: Mapping[str, Any]) -> str:
    """Return the variant of a tiled kernel by Inductor's scores."""
    x, y = (scores.get(name, 0) for name in "xy")
    return "tiled-x" if x > y else "tiled-y" if scores.get("x") == 0 else "tiled"


class _Dtypes(dict[str, torch.dtype]):
    """The types of a graph's buffers."""

    def __missing__(self, name: str) -> torch.dtype:
        found = self[name] = V.graph.get_dtype(name)
        return found


class _Context(NamedTuple):
    """All that is known about the kernels of a graph on a device, with the snapshot and the name of the device.

    ``why`` says why no table is asked about any kernel, or is empty. ``keeps_r`` says whether a reduction may keep all
    of r, and ``is_told`` whether decisions are traced or logged. ``of_form`` has the configs of a decision that do not
    change the form of a kernel, by problem, range of x, and form.
    """

    now: InductorSnapshot
    device: str
    why: str
    keeps_r: bool
    is_told: bool
    dtypes: _Dtypes
    of_form: dict[tuple[Problem, str, bool], tuple[Config, ...]]

    def record(self, decision: Decision, served: Config | None) -> None:
        """Record the decision about a kernel, and its config, or None if Inductor decides."""
        if self.is_told:
            self.now.tell_generated(decision, served)
        self.now.record_generated(decision, served)


_contexts: WeakKeyDictionary[Any, dict[torch.device, _Context | None]] = WeakKeyDictionary()
"""The context of each graph, by device. It is None if nothing is asked about the graph's kernels."""


def _context_of(graph: Any, device: torch.device) -> _Context | None:
    """Return the context of a graph, whose settings do not change, or None if nothing is asked."""
    if off_because:
        return None
    known = _contexts.get(graph) or _contexts.setdefault(graph, {})
    if device not in known:
        known[device] = _context(device)
    return known[device]


def _context(device: torch.device) -> _Context | None:
    if device.type != "cuda" or torch.version.hip:
        return None
    now = in_force()
    if now is None or not now.settings.generated:
        return None
    setting, why = next(filter(is_on, _DECIDING), ""), ""
    if setting:
        why = f"Inductor's setting {setting} decides"
    if now.settings.policy == "verify":
        why = "nothing verifies a config of a generated kernel"
    is_told = bool(trace_log.handlers) or log.isEnabledFor(logging.DEBUG)
    return _Context(now, str(device), why, is_on("triton.persistent_reductions"), is_told, _Dtypes(), {})


def _why_left(
    kernel_class: type,
    features: Any,
    nodes: Sequence[Any],
    tiling: Mapping[str, Any],
    arguments: Mapping[str, Any],
    reads: Sequence[MemoryDep],
    writes: Sequence[Dep],
    context: _Context,
) -> str:
    """Return why no table is asked about a kernel, or an empty text."""
    if kernel_class is not TritonKernel:
        return f"it is a {kernel_class.__name__}"
    decided = [name for name, value in arguments.items() if value is not None and name not in _LEFT_OPEN]
    if decided:
        return f"Inductor decides about {', '.join(sorted(decided))}"
    if context.why:
        return context.why
    for node in nodes:
        patches: dict[str, Any] = getattr(node.node, "get_config_patches", dict)()  # since torch 2.12
        if patches:
            return f"Inductor sets {', '.join(sorted(patches))} for it"
    strict = getattr(features, "strict_reduction_rblock", None)  # since torch 2.15
    order = strict() if strict is not None else None
    if order is not None:
        return "Inductor decides in which order it adds"
    is_reduction, dtypes = features.is_reduction(), context.dtypes
    known = ("x", "r0_") if is_reduction else ("x", "y")
    if any(name not in known and numel != 1 for name, numel in tiling.items()):
        return f"it has the dimensions {', '.join(sorted(name for name, numel in tiling.items() if numel != 1))}"
    if features.select_index_dtype() != torch.int32:
        return "it indexes with 64 bits"
    is_tiled, stored = "y" in tiling, [dep for dep in writes if isinstance(dep, MemoryDep)]
    if (is_tiled or is_reduction) and any(dep.mode == "atomic_add" for dep in stored):
        return ADDS
    if is_tiled and any(dtypes[dep.name] in _LEAST_FP8 for dep in writes):
        return WRITES_FLOAT8
    if any(dtypes[dep.name] == torch.float64 for dep in (*reads, *stored)):
        return HAS_FLOAT64
    return ""


def _range_of_x(features: Any, tiling: Mapping[str, Any], env: ShapeEnv) -> tuple[Axis | None, str]:
    """Return the range of a kernel's x, or why no table is asked about a kernel whose sizes may change."""
    if "y" in tiling or not is_plain([features.reduction_numel]):
        return None, OTHERS_CHANGE
    numel = env.simplify(features.numel)
    if lacks_a_range(env, [numel]):
        return None, NO_RANGE
    return axis_of(("x",), numel, env), ""


def _configs_of_form(decision: Decision, features: Any, nodes: Sequence[Any], context: _Context) -> tuple[Config, ...]:
    """Return the configs of a decision that do not change whether a kernel with several reductions keeps r.

    A loop would read the input of such a kernel again for each reduction, so Inductor decides.
    """
    configs = decision.configs
    if not configs or len(nodes) < 2 or decision.problem.op != "reduction":
        return configs
    if sum(isinstance(getattr(node.node, "data", None), Reduction) for node in nodes) < 2:
        return configs
    keeps = bool(V.choices.should_use_persistent_reduction(features, False))
    key = decision.problem, decision.over, keeps
    found = context.of_form.get(key)
    if found is None:
        found = tuple(config for config in configs if KEEPS_R.get(config.template, keeps) == keeps)
        context.of_form[key] = found
    return found


class _Fixed(NamedTuple):
    """A config as arguments of Inductor's kernel, which only reads them, and a block's elements and threads.

    ``fits`` says whether the block has room in any kernel.
    """

    arguments: Mapping[str, Any]
    elements: int = 0
    threads: int = 0
    fits: bool = True


def _fixed(config: Config, decision: Decision, nodes: Sequence[Any], context: _Context) -> _Fixed | None:
    """Return a config as Inductor takes it, or None if it cannot run. Warn if the config is the user's."""
    problem, allowed = decision.problem, context.keeps_r or not KEEPS_R.get(config.template, False)
    try:
        if not allowed:
            raise CannotRun("Inductor's setting triton.persistent_reductions is off")
        found = _fixed_for(config, problem.op, problem.variant, problem.r, decision.hardware.arch)
        if not found.fits:
            _require_room(found.elements, found.threads, nodes, context)
    except CannotRun as reason:
        skip(decision, config, str(reason))
        return None
    return found


@lru_cache(maxsize=4096)
def _fixed_for(config: Config, op: str, variant: str, r: int, arch: str) -> _Fixed:
    """Return a config as Inductor takes it for kernels alike, or raise CannotRun."""
    if config == DEFAULT:
        return _Fixed({})
    known = architecture(arch)
    if op not in config.kernel.ops:
        raise CannotRun(f"{config.template} is not for {op}")
    for complaint in config.kernel.faults_on(_problem(op, variant, x=1, r=r), config.params, known):
        raise CannotRun(complaint.reason)
    names, tunables = KWARGS[config.template], config.kernel.values(config.params)
    values = {names[name]: value for name, value in tunables.items() if value}
    r = next_power_of_2(r)
    if "R0_BLOCK" in values:
        values["R0_BLOCK"] = min(values["R0_BLOCK"], r)
    if op == "pointwise" and ("YBLOCK" in values) == (variant == "flat"):
        raise CannotRun(f"block_y: a kernel that is {variant} has {'no' if 'YBLOCK' in values else 'a'} y")
    keeps_r = KEEPS_R.get(config.template)
    elements = math.prod(value for name, value in values.items() if name.endswith("BLOCK")) * (r if keeps_r else 1)
    threads = values["num_warps"] * known.warp_size
    persistent = {} if keeps_r is None else {"override_persistent_reduction": keeps_r}
    fits = _MOST_FP8 * threads <= elements and _in_memory(elements, torch.complex128.itemsize) <= _LEAST_MEMORY
    return _Fixed({"fixed_config": _AtLeastTwo(values), **persistent}, elements, threads, fits)


def _require_room(elements: int, threads: int, nodes: Sequence[Any], context: _Context) -> None:
    """Raise CannotRun if a block has too few elements for conversions of float8, or too many for shared memory."""
    if elements < _MOST_FP8 * threads:
        bodies = [node._body for node in nodes if node._body.op_counts["to_dtype"]]
        conversions = [step for body in bodies for step in body.get_nodes() if step.target == "to_dtype"]
        types = [each for step in conversions for each in (*step.args, *step.kwargs.values())]
        least = max((_LEAST_FP8.get(each, 0) for each in types if isinstance(each, torch.dtype)), default=0)
        if elements < least * threads:
            raise CannotRun(f"num_warps: a thread that converts float8 needs {least} elements")
    names = {each.name for node in nodes for each in node.read_writes.reads_and_writes()}
    needed = _in_memory(elements, max((context.dtypes[name].itemsize for name in names), default=4))
    if needed > _LEAST_MEMORY:
        memory = shared_memory_of(torch.device(context.device))
        if needed > memory:
            raise CannotRun(f"its block may take {needed} bytes of shared memory (allowed: {memory})")


def _in_memory(elements: int, itemsize: int) -> int:
    """Return the bytes of shared memory through which threads exchange a block, with gaps between rows."""
    return elements * max(itemsize, 4) * 5 // 4
