"""Turn a decision into Inductor's choices: a list, or for a dynamic size, branches in the wrapper code."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, TypeVar

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

from diode_lut.decide.decide import Axis, Piece
from diode_lut.decide.sources import Decision
from diode_lut.hardware import architecture
from diode_lut.hook.problems import MARK
from diode_lut.hook.snapshot import InductorSnapshot, skip, snapshot
from diode_lut.hook.switch import is_off
from diode_lut.hook.versions import UIDS
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, PADDED_OPS, Config, needed_pad, pad_multiple, padded
from diode_lut.templates.template import SomeProblems


class CannotRun(Exception):  # noqa: N818 (an answer, not an error)
    """Why a config cannot, or must not, run a matmul here, as text."""


Build = Callable[[Config], ChoiceCaller]
"""Makes the choice of a config without its ``pad``, or raises CannotRun."""

Made = TypeVar("Made")


def autotuning() -> bool:
    """Return whether Inductor would benchmark matmuls."""
    return bool(inductor_config.max_autotune or inductor_config.max_autotune_gemm)


def in_force(now: InductorSnapshot | None = None) -> bool:
    """Return whether the hook is on, and the settings let tables decide in Inductor's present mode.

    ``now`` is the snapshot of the compile, if the caller has it.
    """
    if is_off():
        return False
    settings = (now or snapshot()).settings
    return settings.policy != "off" and (settings.default_mode or autotuning())


def answer(now: InductorSnapshot, decision: Decision, build: Build, pad: int = 1) -> list[ChoiceCaller] | None:
    """Return the marked choices of a decision, or None if Inductor should choose among its own.

    Up to ``top_k`` configs that can run are taken, best first, and a model's only if its first can run. With the policy
    ``verify``, aten is added. A miss is aten's, without a benchmark, if the setting ``fallback_to_autotune`` is false.
    Without any choice, that is a MissError under the setting ``strict``. ``pad`` is the number of elements to whose
    multiples Inductor has padded the operands.
    """
    built = settled(now, decision, runnable(decision, build, pad), now.settings.top_k, ATEN.padded(pad), build)
    for config, choice in built.items():
        choice.annotations[MARK] = config.padded(1)
    return list(built.values()) or None


def settled(
    now: InductorSnapshot,
    decision: Decision,
    able: Iterator[tuple[Config, Made]],
    most: int,
    baseline: Config,
    make: Callable[[Config], Made],
) -> dict[Config, Made]:
    """Record and return the first ``most`` of the configs that can run, and the baseline if Inductor is to have it."""
    found = dict(islice(able, most))
    now.record(decision, tuple(found))
    instead = not decision.configs and not now.settings.fallback_to_autotune and autotuning()
    if (now.settings.policy == "verify") if found else instead:
        with suppress(CannotRun):
            found.setdefault(baseline, make(baseline.padded(1)))
    return found


def runnable(decision: Decision, build: Build, pad: int = 1) -> Iterator[tuple[Config, ChoiceCaller]]:
    """Yield the configs that can run, best first, with their choices, and record the others."""

    def checked(candidate: Config) -> ChoiceCaller:
        if needed_pad(decision.problem, candidate.pad) != pad:
            raise CannotRun(_why_not(candidate, decision.problem, pad))
        choice = build(candidate.padded(1))
        if not is_big_enough(choice.input_nodes[0].get_device_or_error(), decision, candidate):
            raise CannotRun("Inductor finds the GPU too small, and no row has the config's measured gain")
        return choice

    return tried(decision, checked)


def tried(decision: Decision, make: Callable[[Config], Made]) -> Iterator[tuple[Config, Made]]:
    """Yield the configs of which ``make`` can make something, best first, and record the others."""
    for config in decision.configs:
        try:
            yield config, make(config)
        except CannotRun as reason:  # noqa: PERF203 (one config is all that is usually tried)
            skip(decision, config, str(reason))
            if decision.only_first and config == decision.configs[0]:
                return


def _why_not(config: Config, problem: Problem, pad: int) -> str:
    """Return why a config does not fit operands padded to multiples of ``pad``."""
    multiple = pad_multiple(problem.dtype)
    if needed_pad(problem, config.pad) == 1:
        return f"its operands are padded to multiples of {pad} already"
    if problem.op not in PADDED_OPS:
        return f"Inductor does not pad {problem.op}"
    if config.pad != multiple:
        return f"Inductor pads {problem.dtype} to multiples of {multiple} only"
    return "Inductor has not padded its operands" if snapshot().settings.pad else "the setting pad is off"


def is_big_enough(device: torch.device, decision: Decision, config: Config) -> bool:
    """Return whether a GPU has enough SMs: Inductor wants 68 for Triton's configs, unless a row has a measured gain.

    With the policy ``verify`` Inductor measures it itself.
    """
    if not config.kernel.many_sms or decision.is_measured(config):
        return True
    return snapshot().settings.policy == "verify" or is_big_gpu(device)


def first_pad(decision: Decision, device: torch.device) -> int:
    """Return the number to whose multiples the first config that can run needs its operands padded, or 1.

    Whether a config can run is only known in part before there are operands.
    """
    problem, arch = decision.problem, architecture(decision.hardware.arch)
    for config in decision.configs[:1] if decision.only_first else decision.configs:
        pad, kernel = needed_pad(problem, config.pad), config.kernel
        if pad not in (1, pad_multiple(problem.dtype)) or not is_big_enough(device, decision, config):
            continue
        inside = padded(problem, pad)
        covered = SomeProblems(inside.op, inside.dtype, inside.align, (inside.k, inside.k))
        can_run = inside.op in kernel.ops and kernel.runs_on(arch)
        if can_run and not any(kernel.complaints(config.params, covered, arch)):
            return pad
    return 1


def offered(templates: Sequence[Any], name: str, op: str) -> list[Any]:
    """Return Inductor's ``templates`` for an op under our template's ``name``."""
    uids = UIDS[name].get(op, ())
    return [template for template in templates if template.uid in uids]


def library_choice(templates: Sequence[Any], op: str, ask: Callable[[list[Any]], list[ChoiceCaller]]) -> ChoiceCaller:
    """Return the library's choice for an op, or raise CannotRun. ``ask`` makes the choices of Inductor's ``templates``.

    Of addmm's two choices, take ``bias_addmm``: it keeps the bias a vector, for cuBLASLt's bias epilogue.
    """
    library = offered(templates, ATEN.template, op)
    choices = ask(library) if library else []
    if not choices:
        raise CannotRun("Inductor does not offer the library here")
    return next((choice for choice in choices if choice.name == "bias_addmm"), choices[0])


def with_fixed_layouts(inputs: MMKernelInputs, op: str) -> MMKernelInputs:
    """Return the inputs for a Triton template: addmm's bias expanded to (M, N), and all layouts fixed.

    The expanded bias is a view, whatever its strides: for N = 1 it has no unit stride, and Inductor would copy it.
    ``inputs`` keeps its own list of nodes, because aten's choice is made of that list, with the bias as it is there.
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
    """Keep the node, and its base if it is a view, from changing its layout any more."""
    if isinstance(node.get_layout(), ir.FlexibleLayout):
        node.freeze_layout()
    elif _has_open_base(node):
        node.unwrap_view().freeze_layout_with_exact_strides(node.unwrap_view().get_stride())


def _has_open_base(node: Any) -> bool:
    """Return whether the node is a fixed view of a buffer whose layout may still change.

    In torch 2.11 a template would take the buffer's strides for those of the view.
    """
    return isinstance(node, ir.ReinterpretView) and isinstance(node.unwrap_view().get_layout(), ir.FlexibleLayout)


def with_a_layout(node: Any, assumed: list[tuple[Any, ir.Layout]]) -> Any:
    """Return the input, or if its layout is open, a buffer of its name with the likely layout, noted in ``assumed``.

    If nothing else asks for a layout, Inductor decides in the end on the order in which data is read. So padding
    a column-major matrix makes a column-major copy. CannotRun for a bias that is not in memory yet, as in torch 2.11:
    to put it there for a kernel that may never run would change the library's input.
    """
    if not ir.is_storage_and_layout(node):
        raise CannotRun("its bias is not in memory yet")
    layout = node.get_layout()
    if not isinstance(layout, ir.FlexibleLayout) and not _has_open_base(node):
        return node
    buffer = V.graph.try_get_buffer(node.get_name())
    computed = isinstance(layout, ir.FlexibleLayout) and isinstance(buffer, ir.ComputedBuffer)
    order = buffer.get_fill_order() if computed else None  # type: ignore[union-attr]
    likely = layout.as_fill_order(order) if order else copy.copy(layout).as_fixed()
    assumed.append((node, likely))
    return ir.TensorBox.create(ir.InputBuffer(name=node.get_name(), layout=likely))


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
