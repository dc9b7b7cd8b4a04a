"""Kernels with tensor descriptors: whether one computes a matmul rightly, and where its descriptors get memory.

Inductor ensures neither.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from torch._inductor import config as inductor_config
from torch._inductor.ir import ChoiceCaller
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.select_algorithm import TritonTemplateCaller
from torch._inductor.utils import use_triton_tma_template
from torch._inductor.virtualized import V

from diode_lut.inductor.answer import CannotRun
from diode_lut.inductor.dispatch import BlockLine
from diode_lut.inductor.versions import cpp_wrappers_have_scratch, stores_with_tma

_DESCRIPTOR_BYTES = 16
"""The alignment of addresses in a tensor descriptor."""

_SET_ALLOCATOR = (
    "allocator_before = triton_allocator.set("
    "lambda size, align, stream: torch.empty(size, dtype=torch.int8, device={!r}))"
)
"""A line of generated code that does what Inductor does before a launch, and can be undone."""


def with_memory_in_any_thread(choice: ChoiceCaller) -> ChoiceCaller:
    """The choice, whose generated code gives Triton memory for descriptors in whatever thread runs it.

    Triton keeps its allocator per thread, and has none in a new one. Since torch 2.13, Inductor sets it before the
    first launch of a kernel only, so that a second thread would get an error. After the call the allocator is the
    program's again, which Inductor's launch would replace as well.
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


def tma_legal(inputs: MMKernelInputs) -> bool:
    """Whether there is memory for tensor descriptors, and they can describe A, B and C as the template reads them."""
    a, b = inputs.mat1mat2()
    if stores_with_tma():
        return False  # an epilogue may then read a result that is never stored, and does not compile
    if (V.graph.aot_mode or V.graph.cpp_wrapper) and not cpp_wrappers_have_scratch():
        return False  # programs would write their descriptors behind the memory that there is
    with inductor_config.patch({"triton.enable_persistent_tma_matmul": True}):
        if not use_triton_tma_template(a, b, output_layout=inputs.output_layout(flexible=False)):
            return False
    return all(_order_is_plain(node) and _stays_aligned(node) and _rows_are_apart(node) for node in (a, b))


def _order_is_plain(node: Any) -> bool:
    """Whether ``is_transposed``, by which the template goes, is right: with padding or a single row it may not be."""
    return bool(node.get_stride()[0 if node.get_layout().is_transposed() else 1] == 1)


def _rows_are_apart(node: Any) -> bool:
    """Whether no two rows (columns, where column-major) share memory: expanded matrices are untested with TMA."""
    size, stride = node.get_size(), node.get_stride()
    inner = 0 if node.get_layout().is_transposed() else 1
    return bool(V.graph.sizevars.statically_known_true(stride[1 - inner] >= size[inner]))


def _stays_aligned(node: Any) -> bool:
    """Whether all rows (columns, where column-major) start on 16-byte boundaries whatever value a dynamic size takes.

    Inductor looks at the hints of sizes, and at where an input begins, but not at where a view of one does.
    """
    itemsize = node.get_dtype().itemsize
    steps = [step for step in node.get_stride() if step != 1]
    return all(
        V.graph.sizevars.statically_known_multiple_of(number * itemsize, _DESCRIPTOR_BYTES)
        for number in (node.get_layout().offset, *steps)
    )
