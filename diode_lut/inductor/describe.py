"""Which of our configs one of Inductor's candidates is."""

from __future__ import annotations

from typing import Any

from torch._inductor.codegen.cpp_bmm_template import CppBmmTemplate
from torch._inductor.codegen.cpp_gemm_template import CppGemmTemplate
from torch._inductor.ir import ChoiceCaller
from torch._inductor.select_algorithm import ExternKernelCaller

from diode_lut.inductor.templates import KWARGS, TEMPLATE_OF_UID
from diode_lut.kernels.config import ATEN, Config
from diode_lut.kernels.registry import TEMPLATES

MKL_LINEAR, ONEDNN_LINEAR = "_mkl_linear", "_linear_pointwise"
"""Inductor's names of the library calls for a product with a frozen weight."""

_ROCM_KWARGS = frozenset({"matrix_instr_nonkdim", "waves_per_eu", "kpack"})


def describe(choice: ChoiceCaller) -> Config | None:
    """The config that ``choice`` runs, or None if no config can say it.

    None is the answer for CUTLASS, Composable Kernel, ``contiguous_mm``, Blackwell's and other templates that have no
    name in ``TEMPLATES``, and for parameter values or ROCm tunables that a config has no place for.
    """
    ktc = choice.annotations.get("ktc")
    if ktc is not None:
        return _from_params(ktc.template.uid, ktc.params.to_kwargs())
    # The C++ callers come inside a wrapper that passes attributes on, so the caller's own class cannot be asked for;
    # the subclasses of its template are other ops (grouped, quantised).
    if type(getattr(choice, "template", None)) in (CppGemmTemplate, CppBmmTemplate):
        return Config("cpp_gemm")
    return ATEN if is_packed_linear(choice) else None


def is_packed_linear(choice: ChoiceCaller) -> bool:
    """Whether the candidate is what a product with a frozen weight is on the CPU: a call of MKL or oneDNN.

    oneDNN's binary form, which adds another matrix, has no scalars among its arguments.
    """
    return isinstance(choice, ExternKernelCaller) and (
        choice.name == MKL_LINEAR or (choice.name == ONEDNN_LINEAR and "scalars" in choice.kwargs)
    )


def _from_params(uid: str, kwargs: dict[str, Any]) -> Config | None:
    template = TEMPLATE_OF_UID.get(uid)
    if template is None or not _ROCM_KWARGS.isdisjoint(kwargs):
        return None
    values = tuple(kwargs.get(name) for name in KWARGS[template])
    parameters = TEMPLATES[template].parameters
    if not all(value in parameter.values for parameter, value in zip(parameters, values, strict=True)):
        return None
    return Config(template, tuple(int(value) for value in values if value is not None))
