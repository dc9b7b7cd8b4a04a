"""Matmuls whose results are concatenated: a kernel writes into the whole, as the library does, and nothing is copied.

Inductor lets an op write its result into a part of a concatenation where the layout of the result is still open, which
that of a Triton template never is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import getitem
from typing import Any

import torch
from torch._inductor.ir import ConcatKernel, FixedLayout, FlexibleLayout, Layout, NonOwningLayout
from torch._inductor.virtualized import V

from diode_lut.domain.ops import ROW_BYTES


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


@cache
def take_part_in_concatenation(kind: type) -> None:
    """Have concatenations written by buffers of this kind, as by the library's, while their layouts are open."""
    original: Callable[..., bool] = vars(ConcatKernel)["can_realize_into_without_copy"].__func__

    def can_realize_into_without_copy(cls: type[ConcatKernel], src: Any, dst: Any = None) -> bool:
        buffer = getattr(src, "data", None)
        if isinstance(buffer, kind):
            return isinstance(buffer.layout, FlexibleLayout)  # type: ignore[attr-defined]
        return original(cls, src, dst)

    ConcatKernel.can_realize_into_without_copy = classmethod(can_realize_into_without_copy)  # type: ignore[method-assign, assignment]
