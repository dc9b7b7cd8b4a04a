"""Several kernels for one matmul, of which the generated code runs the one for the size at hand.

Inductor generates every kernel for the same buffer, with the same epilogue, and compiles them in parallel. The wrapper
code compares the size with the borders between them. There is no benchmark and no guard. A CUDA graph captures the
kernel that is right for its sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import sympy
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.codegen.wrapper import WrapperLine
from torch._inductor.ir import ChoiceCaller
from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller
from torch._inductor.utils import IndentedBuffer
from torch._inductor.virtualized import V

from diode_lut.inductor.answer import Build, CannotRun, runnable
from diode_lut.inductor.switch import leave
from diode_lut.selection.dynamic import Piece
from diode_lut.selection.samples import Axis


class Branches(NamedTuple):
    """Kernels in order of the sizes that they are for: the size, and each kernel with the largest size it runs at.

    The last kernel has no largest size.
    """

    size: sympy.Expr
    kernels: tuple[tuple[int | None, ChoiceCaller], ...]

    @property
    def triton(self) -> list[TritonTemplateCaller]:
        """Those that are Triton's."""
        return [kernel for _, kernel in self.kernels if isinstance(kernel, TritonTemplateCaller)]

    @property
    def all_triton(self) -> bool:
        """Whether all kernels are Triton kernels, so that an epilogue can be fused into every one."""
        return len(self.triton) == len(self.kernels)


def can_branch() -> bool:
    """Whether the graph at hand gets wrapper code that can branch: Python's, which is compiled once."""
    return not (V.graph.cpp_wrapper or V.graph.aot_mode or V.graph.fx_wrapper)


def branches(pieces: Sequence[Piece], axis: Axis, inputs: Any, build: Build) -> Branches:
    """A kernel for each piece, or CannotRun where one has none that can run."""
    kernels = [(piece.high, _kernel(piece, build)) for piece in pieces]
    first, *_ = axis.fields
    a, b = inputs.mat1mat2()
    sizes = {"b": a.get_size()[0], "m": a.get_size()[-2], "n": b.get_size()[-1], "k": a.get_size()[-1]}
    return Branches(sympy.sympify(sizes[first]), tuple(kernels))


def _kernel(piece: Piece, build: Build) -> ChoiceCaller:
    if not piece.decision.configs:  # no source answers for any of its sizes
        return build(piece.config)
    for config, choice in runnable(piece.decision, build):
        if config == piece.config and isinstance(choice, (TritonTemplateCaller, ExternKernelCaller)):
            return choice
        break
    raise CannotRun(f"{piece.config} cannot run for all sizes of its range")


class BlockLine(WrapperLine):
    """A line that begins a block of code, or ends the last one if it has no text.

    ``first`` says that no block ends here. A kernel's call asks for its own stream.
    """

    def __init__(self, text: str, *, first: bool = False) -> None:
        self._text, self._first = text, first

    def codegen(self, code: IndentedBuffer) -> None:
        """Write it."""
        if not self._first:
            code.do_unindent()
        if self._text:
            code.writeline(self._text)
            code.do_indent()


@cache
def take_part_in_codegen(branches_of: Callable[[Any], Branches | None]) -> None:
    """Have Inductor generate branches for buffers that have some, according to ``branches_of``."""
    generate = SIMDScheduling.codegen_template

    def codegen_template(
        self: SIMDScheduling, template_node: Any, epilogue_nodes: Any, prologue_nodes: Any, **options: Any
    ) -> Any:
        found = branches_of(template_node.node)
        alone = found is None or (epilogue_nodes and not found.all_triton)
        if alone or prologue_nodes or options.get("only_gen_src_code"):
            return generate(self, template_node, epilogue_nodes, prologue_nodes, **options)
        assert found is not None
        lines: list[Any] = V.graph.wrapper_code.lines
        written = len(lines)
        try:
            return _generate(self, template_node, epilogue_nodes, found)
        except Exception as error:
            leave("a matmul with a dynamic size", error)
            del lines[written:]
            return generate(self, template_node, epilogue_nodes, prologue_nodes, **options)

    SIMDScheduling.codegen_template = codegen_template  # type: ignore[method-assign]


def _generate(scheduling: Any, template_node: Any, epilogue_nodes: Any, found: Branches) -> None:
    """Define all kernels, then write the branches, each of which calls one."""
    node: Any = template_node.node
    wrapper: Any = V.graph.wrapper_code
    generated = [
        (high, _generate_kernel(scheduling, template_node, epilogue_nodes, kernel)) for high, kernel in found.kernels
    ]
    kernels = [kernel for _, kernel in generated if not isinstance(kernel, ExternKernelCaller)]
    if len({str(kernel.args.python_argdefs()[1]) for kernel in kernels}) > 1:
        generated = [(None, kernels[0])]  # some write in place and some do not
    scheduling.codegen_comment([template_node, *epilogue_nodes], kernels[0].kernel_name)
    size = wrapper.codegen_python_sizevar(found.size)
    for place, (high, kernel) in enumerate(generated):
        text = "else:" if high is None else f"{'elif' if place else 'if'} {size} <= {high}:"
        if len(generated) > 1:
            wrapper.writeline(BlockLine(text, first=place == 0))
        _call(kernel, node)
    if len(generated) > 1:
        wrapper.writeline(BlockLine(""))
    V.graph.removed_buffers |= kernels[0].removed_buffers
    V.graph.inplaced_to_remove |= kernels[0].inplaced_to_remove
    scheduling.free_buffers_in_scheduler()


def _generate_kernel(scheduling: Any, template_node: Any, epilogue_nodes: Any, kernel: Any) -> Any:
    if isinstance(kernel, ExternKernelCaller):
        return kernel
    made, render = kernel.get_make_kernel_render()(template_node.node, hint_override=None)
    return scheduling._codegen_single_template(made, render, template_node, epilogue_nodes, [])


def _call(kernel: Any, node: Any) -> None:
    if not isinstance(kernel, ExternKernelCaller):
        kernel.call_kernel(kernel.kernel_name, node)
        return
    operands = [each.codegen_reference() for each in kernel.input_nodes]
    options = [f"{name}={value!r}" for name, value in kernel.kwargs.items()]
    arguments = ", ".join([*operands, *options, f"out={node.codegen_reference()}"])
    wrapper: Any = V.graph.wrapper_code
    wrapper.writeline(f"{kernel.choice.call_name()}({arguments})")  # type: ignore[no-untyped-call]
