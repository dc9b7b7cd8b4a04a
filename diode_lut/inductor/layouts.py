"""The layouts of a matmul's operands, as a Triton template needs them and rows are asked about."""

from __future__ import annotations

import copy
from typing import Any

from torch._inductor import ir
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.lowering import expand
from torch._inductor.virtualized import V

from diode_lut.inductor.answer import CannotRun


def with_fixed_layouts(inputs: MMKernelInputs, op: str) -> MMKernelInputs:
    """The inputs as a Triton template takes them: addmm's bias expanded to (M, N), no layout that may still change.

    The expanded bias is a view, whatever its strides: Inductor would copy one for N = 1, which has no unit stride.
    ``inputs`` keeps its own list of nodes: aten's choice is made of that list, with the bias as it is there.
    """
    nodes = list(inputs.nodes())
    if op == "addmm":
        m, n, _ = inputs.mnk_symbolic()
        bias = nodes[0] if isinstance(nodes[0], ir.TensorBox) else ir.TensorBox(nodes[0])
        nodes[0] = ir.ExternKernel.realize_input(expand(bias, [m, n]))
    for node in nodes:
        fix_layout(node)
    places = {"mat1_idx": inputs._mat1_idx, "mat2_idx": inputs._mat2_idx}
    return MMKernelInputs(nodes, scalars=inputs._scalars, out_dtype=inputs._out_dtype, **places)


def fix_layout(node: Any) -> None:
    """Keep the node, and what it is a view of, from changing its layout any more."""
    if isinstance(node.get_layout(), ir.FlexibleLayout):
        node.freeze_layout()
    elif _has_open_base(node):
        node.unwrap_view().freeze_layout_with_exact_strides(node.unwrap_view().get_stride())


def _has_open_base(node: Any) -> bool:
    """Whether the node is a view of a buffer whose layout may still change, although that of the view may not.

    In torch 2.11 a template would take the buffer's strides for those of the view.
    """
    return isinstance(node, ir.ReinterpretView) and isinstance(node.unwrap_view().get_layout(), ir.FlexibleLayout)


def with_a_layout(node: Any, assumed: list[tuple[Any, ir.Layout]]) -> Any:
    """The input; where its layout is open, a buffer of that name with the layout that is likely.

    CannotRun for a bias that is not in memory yet, which only torch 2.11 passes: putting it there for a kernel that may
    never run would change what the library reads.
    """
    if not ir.is_storage_and_layout(node):
        raise CannotRun("its bias is not in memory yet")
    layout = node.get_layout()
    if not isinstance(layout, ir.FlexibleLayout) and not _has_open_base(node):
        return node
    likely = _likely_layout(node, layout)
    assumed.append((node, likely))
    return ir.TensorBox.create(ir.InputBuffer(name=node.get_name(), layout=likely))


def _likely_layout(node: Any, layout: ir.Layout) -> ir.Layout:
    """The layout that Inductor decides on in the end if nothing else asks for one: in the order in which data is read.

    So the copy of a column-major matrix that padding makes is column-major.
    """
    buffer = V.graph.try_get_buffer(node.get_name())
    if isinstance(layout, ir.FlexibleLayout) and isinstance(buffer, ir.ComputedBuffer):
        order = buffer.get_fill_order()
        if order:
            return layout.as_fill_order(order)
    return copy.copy(layout).as_fixed()
