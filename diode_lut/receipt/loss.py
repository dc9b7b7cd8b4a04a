"""What misses cost, estimated without measuring, to put them in order.

The time of one execution is estimated by a roofline: the larger of the times that the arithmetic takes at the device's
peak and that the matrices take at the peak of memory. A table would save the share of it that a model expects, where a
model knows the problem, else the share that tables typically save. A receipt does not know how often a compiled matmul
runs, so each counts once. Where the peaks of a device are not known, its misses are in the order of their arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

from diode_lut.domain.hardware import Hardware
from diode_lut.domain.problem import ITEMSIZES, Problem
from diode_lut.kernels.architecture import architecture
from diode_lut.receipt.receipt import Receipt

TYPICAL_PERMILLE = 1100
"""The gain over aten in thousandths, without a model: about the mean of the shipped H200 table."""


class Loss(NamedTuple):
    """A problem that was missed ``calls`` times, with the nanoseconds lost if each call ran once.

    ``nanoseconds`` is None where the device's peaks are not known. ``by_model`` says whether a model knows the problem.
    """

    hardware: Hardware
    problem: Problem
    calls: int
    nanoseconds: float | None
    by_model: bool


def losses(receipt: Receipt) -> list[Loss]:
    """All misses of a receipt, the most time lost first."""
    found: list[tuple[float, float, Loss]] = []
    for hardware, device in receipt.devices.items():
        for problem, calls in device.misses.items():
            permille = device.expected_permille.get(problem)
            saved = calls * (1 - 1000 / max(permille or TYPICAL_PERMILLE, 1000))
            time = roofline_ns(problem, hardware)
            lost = None if time is None else saved * time
            loss = Loss(hardware, problem, calls, lost, permille is not None)
            found.append((-(lost or 0.0), -saved * _operations(problem), loss))
    return [loss for *_, loss in sorted(found)]


def roofline_ns(problem: Problem, hardware: Hardware) -> float | None:
    """The least time that one execution can take, in nanoseconds; None where the device's peaks are not known."""
    peaks = architecture(hardware.arch).peaks
    if peaks is None:
        return None
    operations_per_ns = {"float32": peaks.single, "tf32": peaks.tf32}.get(problem.dtype, peaks.half)
    b, m, n, k = problem.sizes
    moved = ITEMSIZES[problem.dtype] * b * (m * k + k * n + m * n)
    return max(_operations(problem) / operations_per_ns, moved / peaks.memory_bytes) / hardware.sm_count


def _operations(problem: Problem) -> int:
    b, m, n, k = problem.sizes
    return 2 * b * m * n * k
