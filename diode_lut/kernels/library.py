"""``aten``: the kernel that PyTorch calls without Inductor's help: cuBLAS, rocBLAS, oneDNN, ..."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diode_lut.domain.hardware import Hardware
from diode_lut.domain.ops import GROUPED, MATMULS
from diode_lut.domain.problem import Problem
from diode_lut.kernels.architecture import Architecture
from diode_lut.kernels.template import PAD, Params, Template


@dataclass(frozen=True)
class Library(Template):
    """Runs everywhere, and is what others are compared with."""

    def runs_on(self, architecture: Architecture) -> bool:
        """Always."""
        del architecture
        return True

    def search(self, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        """The one there is."""
        del problem, hardware
        yield ()


LIBRARY = Library("aten", (*MATMULS, *GROUPED), (PAD,), "The library that PyTorch calls: cuBLAS, rocBLAS, oneDNN.")
