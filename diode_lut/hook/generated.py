"""Generated kernels: Inductor asks its handler for the arguments of each, and gets one config of the tables.

Inductor generates code for a fixed config, and benchmarks nothing at the first launch. The config's template also
decides whether a reduction loops over r or keeps all of it. If Inductor or a setting of the user's decides about a
kernel, the kernel is left to Inductor, and the reason is recorded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch._inductor.codegen.triton import FixedTritonConfig, TritonKernel
from torch._inductor.dependencies import MemoryDep, ReadWrites
from torch._inductor.ir import Reduction
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.runtime.runtime_utils import next_power_of_2
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from diode_lut.decide.decide import Axis
from diode_lut.decide.sources import Decision
from diode_lut.hardware import architecture
from diode_lut.hook.choices import in_force, is_on, shared_memory_of
from diode_lut.hook.problems import NO_RANGE, axis_of, hint, is_plain, lacks_a_range
from diode_lut.hook.snapshot import CannotRun, InductorSnapshot, skip
from diode_lut.hook.switch import off_because
from diode_lut.hook.versions import KEEPS_R, KWARGS
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


def fixed_arguments(
    kernel_class: type, features: Any, tiling: Mapping[str, Any], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return more arguments for a kernel with the sizes ``tiling``: the config of a table or model, or nothing."""
    graph = V.graph
    context = _context_of(graph, graph.get_current_device_or_throw())
    if context is None:
        return {}
    now, name = context.now, context.device
    plain = is_plain((features.numel, features.reduction_numel, *tiling.values()))
    moved = [node.read_writes for node in features.scheduler_nodes()]
    problem = _problem_of(features, tiling, arguments.get("tiling_scores") or {}, moved, int if plain else hint)
    why, over = _why_left(kernel_class, features, tiling, arguments, moved, context), None
    if not (why or plain):
        over, why = _range_of_x(features, tiling, graph.sizevars.shape_env)
    if not why:
        decision = now.decide_kernel(problem, name, over)
        why = NOT_FOR_ALL if over is not None and not decision.configs else ""
    if why:
        now.record_generated_left(problem, name, why)
        return {}
    form = _form_of(features) if decision.configs else None
    for config in decision.configs:
        changes_form = form is not None and KEEPS_R.get(config.template, form) != form
        if changes_form:
            continue
        values = _fixed(config, decision, features, context)
        if values is not None:
            now.record_generated(decision, config)
            keeps_r = KEEPS_R.get(config.template)
            persistent = {} if keeps_r is None else {"override_persistent_reduction": keeps_r}
            return {"fixed_config": _AtLeastTwo({**values}), **persistent} if values else {}
    now.record_generated(decision, None)
    return {}


def parts_of(device: torch.device, r: Any, x: Any, *, inner: bool) -> int | None:
    """Return into how many parts to split a reduction. If Inductor decides, return None, and record nothing.

    ``x`` and ``r`` are hints, so Inductor decides if any size of the graph may change. It asks about scans too, and
    decides about these itself.
    """
    graph = V.graph
    context = _context_of(graph, device)
    if context is None or context.setting or context.now.settings.policy == "verify":
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
            now.record_generated(decision, config)
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
    moved: Sequence[ReadWrites],
    value: Callable[[Any], int],
) -> Problem:
    """Return the problem of a kernel, of whose parts each has a place in ``moved``. ``value`` makes a size a number."""

    def size(number: Any) -> int:
        return min(max(value(number), 1), MAX_SIZE)

    if features.is_reduction():
        variant = variant_of_reduction(features.get_reduction_hint(scores or None), scores)
        return _problem("reduction", variant, x=size(features.numel), r=size(features.reduction_numel))
    written = {write.name for each in moved for write in each.writes}
    reads = {
        (read.name, read.index)
        for each in moved
        for read in each.reads
        if isinstance(read, MemoryDep) and read.name not in written
    }
    loads = max(len(reads), 1)
    if "y" not in tiling:
        return _problem("pointwise", "flat", x=size(features.numel), loads=loads)
    return _problem("pointwise", variant_of_tiles(scores), x=size(tiling["x"]), y=size(tiling["y"]), loads=loads)


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


class _Context(NamedTuple):
    """The snapshot for a graph's kernels, the name of the device, and Inductor's settings.

    ``setting`` is the one that decides, or empty. ``keeps_r`` says whether a reduction may keep all of r.
    """

    now: InductorSnapshot
    device: str
    setting: str
    keeps_r: bool


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
    setting = next(filter(is_on, _DECIDING), "")
    return _Context(now, str(device), setting, is_on("triton.persistent_reductions"))


def _why_left(
    kernel_class: type,
    features: Any,
    tiling: Mapping[str, Any],
    arguments: Mapping[str, Any],
    moved: Sequence[ReadWrites],
    context: _Context,
) -> str:
    """Return why no table is asked about a kernel, or an empty text."""
    if kernel_class is not TritonKernel:
        return f"it is a {kernel_class.__name__}"
    if context.now.settings.policy == "verify":
        return "nothing verifies a config of a generated kernel"
    decided = [name for name, value in arguments.items() if value is not None and name not in _LEFT_OPEN]
    if decided:
        return f"Inductor decides about {', '.join(sorted(decided))}"
    if context.setting:
        return f"Inductor's setting {context.setting} decides"
    for node in features.scheduler_nodes():
        patches: dict[str, Any] = getattr(node.node, "get_config_patches", dict)()  # since torch 2.12
        if patches:
            return f"Inductor sets {', '.join(sorted(patches))} for it"
    if getattr(features, "strict_reduction_rblock", lambda: None)() is not None:  # since torch 2.15
        return "Inductor decides in which order it adds"
    others = tiling.keys() - ({"x", "r0_"} if features.is_reduction() else {"x", "y"})
    if any(tiling[name] != 1 for name in others):
        return f"it has the dimensions {', '.join(sorted(name for name, numel in tiling.items() if numel != 1))}"
    if features.select_index_dtype() != torch.int32:
        return "it indexes with 64 bits"
    written = [dep for each in moved for dep in each.writes]
    is_flat = "y" not in tiling and not features.is_reduction()
    if not is_flat and any(isinstance(dep, MemoryDep) and dep.mode == "atomic_add" for dep in written):
        return ADDS
    if "y" in tiling and any(V.graph.get_dtype(dep.name) in _LEAST_FP8 for dep in written):
        return WRITES_FLOAT8
    names = {dep.name for each in moved for dep in each.reads_and_writes() if isinstance(dep, MemoryDep)}
    if torch.float64 in map(V.graph.get_dtype, names):
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


def _form_of(features: Any) -> bool | None:
    """Return whether Inductor keeps r in a kernel with several reductions, or None if the kernel may have any form.

    A loop would read the input of such a kernel again for each reduction.
    """
    nodes = features.scheduler_nodes()
    if len(nodes) < 2 or sum(isinstance(getattr(node.node, "data", None), Reduction) for node in nodes) < 2:
        return None
    return bool(V.choices.should_use_persistent_reduction(features, False))


def _fixed(config: Config, decision: Decision, features: Any, context: _Context) -> dict[str, int] | None:
    """Return the values of a config by Inductor's names, or None if it cannot run. Warn if the config is the user's."""
    if config == DEFAULT:
        return {}
    problem, allowed = decision.problem, context.keeps_r or not KEEPS_R.get(config.template, False)
    try:
        if not allowed:
            raise CannotRun("Inductor's setting triton.persistent_reductions is off")
        values, elements, threads = _values(config, problem.op, problem.variant, problem.r, decision.hardware.arch)
        _require_room(elements, threads, features, context.device)
    except CannotRun as reason:
        skip(decision, config, str(reason))
        return None
    return values


@lru_cache(maxsize=4096)
def _values(config: Config, op: str, variant: str, r: int, arch: str) -> tuple[dict[str, int], int, int]:
    """Return the values of a config by Inductor's names, and a block's elements and threads, or raise CannotRun."""
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
    elements = math.prod(value for name, value in values.items() if name.endswith("BLOCK"))
    elements *= r if KEEPS_R.get(config.template, False) else 1
    return values, elements, values["num_warps"] * known.warp_size


def _require_room(elements: int, threads: int, features: Any, device: str) -> None:
    """Raise CannotRun if a block has too few elements for conversions of float8, or too many for shared memory."""
    nodes = features.scheduler_nodes()
    if elements < max(_LEAST_FP8.values()) * threads:
        bodies = [node._body for node in nodes if node._body.op_counts["to_dtype"]]
        conversions = [step for body in bodies for step in body.get_nodes() if step.target == "to_dtype"]
        types = [each for step in conversions for each in (*step.args, *step.kwargs.values())]
        least = max((_LEAST_FP8.get(each, 0) for each in types if isinstance(each, torch.dtype)), default=0)
        if elements < least * threads:
            raise CannotRun(f"num_warps: a thread that converts float8 needs {least} elements")
    if _in_memory(elements, torch.complex128.itemsize) <= _LEAST_MEMORY:
        return
    names = {each.name for node in nodes for each in node.read_writes.reads_and_writes()}
    needed = _in_memory(elements, max((V.graph.get_dtype(name).itemsize for name in names), default=4))
    if needed > _LEAST_MEMORY:
        memory = shared_memory_of(torch.device(device))
        if needed > memory:
            raise CannotRun(f"its block may take {needed} bytes of shared memory (allowed: {memory})")


def _in_memory(elements: int, itemsize: int) -> int:
    """Return the bytes of shared memory through which threads exchange a block, with gaps between rows."""
    return elements * max(itemsize, 4) * 5 // 4
