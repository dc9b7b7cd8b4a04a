"""A decision as the list of choices that Inductor gets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import sympy
import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.codegen.wrapper import WrapperLine
from torch._inductor.ir import ChoiceCaller
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.lowering import expand
from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller
from torch._inductor.utils import IndentedBuffer, is_big_gpu
from torch._inductor.virtualized import V

from diode_lut.decide.dynamic import Axis, Piece
from diode_lut.decide.selector import Decision
from diode_lut.hook.snapshot import snapshot
from diode_lut.hook.switch import is_off
from diode_lut.problem import Problem
from diode_lut.settings import Settings
from diode_lut.snapshot import skip
from diode_lut.templates.config import ATEN, PADDED_OPS, Config, needed_pad, pad_multiple

MARK = "diode_lut"
"""The annotation of choices that Inductor must keep to."""


class CannotRun(Exception):  # noqa: N818 (an answer, not an error)
    """Why a config cannot, or must not, run a matmul here, as text."""


Build = Callable[[Config], ChoiceCaller]


def autotuning() -> bool:
    """Whether Inductor would benchmark matmuls."""
    return bool(inductor_config.max_autotune or inductor_config.max_autotune_gemm)


def in_force() -> bool:
    """Whether the hook is on, and the settings let tables decide in Inductor's present mode."""
    if is_off():
        return False
    settings = snapshot().settings
    return settings.policy != "off" and (settings.default_mode or autotuning())


def answer(decision: Decision, build: Build, pad: int = 1) -> list[ChoiceCaller] | None:
    """The choices of a decision, marked; None if Inductor should choose among its own.

    ``build`` makes the choice of a config, or raises CannotRun; it gets the config without its ``pad``. ``pad`` is the
    number of elements that Inductor has padded the operands to multiples of. Up to ``top_k`` of those that can run are
    taken, best first; a model's are taken only if its first can run. With the policy ``verify``, aten is added. If
    there are none, that is a MissError under the setting ``strict``.
    """
    now = snapshot()
    built = dict(islice(runnable(decision, build, pad), now.settings.top_k))
    now.record(decision, tuple(built))
    if (now.settings.policy == "verify") if built else _only_aten(decision, now.settings):
        with suppress(CannotRun):
            built.setdefault(ATEN.padded(pad), build(ATEN))
    for choice in built.values():
        choice.annotations[MARK] = True
    return list(built.values()) or None


def _only_aten(decision: Decision, settings: Settings) -> bool:
    """Whether a problem without a match is to be aten's, without a benchmark."""
    return not decision.configs and not settings.fallback_to_autotune and autotuning()


def runnable(decision: Decision, build: Build, pad: int = 1) -> Iterator[tuple[Config, ChoiceCaller]]:
    """The configs of a decision that can run, best first, with their choices; those that cannot are recorded.

    ``build`` and ``pad`` are as for ``answer``.
    """
    for candidate in decision.configs:
        try:
            if needed_pad(decision.problem, candidate.pad) != pad:
                raise CannotRun(_why_not(candidate, decision.problem, pad))
            choice = build(candidate.padded(1))
            if not is_big_enough(choice.input_nodes[0].get_device_or_error(), decision, candidate):
                raise CannotRun("Inductor finds the GPU too small, and no row has the config's measured gain")
            yield candidate, choice
        except CannotRun as reason:  # noqa: PERF203 (one config is all that is usually tried)
            skip(decision, candidate, str(reason))
            if decision.only_first and candidate == decision.configs[0]:
                return


def is_big_enough(device: torch.device, decision: Decision, config: Config) -> bool:
    """Whether a GPU has enough SMs for a config: Inductor wants 68 for Triton's, unless a row has its measured gain.

    With the policy ``verify`` Inductor measures it itself.
    """
    if not config.kernel.many_sms or decision.is_measured(config):
        return True
    return snapshot().settings.policy == "verify" or is_big_gpu(device)


def _why_not(config: Config, problem: Problem, pad: int) -> str:
    """Why operands that are padded to multiples of ``pad`` are not what the config needs."""
    multiple = pad_multiple(problem.dtype)
    if needed_pad(problem, config.pad) == 1:
        return f"its operands are padded to multiples of {pad} already"
    if problem.op not in PADDED_OPS:
        return f"Inductor does not pad {problem.op}"
    if config.pad != multiple:
        return f"Inductor pads {problem.dtype} to multiples of {multiple} only"
    return "Inductor has not padded its operands" if snapshot().settings.pad else "the setting pad is off"


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


def generate_branches(scheduling: Any, template_node: Any, epilogue_nodes: Any, found: Branches) -> None:
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
