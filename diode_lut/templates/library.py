"""The templates without blocks: the library, Inductor's own configs and C++ template, and GEMMs with K in parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diode_lut.hardware import Hardware
from diode_lut.problem import ATTENTION, GENERATED, GROUPED, MATMULS, Problem
from diode_lut.templates.architecture import Architecture
from diode_lut.templates.template import PAD, Complaint, Covered, Parameter, Params, Template


@dataclass(frozen=True)
class Library(Template):
    """``aten``, which PyTorch calls without Inductor's help. It runs everywhere, and others are compared with it."""

    def runs_on(self, architecture: Architecture) -> bool:
        return True

    def search(self, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        yield ()


LIBRARY = Library("aten", (*MATMULS, *GROUPED), (PAD,), "The library that PyTorch calls: cuBLAS, rocBLAS, oneDNN.")


@dataclass(frozen=True)
class Default(Template):
    """Inductor's own choice, with which attention and generated kernels are compared."""

    def search(self, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        yield ()


DEFAULT_CONFIG = Default(
    "default",
    (*ATTENTION, *GENERATED),
    about="The config that Inductor takes for flex attention, or tries first for a kernel that it generates.",
)


@dataclass(frozen=True)
class CppGemm(Template):
    """Inductor's C++ template, which chooses its blocks itself."""

    def runs_on(self, architecture: Architecture) -> bool:
        return not architecture.gpu


CPP_GEMM = CppGemm(
    "cpp_gemm", ("mm", "addmm", "bmm", "baddbmm"), about="Inductor's C++ template, on CPUs. It has no tunables."
)


_LONG_K = 8
"""If K is this many times M and N, tiles of the result are too few to fill the device, and cutting K can pay."""

_LEAST_PART = 128
"""Minimum elements along K of a part."""

_SPLITS = (2, 4, 8, 16, 32, 64, 128)
"""The numbers of parts a sweep tries."""


@dataclass(frozen=True)
class DecomposeK(Template):
    """A batch of products of parts, and their sum. ``k_split`` counts the parts."""

    many_sms = True

    def complaints(self, params: Params, covered: Covered, architecture: Architecture) -> Iterator[Complaint]:
        """Complain if no K of the row can be cut into equal parts."""
        yield from super().complaints(params, covered, architecture)
        if covered.k is None:
            return
        split, (low, high) = self.k_split(params), covered.k
        if high // split * split < low:
            text = str(low) if low == high else f"{low} to {high}"
            yield Complaint(f"{split} divides no k of the row ({text})", "k_split")

    def can_pay(self, problem: Problem) -> bool:
        return problem.k >= _LONG_K * max(problem.m, problem.n)

    def search(self, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        """Yield splits into equal parts that are not short, if K is long."""
        if self.can_pay(problem):
            yield from ((s,) for s in _SPLITS if problem.k % s == 0 and problem.k // s >= _LEAST_PART)

    def least_sizes(self, params: Params) -> tuple[int, int, int]:
        """Return sizes at which parts are not short."""
        return 1, 1, _LEAST_PART * self.k_split(params)

    def k_split(self, params: Params) -> int:
        return params[0]


DECOMPOSE_K = DecomposeK(
    "decompose_k",
    ("mm",),
    (Parameter("k_split", "", range(2, 4097), "K split", "Number of parts."),),
    "K is cut into parts, which are multiplied as a batch and then summed.",
)
