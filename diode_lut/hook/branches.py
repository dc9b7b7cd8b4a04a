"""Branch in the wrapper code between kernels for parts of a dynamic size's range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import sympy
from torch._inductor.codegen.wrapper import WrapperLine
from torch._inductor.ir import ChoiceCaller
from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller
from torch._inductor.utils import IndentedBuffer
from torch._inductor.virtualized import V

from diode_lut.decide.dynamic import Axis, Piece
from diode_lut.hook.answer import Build, CannotRun, runnable


class Branches(NamedTuple):
    """The size, and the kernels in order of sizes, each with its largest size.

    The last kernel has no largest size.
    """

    size: sympy.Expr
    kernels: tuple[tuple[int | None, ChoiceCaller], ...]

    @property
    def triton(self) -> list[TritonTemplateCaller]:
        """The Triton kernels."""
        return [kernel for _, kernel in self.kernels if isinstance(kernel, TritonTemplateCaller)]

    @property
    def all_triton(self) -> bool:
        """Whether all kernels are Triton's. Only then an epilogue can be fused."""
        return len(self.triton) == len(self.kernels)


def can_branch() -> bool:
    """Return whether the present graph gets Python's wrapper code, which can branch and is compiled once."""
    return not (V.graph.cpp_wrapper or V.graph.aot_mode or V.graph.fx_wrapper)


def branches(pieces: Sequence[Piece], axis: Axis, inputs: Any, build: Build) -> Branches:
    """Make a kernel for each piece, or raise CannotRun if a piece has none."""
    kernels = []
    for high, decision, config in pieces:
        if decision.configs:
            first, kernel = next(runnable(decision, build), (None, None))
            if kernel is None or first != config or not isinstance(kernel, (TritonTemplateCaller, ExternKernelCaller)):
                raise CannotRun(f"{config} cannot run for all sizes of its range")
        else:  # no source answers for any of its sizes
            kernel = build(config)
        kernels.append((high, kernel))
    field, *_ = axis.fields
    a, b = inputs.mat1mat2()
    sizes = {"b": a.get_size()[0], "m": a.get_size()[-2], "n": b.get_size()[-1], "k": a.get_size()[-1]}
    return Branches(sympy.sympify(sizes[field]), tuple(kernels))


class BlockLine(WrapperLine):
    """A line at the beginning of a block of code. Without text, it ends the last block.

    The ``first`` line ends no block. A kernel's call asks for its own stream.
    """

    def __init__(self, text: str, *, first: bool = False) -> None:
        self._text, self._first = text, first

    def codegen(self, code: IndentedBuffer) -> None:
        """Write the line."""
        if not self._first:
            code.do_unindent()
        if self._text:
            code.writeline(self._text)
            code.do_indent()


def generate_branches(scheduling: Any, template_node: Any, epilogue_nodes: Any, found: Branches) -> None:
    """Define all kernels, then write the branches with their calls."""
    node: Any = template_node.node
    wrapper: Any = V.graph.wrapper_code
    generated: list[tuple[int | None, Any]] = []
    for high, kernel in found.kernels:
        if isinstance(kernel, TritonTemplateCaller):
            made, render = kernel.get_make_kernel_render()(node, hint_override=None)  # type: ignore[no-untyped-call]
            generated.append(
                (high, scheduling._codegen_single_template(made, render, template_node, epilogue_nodes, []))
            )
        else:
            generated.append((high, kernel))
    kernels = [kernel for _, kernel in generated if not isinstance(kernel, ExternKernelCaller)]
    if len({str(kernel.args.python_argdefs()[1]) for kernel in kernels}) > 1:
        generated = [(None, kernels[0])]  # some write in place and some do not
    scheduling.codegen_comment([template_node, *epilogue_nodes], kernels[0].kernel_name)
    size = wrapper.codegen_python_sizevar(found.size)
    for place, (high, kernel) in enumerate(generated):
        text = "else:" if high is None else f"{'elif' if place else 'if'} {size} <= {high}:"
        if len(generated) > 1:
            wrapper.writeline(BlockLine(text, first=place == 0))
        if isinstance(kernel, ExternKernelCaller):
            operands = [each.codegen_reference() for each in kernel.input_nodes]
            options = [f"{name}={value!r}" for name, value in kernel.kwargs.items()]
            arguments = ", ".join([*operands, *options, f"out={node.codegen_reference()}"])
            wrapper.writeline(f"{kernel.choice.call_name()}({arguments})")  # type: ignore[no-untyped-call]
        else:
            kernel.call_kernel(kernel.kernel_name, node)
    if len(generated) > 1:
        wrapper.writeline(BlockLine(""))
    V.graph.removed_buffers |= kernels[0].removed_buffers
    V.graph.inplaced_to_remove |= kernels[0].inplaced_to_remove
    scheduling.free_buffers_in_scheduler()
