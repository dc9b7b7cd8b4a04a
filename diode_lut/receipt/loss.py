"""What misses cost, as far as that can be guessed without measuring.

One execution of a product is guessed by a roofline: the larger of what its arithmetic takes at the device's peak and of
what its matrices take at the peak of memory. A table would save the part of it that a model expects, where one knows
the product, else what tables save on an average product. The figures are good for putting misses in order, no more: a
receipt does not know how often a compiled product runs.
"""

from __future__ import annotations

from typing import NamedTuple

from diode_lut.domain.hardware import Hardware
from diode_lut.domain.problem import ITEMSIZES, Problem
from diode_lut.receipt.receipt import Receipt

TYPICAL_PERMILLE = 1100
"""The gain over aten where no model says better: about the mean of the shipped H200 table, 1.156 and 1.052 by type."""


class _Peak(NamedTuple):
    """Of one multiprocessor or CPU thread: floating-point operations, and bytes from memory, a nanosecond."""

    half: float
    tf32: float
    single: float
    memory: float


_GPU = _Peak(7500, 3750, 500, 36)
"""An H200's data sheet, without sparsity: 989, 495 and 67 TFLOP/s and 4.8 TB/s, over 132 multiprocessors."""
_CPU = _Peak(100, 100, 100, 10)
"""A server's thread with AVX-512, by order of magnitude."""


class Loss(NamedTuple):
    """A problem that was missed ``calls`` times, with the nanoseconds lost if each ran once.

    ``by_model`` says whether a model was asked what could be gained.
    """

    hardware: Hardware
    problem: Problem
    calls: int
    nanoseconds: float
    by_model: bool


def losses(receipt: Receipt) -> list[Loss]:
    """All misses of a receipt, the most time lost first."""
    found = []
    for hardware, device in receipt.devices.items():
        for problem, calls in device.misses.items():
            permille = device.expected_permille.get(problem)
            saved = 1 - 1000 / max(permille or TYPICAL_PERMILLE, 1000)
            lost = calls * saved * roofline_ns(problem, hardware)
            found.append(Loss(hardware, problem, calls, lost, permille is not None))
    return sorted(found, key=lambda loss: (-loss.nanoseconds, loss))


def roofline_ns(problem: Problem, hardware: Hardware) -> float:
    """The least time that one execution could take, in nanoseconds, on an H200's kind of multiprocessors."""
    peak = _CPU if hardware.arch.startswith("cpu") else _GPU
    by_dtype = {"float32": peak.single, "tf32": peak.tf32}
    b, m, n, k = problem.sizes
    operations = 2 * b * m * n * k
    moved = ITEMSIZES[problem.dtype] * b * (m * k + k * n + m * n)
    return max(operations / by_dtype.get(problem.dtype, peak.half), moved / peak.memory) / hardware.sm_count
