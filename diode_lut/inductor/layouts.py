"""The layouts of a matmul's operands as a Triton template needs them: those that the problem was looked up by."""

from __future__ import annotations

from typing import Any

from torch._inductor import ir
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.lowering import expand


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
    elif has_open_base(node):
        node.unwrap_view().freeze_layout_with_exact_strides(node.unwrap_view().get_stride())


def has_open_base(node: Any) -> bool:
    """Whether the node is a view of a buffer whose layout may still change, although that of the view may not.

    In torch 2.11 a template would take the buffer's strides for those of the view.
    """
    return isinstance(node, ir.ReinterpretView) and isinstance(node.unwrap_view().get_layout(), ir.FlexibleLayout)
