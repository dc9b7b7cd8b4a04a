"""What pointwise work is behind a matmul: whether there may be some, and of which class of epilogue it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch._inductor.ir import Buffer, Layout
from torch._inductor.scheduler import BaseSchedulerNode
from torch._inductor.virtualized import V

from diode_lut.domain.ops import NO_EPILOGUE, ROW_BYTES

_COSTS = {
    **dict.fromkeys(("exp", "exp2", "expm1", "sigmoid", "log", "log1p", "log2", "log10", "erf", "sin", "cos"), 1.0),
    **dict.fromkeys(("tanh", "pow", "asinh", "acosh", "atanh", "sinh", "cosh", "tan", "asin", "acos", "atan"), 2.5),
    **dict.fromkeys(("erfc", "erfinv", "lgamma", "digamma", "i0", "i1", "rand", "randn", "randint64"), 4.0),
}
"""The costs of pointwise ops in a Triton kernel, in reads of a tensor of the result's size; others cost nothing.

By the times of 13 epilogues behind 26 GEMMs on an H200.
"""

_MAX_MEDIUM = 2.0
"""Maximum cost of an epilogue of the class ``medium``."""

_WORD_BYTES = 4
"""Rows of a multiple of this are written to padded rows as fast as to others, by the times of 10,922 columns."""

_LIKE_VIEWS = (torch.ops.aten._unsafe_view.default, torch.ops.aten.reshape.default)
"""Ops that are views, although their schemas do not say so."""


def may_be_followed(node: torch.fx.Node | None) -> bool:
    """Whether pointwise work follows this node of Inductor's graph, directly or behind views."""
    waiting, seen = [node] if node is not None else [], set[torch.fx.Node]()
    while waiting:
        for user in waiting.pop().users:
            target = user.target
            if user in seen or not isinstance(target, torch._ops.OpOverload):
                continue
            seen.add(user)
            if torch.Tag.pointwise in target.tags or target is torch.ops.prims.convert_element_type.default:
                return True
            if target.is_view or target in _LIKE_VIEWS:
                waiting.append(user)
    return False


def epilogue_of(buffer: Buffer, nodes: Sequence[BaseSchedulerNode], bias: str = NO_EPILOGUE) -> str:
    """The class of the epilogue that these nodes are together, behind the matmul that writes ``buffer``.

    ``bias`` is the class of the epilogue that its bias alone is: ``medium`` for a matrix, which is read as well.
    """
    ops: Counter[str] = Counter()
    for node in nodes:
        ops.update(node._body.op_counts)  # type: ignore[attr-defined]
    tensors = len(tensors_read(buffer, nodes)) + (bias == "medium")
    cost = tensors + sum(_COSTS.get(op, 0.0) * count for op, count in ops.items())
    return "light" if cost == 0 else "medium" if cost <= _MAX_MEDIUM else "heavy"


def tensors_read(buffer: Buffer, nodes: Sequence[BaseSchedulerNode]) -> set[str]:
    """The names of what these nodes read besides ``buffer``, their matmul's result, and that is at least as large."""
    inside = {buffer.get_name(), *(name for node in nodes for name in node.get_buffer_names())}
    elements = V.graph.sizevars.optimization_hint(buffer.get_numel())
    return {
        dep.name
        for node in nodes
        for dep in node.read_writes.reads
        if dep.name not in inside and V.graph.sizevars.optimization_hint(dep.get_numel()) >= elements
    }


def moves_single_elements(buffer: Buffer, nodes: Sequence[BaseSchedulerNode]) -> bool:
    """Whether a matmul's kernel would read other tensors, or write what these nodes do, element by element.

    It reads so where rows are no multiples of 16 bytes. It writes so where rows are no multiples of 4 bytes and
    Inductor has padded them: consecutive elements are one thread's there, and not one warp's. On an H200, kernels with
    relu took 1.3 to 2.1 times as long as kernels that write packed rows of such a length.
    """
    layout = buffer.get_layout()
    if has_aligned_rows(layout):
        return False
    written = [V.graph.get_buffer(name).get_layout() for node in nodes for name in node.get_buffer_names()]
    padded = not all(each.is_contiguous() for each in written)
    return bool(tensors_read(buffer, nodes)) or (padded and not has_aligned_rows(layout, _WORD_BYTES))


def has_aligned_rows(layout: Layout, multiple: int = ROW_BYTES) -> bool:
    """Whether the length of a matrix's rows is a multiple of 16 bytes, or of another number; not if it is dynamic."""
    row = layout.size[-1] * layout.dtype.itemsize
    return V.graph.sizevars.statically_known_multiple_of(row, multiple)
