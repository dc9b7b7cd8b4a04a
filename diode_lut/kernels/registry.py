"""All templates. A new one is a module beside this one, a line here, and its names in ``inductor/names.py``."""

from __future__ import annotations

from diode_lut.domain.errors import ProblemError
from diode_lut.domain.ops import ATTENTION, GROUPED, MATMULS
from diode_lut.kernels.architecture import Architecture
from diode_lut.kernels.cpp_gemm import CPP_GEMM
from diode_lut.kernels.decompose_k import DECOMPOSE_K
from diode_lut.kernels.flex_attention import (
    DEFAULT_FLEX,
    TRITON_FLEX_ATTENTION,
    TRITON_FLEX_ATTENTION_BACKWARD,
    TRITON_FLEX_DECODING,
)
from diode_lut.kernels.grouped_mm import TRITON_GROUPED_MM
from diode_lut.kernels.library import LIBRARY
from diode_lut.kernels.template import Template
from diode_lut.kernels.triton_gemm import TRITON_BMM, TRITON_MM, TRITON_MM_PERSISTENT_TMA

TEMPLATES: dict[str, Template] = {
    template.name: template
    for template in (
        LIBRARY,
        *(TRITON_MM, TRITON_BMM, TRITON_MM_PERSISTENT_TMA, DECOMPOSE_K, CPP_GEMM),
        *(DEFAULT_FLEX, TRITON_FLEX_ATTENTION, TRITON_FLEX_ATTENTION_BACKWARD, TRITON_FLEX_DECODING),
        TRITON_GROUPED_MM,
    )
}
"""By the name that tables use, in the fixed order in which equally good configs are chosen."""


POINTER_TUNABLES = TRITON_MM.names
"""The tunables of Inductor's plain Triton templates, which all have the same."""


def pointer_gemm(op: str) -> str:
    """The name of Inductor's plain Triton template, which other tools do not name; ProblemError if the op has none."""
    for template in (TRITON_MM, TRITON_BMM):
        if op in template.ops:
            return template.name
    raise ProblemError(f"{op}, for which there is no plain Triton template")


def templates_for(architecture: Architecture, op: str | None = None) -> list[str]:
    """The names of the templates that there are for an architecture, for ops such as this one; without one, GEMMs."""
    like = next((ops for ops in (ATTENTION, GROUPED) if op in ops), MATMULS)
    return [
        name
        for name, template in TEMPLATES.items()
        if template.runs_on(architecture) and not set(like).isdisjoint(template.ops)
    ]
