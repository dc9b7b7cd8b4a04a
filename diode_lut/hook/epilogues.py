"""Matmuls whose results are concatenated: a kernel writes into the whole, as the library does, and nothing is copied.

Inductor lets an op write its result into a part of a concatenation where the layout of the result is still open, which
that of a Triton template never is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.dependencies import MemoryDep
from torch._inductor.ir import (
    ChoiceCaller,
    FixedLayout,
    FlexibleLayout,
    Layout,
    MultiTemplateBuffer,
    NonOwningLayout,
    TensorBox,
)
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.scheduler import (
    BaseSchedulerNode,
    ExternKernelSchedulerNode,
    FusionResult,
    NopKernelSchedulerNode,
    Scheduler,
)
from torch._inductor.select_algorithm import TritonTemplateCaller
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from diode_lut.decide.dynamic import Axis, Piece
from diode_lut.decide.selector import Decision
from diode_lut.errors import let_pass
from diode_lut.hook.answer import (
    Branches,
    Build,
    CannotRun,
    branches,
    can_branch,
    generate_branches,
    runnable,
    with_a_layout,
)
from diode_lut.hook.choices import build_choice
from diode_lut.hook.problems import (
    asked_about,
    axes,
    config_of,
    epilogue_of,
    has_aligned_rows,
    moves_single_elements,
    problem_of,
)
from diode_lut.hook.snapshot import snapshot
from diode_lut.hook.switch import leave
from diode_lut.problem import EPILOGUES, NO_EPILOGUE, ROW_BYTES, Problem
from diode_lut.process import warn_once
from diode_lut.templates.config import ATEN, Config


def is_concatenated(node: torch.fx.Node | None) -> bool:
    """Whether the result of this node of Inductor's graph is a part of a concatenation, and nothing else returns it.

    A view that the graph returns would share its memory with the concatenation, which somebody may change.
    """
    joined = node is not None and any(user.target is torch.ops.aten.cat.default for user in node.users)
    return joined and not _is_returned(node)


def _is_returned(node: torch.fx.Node | None) -> bool:
    """Whether the graph returns the node's result, or a view of it."""
    seen: set[torch.fx.Node] = set()
    left = [] if node is None else [node]
    while left:
        for user in left.pop().users:
            if user.op == "output":
                return True
            if _is_view(user.target) and user not in seen:
                seen.add(user)
                left.append(user)
    return False


def _is_view(target: Any) -> bool:
    return target in _VIEWS or (isinstance(target, torch._ops.OpOverload) and target.is_view)


_VIEWS = (getitem, torch.ops.aten._unsafe_view.default, torch.ops.aten.reshape.default)
"""What Inductor makes a view of, besides the ops whose schemas say so."""


def opened(layout: Layout) -> FlexibleLayout:
    """A layout of the same sizes, with strides that Inductor may still decide on."""
    return FlexibleLayout(layout.device, layout.dtype, layout.size)


def fixed(layout: Layout) -> FixedLayout:
    """The layout, also that of a part of a larger tensor, with offsets from where the part begins."""
    return FixedLayout(layout.device, layout.dtype, layout.size, layout.stride, layout.offset)


def is_written_in_rows(layout: Layout) -> bool:
    """Whether each row of a result is without gaps, and begins at a multiple of 16 bytes, as measured results do."""
    view = layout.view.get_layout() if isinstance(layout, NonOwningLayout) else layout
    *steps, last = view.stride
    return bool(last == 1) and all(
        V.graph.sizevars.statically_known_multiple_of(elements * view.dtype.itemsize, ROW_BYTES)
        for elements in (view.offset, *steps)
    )


NOTHING = "no pointwise work follows, but another op or nothing"
UNKNOWN = "no row and no model knows the epilogue"
SLOWER = "a second kernel for the epilogue is faster"
ROWS = "rows are not aligned, and the epilogue reads other tensors or writes padded rows"
LAYOUT = "a layout is not the one that the kernel is for"
ELSEWHERE = "the epilogue is fused into another matmul"
REDUCES = "the epilogue reduces"
MUTATES = "the epilogue writes into a tensor that is there already"
ORDER = "the epilogue reads the result in another order, or a part of it"
OTHER_KERNEL = "another matmul follows, or another op with a kernel of its own"
INDUCTOR = "Inductor does not fuse what follows"

_BY_PRIORITY = (ELSEWHERE, REDUCES, MUTATES, ORDER, INDUCTOR, OTHER_KERNEL)
"""Which reason is given where several nodes read the result and each has a reason of its own."""


def why_unfused(scheduler: Scheduler, matmul: BaseSchedulerNode) -> str:
    """Why the scheduler has not even asked whether to fuse something behind a matmul."""
    found = {_why_not(scheduler, matmul, reader) for reader in _readers(matmul)}
    return next((reason for reason in _BY_PRIORITY if reason in found), NOTHING)


def _readers(node: BaseSchedulerNode) -> Iterator[BaseSchedulerNode]:
    for buffer in node.get_outputs():
        for user in buffer.users:
            if isinstance(user.node, BaseSchedulerNode) and not user.is_weak:
                yield user.node


def _why_not(scheduler: Scheduler, matmul: BaseSchedulerNode, reader: BaseSchedulerNode) -> str:
    if isinstance(reader, NopKernelSchedulerNode):
        return NOTHING  # a concatenation that the matmul has written already
    if reader.is_template() or isinstance(reader, ExternKernelSchedulerNode):
        return OTHER_KERNEL
    fused = scheduler.name_to_fused_node[reader.get_name()]
    if fused.is_template():
        return ELSEWHERE
    if fused.is_reduction():
        return REDUCES
    if reader.has_aliasing_or_mutation():
        return MUTATES
    return INDUCTOR if shared(matmul, reader) else ORDER


def shared(node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> set[MemoryDep]:
    """What one node writes and the other reads, behind views too.

    Torch 2.11 does not see that: indices with another number of variables are different ones to it.
    """
    writes, reads = node1.read_writes.writes, node2.read_writes.reads
    return {dep.normalize() for dep in writes if isinstance(dep, MemoryDep)} & {
        dep.normalize() for dep in reads if isinstance(dep, MemoryDep)
    }


class Alternative(NamedTuple):
    """What a class of epilogue gets: the decision, the config that can run, and the kernel; None if none is fused.

    ``branches`` are the kernels for parts of a dynamic size's range that run instead; ``pieces`` what is decided there.
    """

    decision: Decision
    config: Config
    kernel: TritonTemplateCaller | None
    branches: Branches | None = None
    pieces: tuple[Piece, ...] = ()


class Alternatives:
    """What a matmul gets instead, per class of epilogue; a kernel is made when the scheduler asks about its class.

    ``problem`` is the matmul alone, ``branches`` are its own kernels for parts of a dynamic size's range. Inputs whose
    layouts are not decided yet are in ``assumed``, with the layouts that kernels take them to have. The library takes
    any layout, so it is not for a kernel that may never run to decide on them.
    """

    def __init__(
        self,
        problem: Problem,
        answers: dict[str, Decision],
        make: Callable[[Decision], Alternative | None],
        assumed: list[tuple[Any, Layout]],
        branches: Branches | None,
    ) -> None:
        self.problem, self.assumed, self.branches = problem, assumed, branches
        self._answers, self._make = answers, make
        self._made: dict[str, Alternative | None] = {}

    def of_class(self, name: str) -> Alternative | None:
        """That of a class of epilogues, or None where no config of an answer for it can run."""
        if name not in self._made:
            answer = self._answers.get(name)
            with as_in_lowering():
                self._made[name] = None if answer is None else self._make(answer)
        return self._made[name]


@contextmanager
def as_in_lowering() -> Iterator[None]:
    """No scheduler in the graph: where there is one, a template being made asks it about a buffer that is not there."""
    graph: Any = V.graph
    scheduler, graph.scheduler = graph.scheduler, None
    try:
        yield
    finally:
        graph.scheduler = scheduler


def alternative_of(decision: Decision, build: Build) -> Alternative | None:
    """That of the first config that can run, or None; ``build`` makes its choice."""
    config, choice = next(runnable(decision, build), (None, None))
    if config is None:
        return None
    return Alternative(decision, config, choice if isinstance(choice, TritonTemplateCaller) else None)


def in_branches(
    alternative: Alternative, changing: tuple[Axis, ...], inputs: MMKernelInputs, build: Build
) -> Alternative:
    """The alternative with several kernels, each with the epilogue, where that is better than one."""
    pieces = snapshot().pieces(alternative.decision.problem, inputs.device(), changing, library=False)
    with suppress(CannotRun):
        found = branches(pieces, changing[0], inputs, build) if pieces else None
        if found is not None:
            return alternative._replace(kernel=found.triton[0], branches=found, pieces=pieces)
    return alternative


_CLASSES = tuple(name for name in EPILOGUES if name != NO_EPILOGUE)


def with_epilogues(
    plain: ChoiceCaller,
    aten: ChoiceCaller,
    problem: Problem,
    op: str,
    inputs: MMKernelInputs,
    own_branches: Branches | None = None,
    *,
    alone: bool = False,
    concatenated: bool = False,
) -> ChoiceCaller:
    """The choice that leaves the kernel to the scheduler; ``plain``, if that is as good with any epilogue.

    ``plain`` is what the matmul gets alone: ``aten``, the library's choice, or a Triton kernel; ``own_branches`` are
    the kernels for parts of a dynamic size's range that run instead. ``op`` is Inductor's, and not the problem's where
    a bias is an epilogue. ``alone`` says that no other epilogue can follow, ``concatenated`` that the result is a part
    of a concatenation. Where layouts of inputs are not decided yet, rows are asked about those that are likely, and not
    about those of ``problem``.
    """
    assumed: list[tuple[Any, Layout]] = []
    nodes = [with_a_layout(node, assumed) for node in inputs.nodes()]
    with_layouts = MMKernelInputs(nodes, scalars=inputs._scalars, out_dtype=inputs._out_dtype)
    likely = problem_of(with_layouts, op) if assumed else None
    problem = problem if likely is None else asked_about(likely, with_layouts)
    layout = copy.copy(plain.layout).as_fixed()
    build = partial(build_choice, inputs=with_layouts, op=op)
    own = config_of(plain)
    device, changing = plain.layout.device, axes(inputs, op)
    consider = partial(snapshot().consider, device=device, padding=False, axes=changing)
    considered = {} if alone else {name: consider(problem._replace(epilogue=name)) for name in _CLASSES}
    answers = {name: decision for name, decision in considered.items() if decision.configs}
    may_branch = bool(changing) and can_branch()
    as_good = own == ATEN or alone or has_aligned_rows(layout)
    as_good = as_good and all(decision.configs[0] == own for decision in answers.values())
    remake = partial(_remade, build, own) if concatenated and not changing and own not in (None, ATEN) else None
    if not may_branch and own_branches is None and as_good and remake is None:
        if own == ATEN and not alone:
            snapshot().record_unfused(problem, device, SLOWER if len(answers) == len(_CLASSES) else UNKNOWN)
        return plain

    def make(config: Config) -> ChoiceCaller:
        return plain if config == own else aten if config == ATEN else build(config, layout=layout)

    def alternative(decision: Decision) -> Alternative | None:
        found = alternative_of(decision, make)
        return in_branches(found, changing, with_layouts, make) if may_branch and found is not None else found

    return _Deferred(plain, aten, Alternatives(problem, answers, alternative, assumed, own_branches), remake)


def _remade(build: Callable[..., ChoiceCaller], config: Config, layout: FixedLayout) -> ChoiceCaller:
    with as_in_lowering():
        return build(config, layout=layout)


_Remake = Callable[[FixedLayout], ChoiceCaller]
"""Makes a matmul's own kernel for a result of another layout; CannotRun if there can be none."""


class _Deferred(ChoiceCaller):
    """The one choice that Inductor gets, which it does not compare with anything."""

    def __init__(
        self, plain: ChoiceCaller, aten: ChoiceCaller, alternatives: Alternatives, remake: _Remake | None
    ) -> None:
        super().__init__(plain.name, plain.input_nodes, plain.layout, plain.description)
        self.annotations = plain.annotations
        self._parts = plain, aten, alternatives, remake

    def output_node(self) -> TensorBox:
        return TensorBox.create(_Buffer(*self._parts))


class _Buffer(MultiTemplateBuffer):
    """The result of a matmul whose kernel is not chosen yet.

    Its layout is that of the choice for the matmul alone, so that later ops can still decide on it where that choice
    lets them, and open to a concatenation where its kernel can be made again. A kernel that writes or reads other
    layouts than there are in the end is not taken.
    """

    def __init__(
        self, plain: ChoiceCaller, aten: ChoiceCaller, alternatives: Alternatives, remake: _Remake | None
    ) -> None:
        own = plain if isinstance(plain, TritonTemplateCaller) else None
        times: dict[ChoiceCaller, float] = {aten: 1.0} | {plain: 0.0}
        layout = plain.layout if remake is None else opened(plain.layout)
        super().__init__(layout, plain.input_nodes, lambda *_: times, list(times), OrderedSet())
        self._own = own
        self._times, self._aten, self._remake = times, aten, remake
        self._snapshot = snapshot()
        self._alternatives = alternatives
        self._fused: str | None = None
        self._refused: dict[str, str] = {}
        self.branches = alternatives.branches

    def decide_layout(self) -> None:
        """As it is decided for the library's kernels."""
        if isinstance(self.layout, FlexibleLayout):
            self.freeze_layout()

    def freeze_layout(self) -> None:
        """The own kernel's layout, if it has one and no concatenation took the result: that one is not padded."""
        if self._remake is not None and self._own is not None and isinstance(self.layout, FlexibleLayout):
            self.layout = copy.copy(self._own.layout)
        else:
            super().freeze_layout()

    def fuses(self, followers: Sequence[BaseSchedulerNode]) -> bool:
        """Whether to fuse all of ``followers``; if so, the kernel for that is taken."""
        name = epilogue_of(self, followers, self._alternatives.problem.epilogue)
        if moves_single_elements(self, followers):
            self._refused[name] = ROWS
            return False
        alternative = self._alternatives.of_class(name)
        kernel = self._own if alternative is None else alternative.kernel
        if alternative is None and self.branches is not None and not self.branches.all_triton:
            kernel = None  # aten is for a part of the range, and fuses nothing
        if kernel is None or not self._has_layouts_of(kernel):
            self._refused[name] = LAYOUT if kernel is not None else UNKNOWN if alternative is None else SLOWER
            return False
        self.finalize_as_triton_caller(kernel)
        self.branches = self.branches if alternative is None else alternative.branches
        self._fused = name
        return True

    def adapt(self) -> None:
        """Take the own kernel made again for a part of a concatenation; the library's where there can be none."""
        layout = self.get_layout()
        if self._remake is None or self._fused is not None or self._own is None or _same(layout, self._own.layout):
            return
        kernel = self._aten
        try:
            with suppress(CannotRun):
                kernel = self._remake(fixed(layout)) if is_written_in_rows(layout) else kernel
        except Exception as error:
            leave("a part of a concatenation", error)
        self._times.clear()
        self._times[kernel] = 0.0

    def record(self, scheduler: Scheduler, node: BaseSchedulerNode) -> None:
        """Record what is fused behind it, or why nothing is; ``node`` is the one that has it in the end."""
        of_class, problem, device = self._alternatives.of_class, self._alternatives.problem, self.get_device_or_error()
        if self._fused is not None:
            for decision, config in _decided(of_class(self._fused)):
                self._snapshot.record_fusion(decision, config)
            return
        for name, reason in self._refused.items():
            self._snapshot.record_unfused(problem._replace(epilogue=name), device, reason)
            for decision, _ in _decided(of_class(name)) if reason == SLOWER else ():
                self._snapshot.record_fusion(decision, ATEN)
        if not self._refused:
            self._snapshot.record_unfused(problem, device, why_unfused(scheduler, node))

    def _has_layouts_of(self, kernel: TritonTemplateCaller) -> bool:
        return _same(self.get_layout(), kernel.layout) and all(
            _same(node.get_layout(), layout) for node, layout in self._alternatives.assumed
        )


def _decided(alternative: Alternative | None) -> list[tuple[Decision, Config]]:
    if alternative is None:
        return []
    pieces = [(piece.decision, piece.config) for piece in alternative.pieces]
    return pieces or [(alternative.decision, alternative.config)]


def _same(one: Layout, other: Layout) -> bool:
    return one.size == other.size and one.stride == other.stride and one.offset == other.offset


def can_realize_into_without_copy(original: Callable[..., bool], cls: type, src: Any, dst: Any = None) -> bool:
    """Have concatenations written by our buffers, as by the library's, while their layouts are open."""
    buffer = getattr(src, "data", None)
    if isinstance(buffer, _Buffer):
        return isinstance(buffer.layout, FlexibleLayout)
    return original(cls, src, dst)


def speedup_by_fusion(
    speedup: Callable[..., FusionResult], scheduler: Scheduler, node1: BaseSchedulerNode, node2: BaseSchedulerNode
) -> FusionResult:
    """Decide about fusion with our buffers."""
    try:
        ours = _fuses(node1, node2)
    except Exception as error:
        leave("an epilogue", error)
        ours = False
    return speedup(scheduler, node1, node2) if ours is None else FusionResult.fuse(ours)


def score_fusion_memory(
    score: Callable[..., Any],
    scheduler: Scheduler,
    node1: BaseSchedulerNode,
    node2: BaseSchedulerNode,
    *arguments: Any,
    **named: Any,
) -> Any:
    """Return the data that two nodes share, also if one reads a result of ours through a view."""
    found = score(scheduler, node1, node2, *arguments, **named)
    if found in (0, (0, False)) and isinstance(node1.get_template_node(), _Buffer):
        seen = sum(scheduler.dep_size_hint(dep) for dep in shared(node1, node2))
        return (seen, False) if isinstance(found, tuple) else seen
    return found


def finalize_multi_template_buffers(finalize: Callable[[Scheduler], None], scheduler: Scheduler) -> None:
    """Settle the kernels of our buffers once fusion is over, and record what is fused."""
    try:
        for node in scheduler.nodes:
            buffer = node.get_template_node()
            if isinstance(buffer, _Buffer):
                buffer.adapt()
                buffer.record(scheduler, node)
    except Exception as error:
        let_pass(error)
        warn_once(f"what is fused behind matmuls is not recorded: {error!r}")
    finalize(scheduler)


def codegen_template(
    generate: Callable[..., Any],
    scheduling: SIMDScheduling,
    template_node: Any,
    epilogue_nodes: Any,
    prologue_nodes: Any,
    **options: Any,
) -> Any:
    """Generate the branches of our buffers that have some."""
    buffer = template_node.node
    found = buffer.branches if isinstance(buffer, _Buffer) else None
    alone = found is None or (epilogue_nodes and not found.all_triton)
    if alone or prologue_nodes or options.get("only_gen_src_code"):
        return generate(scheduling, template_node, epilogue_nodes, prologue_nodes, **options)
    assert found is not None
    lines: list[Any] = V.graph.wrapper_code.lines
    written = len(lines)
    try:
        return generate_branches(scheduling, template_node, epilogue_nodes, found)
    except Exception as error:
        leave("a matmul with a dynamic size", error)
        del lines[written:]
        return generate(scheduling, template_node, epilogue_nodes, prologue_nodes, **options)


def _fuses(node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool | None:
    """Whether to fuse a matmul of ours with what comes before or behind it; None if neither node is one."""
    buffer = next((node.get_template_node() for node in (node1, node2) if node.is_template()), None)
    if not isinstance(buffer, _Buffer):
        return None
    if node2.is_template() or node2.is_foreach() or node2.is_reduction():
        return False
    followers = [node for node in (*node1.get_nodes(), *node2.get_nodes()) if node.node is not buffer]
    writes = (dep for node in followers for dep in node.read_writes.writes)
    if any(isinstance(dep, MemoryDep) and dep.mode == "atomic_add" for dep in writes):
        return False
    return buffer.fuses(followers)
