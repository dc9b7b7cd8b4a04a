"""The last word on a list of choices, after backends that ask no choices handler have added theirs.

CUTLASS, Composable Kernel, external matmuls and the CPU's C++ templates are appended after the choices handler has
answered. Inductor shows the whole list to a preprocessing function. On the CPU this is where tables answer, and for
grouped matmuls on a GPU.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch._guards import TracingContext
from torch._inductor import config as inductor_config
from torch._inductor.codegen.cpp_bmm_template import CppBmmTemplate
from torch._inductor.codegen.cpp_gemm_template import CppGemmTemplate
from torch._inductor.ir import ChoiceCaller, FlexibleLayout, InputBuffer, TensorBox
from torch._inductor.kernel.mm_common import mm_args
from torch._inductor.lowering import permute
from torch._inductor.select_algorithm import realize_inputs
from torch._inductor.utils import use_cpp_bmm_template, use_cpp_gemm_template
from torch._inductor.virtualized import V

from diode_lut.domain.errors import MissError
from diode_lut.domain.problem import Problem
from diode_lut.inductor.answer import MARK, CannotRun, answer, in_force
from diode_lut.inductor.choices import MKL_LINEAR, aten_of, config_of, problem_of_aten
from diode_lut.inductor.grouped import answer_grouped
from diode_lut.inductor.names import TEMPLATE_OF_CLASS
from diode_lut.inductor.problems import why_left
from diode_lut.inductor.snapshot import snapshot
from diode_lut.inductor.switch import leave
from diode_lut.kernels.config import ATEN, Config
from diode_lut.receipt.receipt import FREEZABLE, ONLY_THE_LIBRARY


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
