"""The CPU's C++ GEMM template, which Inductor itself offers only under max-autotune."""

from __future__ import annotations

from torch._inductor import config as inductor_config
from torch._inductor.codegen.cpp_bmm_template import CppBmmTemplate
from torch._inductor.codegen.cpp_gemm_template import CppGemmTemplate
from torch._inductor.ir import ChoiceCaller
from torch._inductor.kernel.mm_common import mm_args
from torch._inductor.lowering import permute
from torch._inductor.utils import use_cpp_bmm_template, use_cpp_gemm_template

from diode_lut.domain.problem import Problem
from diode_lut.inductor.describe import MKL_LINEAR


def cpp_caller(aten: ChoiceCaller, problem: Problem) -> ChoiceCaller | None:
    """The C++ caller for the product that ``aten`` computes; None where Inductor would not offer one."""
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
