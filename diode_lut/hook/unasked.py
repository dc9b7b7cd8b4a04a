"""Answer where Inductor does not ask the handler: for grouped matmuls, on the CPU, and for 1x1 convolutions.

For the first two it makes a list of choices. In default mode, the list of a grouped matmul has the library alone. Under
max-autotune it also has Inductor's kernels, generated but not compiled yet. On the CPU, the list has the library and
the C++ template. If a table answers, its choices replace the list.

A 1x1 convolution is lowered to a matmul, if a kernel of the tables also does the pointwise work that follows. CuDNN
leaves this work to another kernel, and is otherwise as fast as a matmul. So rows for a matmul with its epilogue decide.
Models do not, because none was measured against cuDNN. The matmul then gets its kernel like any other. Images must be
channels last, so that nothing is copied.
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
from torch._inductor.kernel.conv import convert_1x1_conv_to_mm
from torch._inductor.kernel.mm_common import mm_args
from torch._inductor.lowering import lowerings, permute
from torch._inductor.runtime.triton_compat import tl
from torch._inductor.select_algorithm import ExternKernelCaller, realize_inputs
from torch._inductor.utils import get_num_sms, sympy_product, use_cpp_bmm_template, use_cpp_gemm_template
from torch._inductor.virtualized import V

from diode_lut.errors import ProblemError
from diode_lut.hook import problems
from diode_lut.hook.choices import fix_layout, in_force, is_on, marked_choices, require_fit, require_templates
from diode_lut.hook.epilogues import epilogue_ahead
from diode_lut.hook.problems import is_plain
from diode_lut.hook.snapshot import CannotRun, autotuning, snapshot
from diode_lut.hook.versions import KWARGS, TEMPLATE_OF_CLASS
from diode_lut.hook.wrapper import with_memory_in_any_thread
from diode_lut.problem import GROUPED, Operand, Problem, letters, problem_of
from diode_lut.receipts import FREEZABLE, ONLY_THE_LIBRARY
from diode_lut.settings import MODEL
from diode_lut.templates.config import ATEN, Config


class Grouped(NamedTuple):
    """A grouped matmul in a graph, with the ends of its groups. ``changes`` says whether a size may change."""

    problem: Problem
    a: Any
    b: Any
    offsets: Any
    layout: ir.Layout
    changes: bool


def answer_grouped(choices: list[ChoiceCaller]) -> list[ChoiceCaller] | None:
    """Return the choices for the present grouped matmul, or None for other ops, or if Inductor chooses."""
    asked = grouped_of(choices)
    if asked is None:
        return None
    now, device = snapshot(), asked.a.get_device()
    if asked.changes:
        now.record_no_choice(asked.problem, device, problems.SIZES_CHANGE)
        return None
    decision = now.decide(asked.problem, device, padding=False)
    return marked_choices(now, decision, lambda config: build_grouped(config, asked, choices))


def grouped_of(choices: list[ChoiceCaller]) -> Grouped | None:
    """Return the grouped matmul of Inductor's ``choices``, or None if tables have no such problems.

    Tables have none if A has groups or B has none, as in gradients of weights, or if types differ.
    """
    is_grouped = getattr(V.graph.current_node, "target", None) is torch.ops.aten._grouped_mm.default
    if not is_grouped or not choices or len(choices[0].input_nodes) != 3:
        return None
    (a, b, offsets), layout = choices[0].input_nodes, choices[0].layout
    numbers = (*a.get_size(), *a.get_stride(), *b.get_size(), *b.get_stride(), *offsets.get_size())
    if a.get_device_or_error().type != "cuda":
        return None
    dtype = problems.dtype_of({a.get_dtype(), b.get_dtype(), layout.dtype}, "cuda")
    first, second = (
        Operand(tuple(map(problems.hint, x.get_size())), tuple(map(problems.hint, x.get_stride()))) for x in (a, b)
    )
    try:
        problem = problem_of(GROUPED[0], str(dtype), first, second)
    except ProblemError:
        return None
    aligned = problem if all(map(problems.stays_aligned, (a, b))) else problem._replace(align=2)
    return Grouped(aligned, a, b, offsets, layout, changes=not is_plain(numbers))


_EXPERIMENTAL = "_experimental_make_tensor_descriptor"


def build_grouped(config: Config, asked: Grouped, choices: list[ChoiceCaller]) -> ChoiceCaller:
    """Make the choice of ``config``, or take the library's from Inductor's ``choices``. CannotRun if there is none."""
    if config == ATEN:
        library = next((choice for choice in choices if isinstance(choice, ExternKernelCaller)), None)
        if library is None:
            raise CannotRun("Inductor does not offer the library here")
        return library
    if asked.problem.op not in config.kernel.ops:
        raise CannotRun(f"{config.template} is not for {asked.problem.op}")
    # Triton's function for tensor descriptors, by the name that Inductor prefers
    descriptors = next((name for name in (_EXPERIMENTAL, "make_tensor_descriptor") if hasattr(tl, name)), "")
    _require_kernel(asked, descriptors)
    require_fit(config, asked.problem, asked.a.get_device())
    nodes = [asked.a, asked.b, asked.offsets]
    for node in nodes:
        fix_layout(node)
    _, letter_b = letters(asked.problem.layout)
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
        USE_EXPERIMENTAL_MAKE_TENSOR_DESCRIPTOR=descriptors == _EXPERIMENTAL,
        **{KWARGS[config.template][name]: value for name, value in config.tunables.items()},
    )
    if not made:
        raise CannotRun("Inductor makes no kernel of it")
    return with_memory_in_any_thread(made[0])


def _require_kernel(asked: Grouped, descriptors: str) -> None:
    """Raise CannotRun unless Inductor allows the kernel, and tensor descriptors can describe the operands."""
    require_templates(asked.layout)
    if V.graph.aot_mode or V.graph.cpp_wrapper:
        # In torch 2.11 there is memory for the descriptors of one program, but all programs write theirs.
        raise CannotRun("C++ wrappers may have too little memory for its tensor descriptors")
    if not descriptors:
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
    """Return whether a dimension has stride 1, and no rows of a group (columns, if column-major) share memory."""
    numbers = sorted(zip(node.get_stride(), node.get_size(), strict=True))
    needed = 1
    for stride, size in numbers:
        if size != 1 and stride < needed:
            return False
        needed = max(needed, stride * size)
    return bool(numbers[0][0] == 1)


def answer_on_cpu(choices: list[ChoiceCaller]) -> list[ChoiceCaller] | None:
    """Return the choices for a matmul on the CPU, or None on other devices, or if Inductor chooses."""
    aten = problems.aten_of(choices)
    if aten is None or aten.input_nodes[0].get_device_or_error().type != "cpu":
        return None
    problem, axes = problems.problem_of_aten(aten)
    if problem is None:
        return None
    now, why = snapshot(), problems.why_left(problem, aten.input_nodes)
    if all(problems.config_of(choice) == ATEN for choice in choices) and not _has_cpp_template(aten, problem):
        why = FREEZABLE if not axes and _is_freezable(aten, problem) else ONLY_THE_LIBRARY
    if why:
        now.record_no_choice(problem, "cpu", why)
        return None

    def build(config: Config) -> ChoiceCaller:
        offered = next((choice for choice in choices if problems.config_of(choice) == config), None)
        if offered is None and config.template in TEMPLATE_OF_CLASS.values():
            offered = _build_cpp_choice(aten, problem)
        if offered is None:
            raise CannotRun("Inductor does not offer it here")
        return offered

    found = marked_choices(now, now.decide(problem, "cpu", padding=False, axes=axes), build)
    # To benchmark choices, Inductor needs the layout of their result. Its lowerings of packed linears compute it under
    # max-autotune only
    if any(choice.layout is None for choice in choices):
        return found and found[:1]
    return found


def _is_freezable(aten: ChoiceCaller, problem: Problem) -> bool:
    """Return whether Inductor would pack the weight with freezing on: a float32 parameter without gradients."""
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


def _has_cpp_template(aten: ChoiceCaller, problem: Problem) -> bool:
    """Return whether Inductor would offer the C++ template for the computation of ``aten``, if it autotuned.

    Inductor's functions would fix open layouts, which must stay open if the library is used. So they get buffers of the
    same names with the likely layouts.
    """

    def with_a_layout(node: Any) -> Any:
        layout = node.get_layout()
        if not isinstance(layout, FlexibleLayout):
            return node
        return TensorBox.create(InputBuffer(name=node.get_name(), layout=copy.copy(layout).as_fixed()))

    a, *others = aten.input_nodes
    with inductor_config.patch(max_autotune_gemm=True):
        if problem.op == "bmm":
            return bool(use_cpp_bmm_template(aten.layout, with_a_layout(a), with_a_layout(others[0])))
        if aten.name != problems.MKL_LINEAR:
            return False
        x = with_a_layout(realize_inputs(a))  # type: ignore[no-untyped-call]
        *_, layout, x, transposed = mm_args(x, permute(others[-1], [1, 0]))  # type: ignore[no-untyped-call]
        return bool(use_cpp_gemm_template(layout, x, transposed))


def _build_cpp_choice(aten: ChoiceCaller, problem: Problem) -> ChoiceCaller | None:
    """Make the choice of the C++ template for the computation of ``aten``, or None if Inductor would not."""
    choices: list[ChoiceCaller] = []
    with inductor_config.patch(max_autotune_gemm=True):
        if problem.op == "bmm":
            a, b = aten.input_nodes
            if use_cpp_bmm_template(aten.layout, a, b):
                CppBmmTemplate.add_choices(choices, aten.layout, [a, b])
        elif aten.name == problems.MKL_LINEAR:
            x, packed, weight = aten.input_nodes
            *_, layout, x, transposed = mm_args(x, permute(weight, [1, 0]))  # type: ignore[no-untyped-call]
            if use_cpp_gemm_template(layout, x, transposed):
                nodes = [x, packed, weight]
                CppGemmTemplate.add_choices(choices, layout, nodes, trans_w=True, input_indices=[0, 2])
    return next(iter(choices), None)


_OF_A_MATMUL = [[1, 1], [1, 1], [0, 0], [1, 1], [0, 0]]  # window, stride, padding, dilation, output padding of a matmul
_OF_IMAGES = (torch.float16, torch.bfloat16)  # types of one precision for convolutions and matmuls, in all settings


def as_matmul(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    """Return the result of a convolution lowered to a matmul, or None if Inductor should lower it.

    As Inductor does for cuDNN, add the bias as pointwise work, and store the inputs. Inductor's own way to a matmul
    does not store them, so each reader would compute them again.
    """
    now, device, sizes = in_force(), x.get_device(), [*x.get_size(), *weight.get_size()]
    if now is None or now.settings.policy != "pick" or now.settings.top_k > 1 or not now.settings.epilogues:
        return None
    if inductor_config.conv_1x1_as_mm or autotuning() or is_on("triton.native_matmul"):
        return None
    if torch.version.hip or device.type != "cuda" or not V.graph.is_inference:
        return None
    if len(sizes) != 8 or not is_plain(sizes) or 0 in sizes:
        return None
    images, channels, height, width, results, _, *window = map(int, sizes)
    given = [window, *map(list, (stride, padding, dilation, output_padding))]
    if given != _OF_A_MATMUL or transposed or groups != 1:
        return None
    kinds = {x.get_dtype(), weight.get_dtype()}
    dtype, epilogue = problems.dtype_of(kinds, device.type), epilogue_ahead(V.graph.current_node)
    if dtype is None or not kinds.issubset(_OF_IMAGES) or epilogue is None:
        return None
    a = Operand((images * height * width, channels), (channels, 1))
    problem = problem_of("mm", dtype, a, Operand((channels, results), (1, channels)))
    decision = now.answers(problem, device, padding=False).with_epilogue(epilogue)
    best = next(iter(decision.configs), ATEN)
    if best == ATEN or best.pad > 1 or decision.tier == MODEL:
        return None
    x.realize()
    weight.realize()
    if not _is_channels_last(x, channels, height, width) or not _is_channels_last(weight, channels, 1, 1):
        return None
    result = convert_1x1_conv_to_mm(x, weight, None)  # type: ignore[no-untyped-call]
    add, view = lowerings[torch.ops.aten.add], lowerings[torch.ops.aten.view]
    return result if bias is None else add(result, view(bias, [results, 1, 1]))


def _is_channels_last(node: Any, channels: int, height: int, width: int) -> bool:
    """Return whether a tensor is channels last without gaps, or will be, because its layout is open."""
    if not ir.is_storage_and_layout(node):
        return False
    layout = node.get_layout()
    if isinstance(layout, ir.FlexibleLayout):
        return bool(V.graph.layout_opt)
    strides = height * width * channels, 1, width * channels, channels
    steps = zip(layout.size, layout.stride, strides, strict=True)
    return all(size == 1 or step == wanted for size, step, wanted in steps)
