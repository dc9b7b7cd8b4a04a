"""Choose a matmul's kernel by its epilogue, the pointwise work fused into it.

The handler gives Inductor a single choice, Deferred, which becomes a _Buffer. The scheduler asks the buffer whether to
fuse, and the buffer takes the kernel for this class of epilogue. If nothing is fused, the matmul runs its stand-alone
kernel. If the result is a part of a concatenation, a kernel writes it into the whole, as the library does, without a
copy.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import getitem
from typing import Any, NamedTuple, cast

import torch
from torch._inductor import ir
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.codegen.triton import IndexingOptions
from torch._inductor.dependencies import MemoryDep
from torch._inductor.scheduler import (
    BaseSchedulerNode,
    ExternKernelSchedulerNode,
    FusionResult,
    NopKernelSchedulerNode,
    Scheduler,
)
from torch._inductor.select_algorithm import TritonTemplateCaller
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._ordered_set import OrderedSet

from diode_lut.decide.decide import Piece
from diode_lut.decide.sources import Decision
from diode_lut.errors import let_pass
from diode_lut.hook.choices import in_force
from diode_lut.hook.snapshot import snapshot
from diode_lut.hook.switch import leave
from diode_lut.hook.wrapper import Branches, generate_branches
from diode_lut.log import warn_once
from diode_lut.problem import NO_EPILOGUE, ROW_BYTES, Problem
from diode_lut.templates.config import ATEN, Config

_LIKE_VIEWS = (torch.ops.aten._unsafe_view.default, torch.ops.aten.reshape.default)
"""Ops that are views, although their schemas do not say so."""


def _is_view(node: Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and (target.is_view or target in _LIKE_VIEWS)


def _is_pointwise(node: Node) -> bool:
    target, convert = node.target, torch.ops.prims.convert_element_type.default
    return isinstance(target, torch._ops.OpOverload) and (torch.Tag.pointwise in target.tags or target is convert)


def _readers(node: Node, passes: Callable[[Node], bool]) -> Iterator[Node]:
    """Yield all nodes that read a node, and the readers of those that ``passes`` accepts."""
    waiting, seen = [node], set[Node]()
    while waiting:
        new = [user for user in waiting.pop().users if user not in seen]
        seen.update(new)
        yield from new
        waiting += filter(passes, new)


def may_be_followed(node: Node | None) -> bool:
    """Return whether pointwise work follows this node of Inductor's graph, directly or after views."""
    return node is not None and any(map(_is_pointwise, _readers(node, _is_view)))


def epilogue_ahead(node: Node) -> str | None:
    """Return the likely class of the epilogue of this node, or None if its result is also read by other work.

    Nothing is assumed about sizes that may change.
    """
    size, known = node.meta["val"].numel(), statically_known_true

    def is_like(user: Node) -> bool:
        value, is_elementwise = user.meta.get("val"), _is_view(user) or _is_pointwise(user)
        return is_elementwise and isinstance(value, torch.Tensor) and known(value.numel() == size)

    waiting, inside = [node], {node}
    while waiting:
        current = waiting.pop()
        if all(map(is_like, current.users)):
            waiting += (user for user in current.users if user not in inside)
            inside.update(current.users)
        elif current is node:
            return None
    ops = [each.target for each in inside if isinstance(each.target, torch._ops.OpOverload)]
    read = {each for user in inside - {node} for each in user.all_input_nodes} - inside
    tensors = [each for each in read if known(each.meta["val"].numel() >= size)]
    cost = len(tensors) + sum(_COSTS.get(op.overloadpacket.__name__, 0.0) for op in ops)
    if all(op.is_view or op in _LIKE_VIEWS for op in ops if op is not node.target):
        return None
    return "light" if cost == 0 else "medium" if cost <= _MAX_MEDIUM else "heavy"


def is_concatenated(node: Node | None) -> bool:
    """Return whether the result of this node of Inductor's graph is a part of a concatenation, and of nothing else.

    If the graph returned a view of it, the view would share its memory with the concatenation, which may be changed.
    """
    if node is None or all(user.target is not torch.ops.aten.cat.default for user in node.users):
        return False
    readers = _readers(node, lambda user: user.target is getitem or _is_view(user))
    return all(user.op != "output" for user in readers)


ALONE = "_diode_lut_alone"
"""An attribute that keeps a template's buffer from fusing anything: its Branches, or None for a single kernel."""

_COSTS = {
    **dict.fromkeys(("exp", "exp2", "expm1", "sigmoid", "log", "log1p", "log2", "log10", "erf", "sin", "cos"), 1.0),
    **dict.fromkeys(("tanh", "pow", "asinh", "acosh", "atanh", "sinh", "cosh", "tan", "asin", "acos", "atan"), 2.5),
    **dict.fromkeys(("erfc", "erfinv", "lgamma", "digamma", "i0", "i1", "rand", "randn", "randint64"), 4.0),
}
"""Costs of pointwise ops in a Triton kernel, in reads of a tensor of the result's size. Others cost nothing.

They come from the times of 13 epilogues of 26 GEMMs on an H200.
"""

_NORM_COST = 2.5
"""The cost of a square root, as in a batch norm, which reads four rows and divides for each element.

On an H200, linear layers of LeViT with one fused took 58 us instead of 37 in two kernels, and 29 instead of 18. After a
convolution it costs nothing, because there ``indexing`` has rows read and divided once for all elements of a column.
"""

_MAX_MEDIUM = 2.0
"""Maximum cost of an epilogue of the class ``medium``."""

_WORD_BYTES = 4
"""Rows of a multiple of this many bytes are written to padded rows as fast as others: timed with 10,922 columns."""


def epilogue_of(buffer: ir.Buffer, nodes: Sequence[BaseSchedulerNode], bias: str = NO_EPILOGUE) -> str:
    """Return the class of the epilogue that these nodes are, together, after the matmul of ``buffer``.

    ``bias`` is the class of the matmul's bias. A bias of class ``medium`` is a matrix, and counts as a tensor read.
    """
    ops: Counter[str] = Counter()
    for node in nodes:
        ops.update(node._body.op_counts)  # type: ignore[attr-defined]
    tensors = len(_tensors_read(buffer, nodes)) + (bias == "medium")
    cost = tensors + sum(_COSTS.get(op, 0.0) * count for op, count in ops.items())
    if not any(node.target is torch.ops.aten.convolution.default for node in buffer.origins):
        cost += _NORM_COST * (ops["sqrt"] + ops["rsqrt"])
    return "light" if cost == 0 else "medium" if cost <= _MAX_MEDIUM else "heavy"


def _tensors_read(buffer: ir.Buffer, nodes: Sequence[BaseSchedulerNode]) -> set[str]:
    """Return the names of other tensors that these nodes read, and that are at least as large as ``buffer``."""
    inside = {buffer.get_name(), *(name for node in nodes for name in node.get_buffer_names())}
    elements = V.graph.sizevars.optimization_hint(buffer.get_numel())
    return {
        dep.name
        for node in nodes
        for dep in node.read_writes.reads
        if dep.name not in inside and V.graph.sizevars.optimization_hint(dep.get_numel()) >= elements
    }


def moves_single_elements(buffer: ir.Buffer, nodes: Sequence[BaseSchedulerNode]) -> bool:
    """Return whether a matmul's kernel with these nodes would read other tensors, or write, element by element.

    It reads so if rows are no multiples of 16 bytes. It writes so if rows are no multiples of 4 bytes and Inductor has
    padded them: then a thread, and not a warp, has consecutive elements. On an H200, such kernels with relu took 1.3 to
    2.1 times as long as kernels with packed rows of the same length.
    """
    layout = buffer.get_layout()
    if has_aligned_rows(layout):
        return False
    written = [V.graph.get_buffer(name).get_layout() for node in nodes for name in node.get_buffer_names()]
    padded = not all(each.is_contiguous() for each in written)
    return bool(_tensors_read(buffer, nodes)) or (padded and not has_aligned_rows(layout, _WORD_BYTES))


def has_aligned_rows(layout: ir.Layout, multiple: int = ROW_BYTES) -> bool:
    """Return whether the length of a matrix's rows, in bytes, is known to be a multiple of this number."""
    row = layout.size[-1] * layout.dtype.itemsize
    return V.graph.sizevars.statically_known_multiple_of(row, multiple)


def is_written_in_rows(layout: ir.Layout) -> bool:
    """Return whether rows of a result have no gaps and begin at multiples of 16 bytes, as in measurements."""
    view = layout.view.get_layout() if isinstance(layout, ir.NonOwningLayout) else layout
    *steps, last = view.stride
    known, itemsize = V.graph.sizevars.statically_known_multiple_of, view.dtype.itemsize
    return bool(last == 1) and all(known(elements * itemsize, ROW_BYTES) for elements in (view.offset, *steps))


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
"""Reasons by priority, if several nodes read the result."""


def why_unfused(scheduler: Scheduler, matmul: BaseSchedulerNode) -> str:
    """Return why the scheduler has not asked whether to fuse something into a matmul."""
    found = set()
    for reader in (user.node for buffer in matmul.get_outputs() for user in buffer.users if not user.is_weak):
        if not isinstance(reader, BaseSchedulerNode) or isinstance(reader, NopKernelSchedulerNode):
            continue  # the end of the graph, or a concatenation that the matmul has written already
        if reader.is_template() or isinstance(reader, ExternKernelSchedulerNode):
            found.add(OTHER_KERNEL)
            continue
        fused = scheduler.name_to_fused_node[reader.get_name()]
        if fused.is_template():
            found.add(ELSEWHERE)
        elif fused.is_reduction():
            found.add(REDUCES)
        elif reader.has_aliasing_or_mutation():
            found.add(MUTATES)
        else:
            found.add(INDUCTOR if _shared(matmul, reader) else ORDER)
    return next((reason for reason in _BY_PRIORITY if reason in found), NOTHING)


def _shared(node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> set[MemoryDep]:
    """Return the data that the first node writes and the other reads, also through views.

    Torch 2.11 does not see through views: to it, indices with another number of variables are different data.
    """
    writes, reads = node1.read_writes.writes, node2.read_writes.reads
    return {dep.normalize() for dep in writes if isinstance(dep, MemoryDep)} & {
        dep.normalize() for dep in reads if isinstance(dep, MemoryDep)
    }


class Alternative(NamedTuple):
    """The decision for a class of epilogue, its config, and its kernel. The kernel is None if nothing is to be fused.

    With ``branches``, parts of a dynamic size's range have their own kernels, and ``pieces`` are the decisions on them.
    """

    decision: Decision
    config: Config
    kernel: TritonTemplateCaller | None
    branches: Branches | None = None
    pieces: tuple[Piece, ...] = ()

    @property
    def decided(self) -> list[tuple[Decision, Config]]:
        """All used decisions with their configs."""
        return [(piece.decision, piece.config) for piece in self.pieces] or [(self.decision, self.config)]


@dataclass(eq=False)
class Alternatives:
    """The kernels of a matmul by class of epilogue. A kernel is made when the scheduler asks about its class.

    ``problem`` is the matmul alone, and ``branches`` are its own kernels for parts of a dynamic size's range.
    ``assumed`` pairs each input of open layout with the layout for which kernels are made. A kernel that may never run
    must not fix that layout, because the library takes any. ``in_part`` says whether the result is part of a
    concatenation that the matmul's own kernel may write. ``make`` makes the alternative of an answer.
    """

    problem: Problem
    answers: dict[str, Decision]
    make: Callable[[Decision], Alternative | None]
    assumed: list[tuple[Any, ir.Layout]]
    branches: Branches | None
    in_part: bool
    made: dict[str, Alternative | None] = field(default_factory=dict)

    def of_class(self, name: str) -> Alternative | None:
        """Return the alternative for a class of epilogues, or None if no config of an answer for it can run."""
        answer, graph = self.answers.get(name), cast("Any", V.graph)
        if name not in self.made:
            # A new template would ask the scheduler about a buffer that it does not know
            scheduler, graph.scheduler = graph.scheduler, None
            try:
                self.made[name] = None if answer is None else self.make(answer)
            finally:
                graph.scheduler = scheduler
        return self.made[name]


class Deferred(ir.ChoiceCaller):
    """The only choice for Inductor, which then benchmarks nothing.

    ``plain`` is the matmul's stand-alone choice, and ``aten`` the library's. They may be the same.
    """

    def __init__(self, plain: ir.ChoiceCaller, aten: ir.ChoiceCaller, alternatives: Alternatives) -> None:
        super().__init__(plain.name, plain.input_nodes, plain.layout, plain.description)
        self.annotations = plain.annotations
        self._parts = plain, aten, alternatives

    def output_node(self) -> ir.TensorBox:
        """Return the result."""
        return ir.TensorBox.create(_Buffer(*self._parts))


class _Buffer(ir.MultiTemplateBuffer):
    """The result of a matmul whose kernel is not chosen yet.

    It has the layout of the stand-alone choice, which later ops may still change if it is open. It is open in a part of
    a concatenation that the choice's kernel can write. No kernel is taken that was made for layouts other than those in
    the end.
    """

    def __init__(self, plain: ir.ChoiceCaller, aten: ir.ChoiceCaller, alternatives: Alternatives) -> None:
        times: dict[ir.ChoiceCaller, float] = {aten: 1.0} | {plain: 0.0}
        layout = plain.layout
        if alternatives.in_part:  # Inductor may still decide on its strides
            layout = ir.FlexibleLayout(layout.device, layout.dtype, layout.size)
        super().__init__(layout, plain.input_nodes, lambda *_: times, list(times), OrderedSet())
        self._own = plain if isinstance(plain, TritonTemplateCaller) else None
        self._times, self._aten = times, aten
        self._snapshot = snapshot()
        self._alternatives = alternatives
        self._fused: str | None = None
        self._refused: dict[str, str] = {}
        self.branches = alternatives.branches

    def decide_layout(self) -> None:
        """Fix the layout, as Inductor does for the library's kernels."""
        if isinstance(self.layout, ir.FlexibleLayout):
            self.freeze_layout()

    def freeze_layout(self) -> None:
        """Take the own kernel's layout, which has no padding, unless a concatenation has taken the result."""
        if self._alternatives.in_part and self._own is not None and isinstance(self.layout, ir.FlexibleLayout):
            self.layout = copy.copy(self._own.layout)
        else:
            super().freeze_layout()

    def fuses(self, followers: Sequence[BaseSchedulerNode]) -> bool:
        """Take the kernel for an epilogue of all ``followers``. Return False if they must not be fused."""
        name = epilogue_of(self, followers, self._alternatives.problem.epilogue)
        if moves_single_elements(self, followers):
            self._refused[name] = ROWS
            return False
        alternative = self._alternatives.of_class(name)
        kernel = self._own if alternative is None else alternative.kernel
        if alternative is None and self.branches is not None and not self.branches.all_triton:
            kernel = None  # aten is for a part of the range, and fuses nothing
        layouts = () if kernel is None else ((self, kernel.layout), *self._alternatives.assumed)
        if kernel is None or not all(_same(node.get_layout(), layout) for node, layout in layouts):
            self._refused[name] = LAYOUT if kernel is not None else UNKNOWN if alternative is None else SLOWER
            return False
        self.finalize_as_triton_caller(kernel)
        self.branches = self.branches if alternative is None else alternative.branches
        self._fused = name
        return True

    def adapt(self) -> None:
        """Have the own kernel write a part of a concatenation, or the library's if the own kernel cannot.

        A copy of the own kernel with another layout will do: its code is not generated yet, and until then only the
        width of its indices depends on where the result is.
        """
        layout, own = self.get_layout(), self._own
        if not self._alternatives.in_part or self._fused is not None or own is None or _same(layout, own.layout):
            return
        kernel: ir.ChoiceCaller = self._aten
        try:
            # offsets count from the beginning of the part
            part = ir.FixedLayout(layout.device, layout.dtype, layout.size, layout.stride, layout.offset)
            if is_written_in_rows(layout) and _has_narrow_indices(part) == _has_narrow_indices(own.layout):
                kernel = copy.copy(own)
                kernel.layout = part
        except Exception as error:
            leave("a part of a concatenation", error)
        self._times.clear()
        self._times[kernel] = 0.0

    def record(self, scheduler: Scheduler, node: BaseSchedulerNode) -> None:
        """Record the fused epilogue, or why nothing is fused. ``node`` is the matmul's scheduler node after fusion."""
        of_class, problem, device = self._alternatives.of_class, self._alternatives.problem, self.get_device_or_error()
        if self._fused is not None:
            fused = of_class(self._fused)
            for decision, config in [] if fused is None else fused.decided:
                self._snapshot.record_fusion(decision, config)
            return
        for name, reason in self._refused.items():
            self._snapshot.record_unfused(problem._replace(epilogue=name), device, reason)
            alternative = of_class(name) if reason == SLOWER else None
            for decision, _ in [] if alternative is None else alternative.decided:
                self._snapshot.record_fusion(decision, ATEN)
        if not self._refused:
            self._snapshot.record_unfused(problem, device, why_unfused(scheduler, node))


def _has_narrow_indices(layout: ir.Layout) -> bool:
    """Return whether 32 bits index every element of a result, up to its last one in memory."""
    result = ir.Buffer(name="result", layout=layout)
    return bool(SIMDScheduling.can_use_32bit_indexing(sympy_product(layout.size), [result]))


def _same(one: ir.Layout, other: ir.Layout) -> bool:
    return one.size == other.size and one.stride == other.stride and one.offset == other.offset


def speedup_by_fusion(
    speedup: Callable[..., FusionResult], scheduler: Scheduler, node1: BaseSchedulerNode, node2: BaseSchedulerNode
) -> FusionResult:
    """Decide about fusing our buffers with nodes before or after them. Ask Inductor about all other nodes."""
    ours: bool | None = None
    try:
        buffer = next((node.get_template_node() for node in (node1, node2) if node.is_template()), None)
        if hasattr(buffer, ALONE):
            ours = False
        if isinstance(buffer, _Buffer):
            followers = [node for node in (*node1.get_nodes(), *node2.get_nodes()) if node.node is not buffer]
            writes = (dep for node in followers for dep in node.read_writes.writes)
            atomic = any(isinstance(dep, MemoryDep) and dep.mode == "atomic_add" for dep in writes)
            other = node2.is_template() or node2.is_foreach() or node2.is_reduction()
            ours = not other and not atomic and buffer.fuses(followers)
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
    """Return the size of the data that two nodes share, also if one reads a result of ours through a view."""
    found = score(scheduler, node1, node2, *arguments, **named)
    if found in (0, (0, False)) and isinstance(node1.get_template_node(), _Buffer):
        seen = sum(scheduler.dep_size_hint(dep) for dep in _shared(node1, node2))
        return (seen, False) if isinstance(found, tuple) else seen
    return found


def finalize_multi_template_buffers(finalize: Callable[[Scheduler], None], scheduler: Scheduler) -> None:
    """Settle the kernels of our buffers after fusion, and record the epilogues."""
    try:
        for node in scheduler.nodes:
            buffer = node.get_template_node()
            if isinstance(buffer, _Buffer):
                buffer.adapt()
                buffer.record(scheduler, node)
    except Exception as error:
        let_pass(error)
        warn_once(f"what is fused after matmuls is not recorded: {error!r}")
    finalize(scheduler)


def indexing(original: Callable[..., Any], kernel: Any, index: Any, **named: Any) -> Any:
    """Have a convolution's epilogue read a row, such as a bias, once for each column of a tile, not for each element.

    Then Triton also computes steps on rows alone, such as the square root of a batch norm, once for each column.
    """
    found = original(kernel, index, **named)
    try:
        is_load = named.get("block_ptr") and not named.get("dense_indexing") and isinstance(found, IndexingOptions)
        if not is_load or {str(each) for each in found.index.free_symbols} != {"idx_n"}:
            return found
        if in_force() is None or kernel.template_mask != "mask" or kernel.template_out_shape != ("BLOCK_M", "BLOCK_N"):
            return found
        origins = getattr(kernel.output_node, "origins", ())
        if all(origin.target is not torch.ops.aten.convolution.default for origin in origins):
            return found  # a bias alone was not measured
        inside = f"(idx_n < {kernel.size(None, -1)})"
        masks = OrderedSet(inside if str(mask) == "mask" else mask for mask in found.mask_vars)
        row: dict[str, Any] = {"expand_str": "[1, BLOCK_N]", "expand_shape": ("1", "BLOCK_N"), "mask_vars": masks}
        return replace(found, index_str=kernel.index_to_str(found.index), **row)
    except Exception as error:
        leave("an epilogue", error)
        return found


def codegen_template(
    generate: Callable[..., Any],
    scheduling: SIMDScheduling,
    template_node: Any,
    epilogue_nodes: Any,
    prologue_nodes: Any,
    **options: Any,
) -> Any:
    """Generate the branches of our buffers."""
    buffer = template_node.node
    found: Branches | None = buffer.branches if isinstance(buffer, _Buffer) else getattr(buffer, ALONE, None)
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


def can_realize_into_without_copy(original: Callable[..., bool], cls: type, src: Any, dst: Any = None) -> bool:
    """Let our buffers write into concatenations, as the library's do, while their layouts are open."""
    buffer = getattr(src, "data", None)
    if isinstance(buffer, _Buffer):
        return isinstance(buffer.layout, ir.FlexibleLayout)
    return original(cls, src, dst)
