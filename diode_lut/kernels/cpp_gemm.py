"""``cpp_gemm``: Inductor's C++ template, on CPUs."""

from __future__ import annotations

from dataclasses import dataclass

from diode_lut.kernels.architecture import Architecture
from diode_lut.kernels.template import Template


@dataclass(frozen=True)
class CppGemm(Template):
    """Inductor chooses its blocks itself."""

    def runs_on(self, architecture: Architecture) -> bool:
        """On CPUs only."""
        return not architecture.gpu


CPP_GEMM = CppGemm(
    "cpp_gemm", ("mm", "addmm", "bmm", "baddbmm"), about="Inductor's C++ template, on CPUs. It has no tunables."
)
