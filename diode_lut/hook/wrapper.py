"""Lines of Inductor's wrapper code around a launch: branches by a dynamic size, and memory for tensor descriptors."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple

import sympy
from torch._inductor.codegen.wrapper import WrapperLine
from torch._inductor.ir import ChoiceCaller
from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller
from torch._inductor.utils import IndentedBuffer
from torch._inductor.virtualized import V

from diode_lut.hook.snapshot import CannotRun


class Branches(NamedTuple):
    """The kernels for parts of the range of ``size``, in order, each with its largest size. The last has None."""

    size: sympy.Expr
    kernels: tuple[tuple[int | None, ChoiceCaller], ...]

    @property
    def triton(self) -> list[TritonTemplateCaller]:
        """The Triton kernels."""
        return [kernel for _, kernel in self.kernels if isinstance(kernel, TritonTemplateCaller)]

    @property
    def all_triton(self) -> bool:
        """Whether all kernels are Triton's. Only then can an epilogue be fused."""
        return len(self.triton) == len(self.kernels)


def can_branch() -> bool:
    """Return whether the present graph gets Python wrapper code. Branches are written for no other wrapper."""
    return not (V.graph.cpp_wrapper or V.graph.aot_mode or V.graph.fx_wrapper)


class BlockLine(WrapperLine):
    """A line that ends the last block of code, unless it is the ``first``, and begins another, if it has text.

    No branch needs a stream from another, because each call of a kernel gets its own.
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
    """Define all kernels, then write the branches that call them."""
    node: Any = template_node.node
    wrapper: Any = V.graph.wrapper_code
    generated: list[tuple[int | None, Any]] = []
    for high, kernel in found.kernels:
        if isinstance(kernel, TritonTemplateCaller):
            made, render = kernel.get_make_kernel_render()(node, hint_override=None)  # type: ignore[no-untyped-call]
            kernel = scheduling._codegen_single_template(made, render, template_node, epilogue_nodes, [])
        generated.append((high, kernel))
    kernels = [kernel for _, kernel in generated if not isinstance(kernel, ExternKernelCaller)]
    if len({str(kernel.args.python_argdefs()[1]) for kernel in kernels}) > 1:
        generated = [(None, kernels[0])]  # some write in place and some do not: they need different buffers
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


_SET_ALLOCATOR = (
    "allocator_before = triton_allocator.set("
    "lambda size, align, stream: torch.empty(size, dtype=torch.int8, device={!r}))"
)
"""A line of generated code that sets Triton's allocator, as Inductor does before a launch, but can be undone."""


def with_memory_in_any_thread(choice: ChoiceCaller) -> ChoiceCaller:
    """Return the choice with generated code that gives Triton memory for descriptors in any thread.

    Triton has an allocator for each thread, and none in a new thread. Since torch 2.13, Inductor sets it before the
    first launch of a kernel only, so a second thread would get an error. After the call, the program has its own
    allocator again. Inductor itself would replace it.
    """
    if not isinstance(choice, TritonTemplateCaller):
        return choice
    from triton.runtime import _allocation  # without a GPU there may be no Triton

    if not isinstance(_allocation._allocator, ContextVar):
        raise CannotRun("this release of Triton does not keep its allocator in a context variable")
    make = choice.make_kernel_render

    def make_kernel_render(*args: Any, **kwargs: Any) -> Any:
        kernel, render = make(*args, **kwargs)
        call = kernel.call_kernel

        def call_kernel(*args: Any, **kwargs: Any) -> None:
            if V.graph.cpp_wrapper or V.graph.fx_wrapper:
                call(*args, **kwargs)
                return
            wrapper: Any = V.graph.wrapper_code
            wrapper.add_import_once("from triton.runtime._allocation import _allocator as triton_allocator")
            wrapper.writeline(_SET_ALLOCATOR.format(V.graph.get_current_device_or_throw().type))
            wrapper.writeline(BlockLine("try:", first=True))
            call(*args, **kwargs)
            wrapper.writeline(BlockLine("finally:"))
            wrapper.writeline("triton_allocator.reset(allocator_before)")
            wrapper.writeline(BlockLine(""))

        kernel.call_kernel = call_kernel
        return kernel, render

    choice.make_kernel_render = make_kernel_render
    return choice
