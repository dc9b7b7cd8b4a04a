"""Grouped matmuls: Inductor asks no choices handler about them, so tables answer when it shows its list of choices.

In its default mode that is the library alone. Under max-autotune its own kernels are on the list as well, generated but
not compiled yet. Where a table answers, its choices take the place of the list.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch._guards import TracingContext
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.codegen.cpp_bmm_template import CppBmmTemplate
from torch._inductor.codegen.cpp_gemm_template import CppGemmTemplate
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.ir import ChoiceCaller, FlexibleLayout, InputBuffer, TensorBox
from torch._inductor.kernel import mm_grouped
from torch._inductor.kernel.mm_common import mm_args
from torch._inductor.lowering import permute
from torch._inductor.runtime.triton_compat import tl
from torch._inductor.select_algorithm import ExternKernelCaller, realize_inputs
from torch._inductor.utils import get_num_sms, sympy_product, use_cpp_bmm_template, use_cpp_gemm_template
from torch._inductor.virtualized import V

from diode_lut.errors import MissError, ProblemError
from diode_lut.hardware import detect_hardware
from diode_lut.hook.answer import MARK, CannotRun, answer, fix_layout, in_force
from diode_lut.hook.choices import require_templates, shared_memory_of, with_memory_in_any_thread
from diode_lut.hook.handler import DiodeChoices
from diode_lut.hook.problems import (
    MKL_LINEAR,
    SIZES_CHANGE,
    aten_of,
    config_of,
    dtype_of,
    hint,
    is_plain,
    problem_of_aten,
    stays_aligned,
    why_left,
)
from diode_lut.hook.snapshot import snapshot
from diode_lut.hook.switch import leave
from diode_lut.hook.versions import KWARGS, TEMPLATE_OF_CLASS
from diode_lut.problem import GROUPED, Operand, Problem, letters, problem_of
from diode_lut.receipts.receipt import FREEZABLE, ONLY_THE_LIBRARY
from diode_lut.templates.architecture import architecture
from diode_lut.templates.config import ATEN, Config

_OP = torch.ops.aten._grouped_mm.default


class Grouped(NamedTuple):
    """A grouped matmul in a graph: its problem, its operands A and B, the ends of its groups, and its result.

    ``changes`` says whether a size may change, of which the problem has hints.
    """

    problem: Problem
    a: Any
    b: Any
    offsets: Any
    layout: ir.Layout
    changes: bool

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        device: torch.device = self.a.get_device()
        return device


def answer_grouped(choices: list[ChoiceCaller]) -> list[ChoiceCaller] | None:
    """The choices for the grouped matmul that is being lowered; None if it is none, or Inductor should choose.

    Inductor chooses where a size may change, and that is recorded.

    ``choices`` are Inductor's. Only the hook's handler answers: another one is set where tables are not to be asked.
    """
    asked = grouped_of(choices) if isinstance(V.choices, DiodeChoices) else None
    if asked is None:
        return None
    if asked.changes:
        snapshot().record_no_choice(asked.problem, asked.device, SIZES_CHANGE)
        return None
    decision = snapshot().decide(asked.problem, asked.device, padding=False)
    return answer(decision, lambda config: build_grouped(config, asked, choices))


def build_grouped(config: Config, asked: Grouped, choices: list[ChoiceCaller]) -> ChoiceCaller:
    """The choice of ``config``; of Inductor's ``choices`` for the library. CannotRun where it cannot run."""
    if config == ATEN:
        library = next((choice for choice in choices if isinstance(choice, ExternKernelCaller)), None)
        if library is None:
            raise CannotRun("Inductor does not offer the library here")
        return library
    if asked.problem.op not in config.kernel.ops:
        raise CannotRun(f"{config.template} is not for {asked.problem.op}")
    _require_kernel(asked)
    _require_room(config, asked)
    return _triton(config, asked)


def grouped_of(choices: list[ChoiceCaller]) -> Grouped | None:
    """The grouped matmul that Inductor's ``choices`` compute; None if tables have no such problems.

    That is so if A has groups or B has none, as in gradients of weights, or if types differ.
    """
    if getattr(V.graph.current_node, "target", None) is not _OP or not choices or len(choices[0].input_nodes) != 3:
        return None
    (a, b, offsets), layout = choices[0].input_nodes, choices[0].layout
    numbers = (*a.get_size(), *a.get_stride(), *b.get_size(), *b.get_stride(), *offsets.get_size())
    if a.get_device_or_error().type != "cuda":
        return None
    dtype = dtype_of({a.get_dtype(), b.get_dtype(), layout.dtype}, "cuda")
    first, second = (Operand(tuple(map(hint, x.get_size())), tuple(map(hint, x.get_stride()))) for x in (a, b))
    try:
        problem = problem_of(GROUPED[0], str(dtype), first, second)
    except ProblemError:
        return None
    aligned = problem if all(map(stays_aligned, (a, b))) else problem._replace(align=2)
    return Grouped(aligned, a, b, offsets, layout, changes=not is_plain(numbers))


def _require_kernel(asked: Grouped) -> None:
    """CannotRun unless Inductor allows the kernel, and tensor descriptors can describe the operands."""
    require_templates(asked.layout)
    if V.graph.aot_mode or V.graph.cpp_wrapper:
        # That of torch 2.11 has the memory for the descriptors of one program, and all programs write theirs.
        raise CannotRun("C++ wrappers may have too little memory for its tensor descriptors")
    if not _descriptors():
        raise CannotRun("this release of Triton has no tensor descriptors")
    if asked.problem.align != 16:
        raise CannotRun("tensor descriptors need rows that start on 16-byte boundaries")
    if not _apart(asked.a) or not _apart(asked.b):
        raise CannotRun("rows share memory")
    result = ir.Buffer(name="result", layout=asked.layout)
    operands = [asked.a, asked.b, result]
    if not SIMDScheduling.can_use_32bit_indexing(sympy_product(result.get_size()), operands):
        raise CannotRun("a matrix has more elements than this template can index")


def _apart(node: Any) -> bool:
    """Whether no two rows (columns, where column-major) of any group share memory, and lines have unit stride."""
    numbers = sorted(zip(node.get_stride(), node.get_size(), strict=True))
    needed = 1
    for stride, size in numbers:
        if size != 1 and stride < needed:
            return False
        needed = max(needed, stride * size)
    return bool(numbers[0][0] == 1)


def _require_room(config: Config, asked: Grouped) -> None:
    """CannotRun if there is no such kernel for the device, or the device has too little for it."""
    device = architecture(detect_hardware(asked.device).arch)
    if not config.kernel.runs_on(device):
        raise CannotRun(f"there is no {config.template} for {device.name}")
    for complaint in config.kernel.faults_on(asked.problem, config.params, device, shared_memory_of(asked.device)):
        raise CannotRun(complaint.reason)


def _triton(config: Config, asked: Grouped) -> ChoiceCaller:
    nodes = [asked.a, asked.b, asked.offsets]
    for node in nodes:
        fix_layout(node)
    _, letter_b = letters(asked.problem.layout)
    tunables = {KWARGS[config.template][name]: value for name, value in config.tunables.items()}
    made: list[ChoiceCaller] = []
    mm_grouped.triton_grouped_mm_template.maybe_append_choice(
        made,
        input_nodes=nodes,
        layout=asked.layout,
        SCALED=False,
        A_IS_2D=True,
        B_IS_2D=False,
        A_IS_K_MAJOR=True,
        B_IS_K_MAJOR=letter_b == "t",
        USE_FAST_ACCUM=False,
        NUM_SMS=get_num_sms(),
        USE_TMA_LOAD=True,
        USE_EXPERIMENTAL_MAKE_TENSOR_DESCRIPTOR=_descriptors() == _EXPERIMENTAL,
        **tunables,
    )
    if not made:
        raise CannotRun("Inductor makes no kernel of it")
    return with_memory_in_any_thread(made[0])


_EXPERIMENTAL = "_experimental_make_tensor_descriptor"


def _descriptors() -> str:
    """What makes tensor descriptors in this release of Triton, by the name that Inductor prefers; empty if nothing."""
    names = (_EXPERIMENTAL, "make_tensor_descriptor")
    return next((name for name in names if hasattr(tl, name)), "")


def filter_choices(choices: list[ChoiceCaller]) -> list[ChoiceCaller]:
    """Those that the hook marked, where there are any; what the table says, where it is asked here; else all."""
    marked = [choice for choice in choices if MARK in choice.annotations]
    if marked:
        return marked
    try:
        return (answer_grouped(choices) or _from_table(choices) if in_force() else None) or choices
    except MissError:
        raise  # as the setting strict has it
    except Exception as error:
        leave("a matmul", error)
        return choices


def _from_table(choices: list[ChoiceCaller]) -> list[ChoiceCaller] | None:
    """What the table says about a matmul on the CPU, where the hook has not been asked or did not see all choices."""
    aten = aten_of(choices)
    if aten is None or aten.input_nodes[0].get_device_or_error().type != "cpu":
        return None
    problem, axes = problem_of_aten(aten)
    if problem is None:
        return None
    why = why_left(problem, aten.input_nodes)
    if all(config_of(choice) == ATEN for choice in choices) and not _has_cpp_template(aten, problem):
        why = FREEZABLE if not axes and _is_freezable(aten, problem) else ONLY_THE_LIBRARY
    if why:
        snapshot().record_no_choice(problem, "cpu", why)
        return None

    def build(config: Config) -> ChoiceCaller:
        offered = next((choice for choice in choices if config_of(choice) == config), None)
        if offered is None and config.template in TEMPLATE_OF_CLASS.values():
            offered = _build_cpp_choice(aten, problem)
        if offered is None:
            raise CannotRun("Inductor does not offer it here")
        return offered

    found = answer(snapshot().decide(problem, "cpu", padding=False, axes=axes), build)
    return found if found is None or _can_be_timed(choices) else found[:1]


def _can_be_timed(choices: list[ChoiceCaller]) -> bool:
    """Whether Inductor could benchmark these choices: it needs to know the layout of their result.

    Its lowerings of packed linears work that out under max-autotune only.
    """
    return all(choice.layout is not None for choice in choices)


def _has_cpp_template(aten: ChoiceCaller, problem: Problem) -> bool:
    """Whether Inductor would offer the C++ template for what ``aten`` computes, if it autotuned.

    Its own functions for that decide on open layouts, which they must not do where the library is taken.
    """
    a, *others = aten.input_nodes
    with inductor_config.patch(max_autotune_gemm=True):
        if problem.op == "bmm":
            return bool(use_cpp_bmm_template(aten.layout, _with_a_layout(a), _with_a_layout(others[0])))
        return aten.name == MKL_LINEAR and _offers_packed(_with_a_layout(realize_inputs(a)), others[-1])  # type: ignore[no-untyped-call]


def _is_freezable(aten: ChoiceCaller, problem: Problem) -> bool:
    """Whether Inductor would pack the weight, and so have a choice, with freezing on in the thread that compiles.

    It would for parameters in float32, where there are no gradients.
    """
    context, names = TracingContext.try_get(), V.graph.graph_input_names
    if (
        problem.dtype != "float32"
        or not torch._C.has_mkl
        or not V.graph.is_inference
        or torch.is_grad_enabled()
        or inductor_config.freezing
        or context is None
        or context.fw_metadata is None
    ):
        return False
    parameters = [names[number] for number in context.fw_metadata.static_input_indices if number < len(names)]
    return aten.input_nodes[-1].get_name() in parameters


def _with_a_layout(node: Any) -> Any:
    """The input; where its layout is open, a buffer of that name with the layout that is likely."""
    layout = node.get_layout()
    if not isinstance(layout, FlexibleLayout):
        return node
    return TensorBox.create(InputBuffer(name=node.get_name(), layout=copy.copy(layout).as_fixed()))


def _offers_packed(x: Any, weight: Any) -> bool:
    *_, layout, x, transposed = mm_args(x, permute(weight, [1, 0]))  # type: ignore[no-untyped-call]
    return bool(use_cpp_gemm_template(layout, x, transposed))


def _build_cpp_choice(aten: ChoiceCaller, problem: Problem) -> ChoiceCaller | None:
    """The choice of the C++ template for what ``aten`` computes; None where Inductor would not offer one.

    Inductor itself offers this template only under max-autotune.
    """
    choices: list[ChoiceCaller] = []
    with inductor_config.patch(max_autotune_gemm=True):
        if problem.op == "bmm":
            _add_bmm(choices, aten)
        elif aten.name == MKL_LINEAR:
            _add_packed(choices, aten)
    return next(iter(choices), None)


def _add_bmm(choices: list[ChoiceCaller], aten: ChoiceCaller) -> None:
    a, b = aten.input_nodes
    if use_cpp_bmm_template(aten.layout, a, b):
        CppBmmTemplate.add_choices(choices, aten.layout, [a, b])


def _add_packed(choices: list[ChoiceCaller], aten: ChoiceCaller) -> None:
    x, packed, weight = aten.input_nodes
    *_, layout, x, transposed = mm_args(x, permute(weight, [1, 0]))  # type: ignore[no-untyped-call]
    if use_cpp_gemm_template(layout, x, transposed):
        CppGemmTemplate.add_choices(choices, layout, [x, packed, weight], trans_w=True, input_indices=[0, 2])
