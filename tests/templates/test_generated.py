"""Limits of configs for generated kernels."""

import numpy as np
import numpy.typing as npt
import pytest

from diode_lut.templates.generated import MAX_STEPS, least_step


def error(numbers: npt.NDArray[np.float32], steps: int) -> float:
    """The error of sums along the last dimension in a loop, and of the block in a tree, as a kernel adds."""
    rows, r = numbers.shape
    block = np.zeros((rows, 1 << (-(-r // steps) - 1).bit_length()), np.float32)
    for start in range(0, r, block.shape[1]):
        part = numbers[:, start : start + block.shape[1]]
        block[:, : part.shape[1]] += part
    while block.shape[1] > 1:
        block = block[:, ::2] + block[:, 1::2]
    exact = numbers.sum(-1, dtype=np.float64)
    return float(np.linalg.norm(block[:, 0] - exact) / np.linalg.norm(exact))


def test_steps_cost_digits() -> None:
    """With the most steps that are allowed a sum has three times the error of a few, and one by one over ten times."""
    numbers = np.random.default_rng(0).standard_normal((256, 8192)).astype(np.float32)
    few, most, one_by_one = (error(numbers, steps) for steps in (4, MAX_STEPS, 8192))
    assert 2 < most / few < 4
    assert one_by_one / few > 10


@pytest.mark.parametrize(
    ("variant", "r", "least"), [("inner", 256, 1), ("inner", 257, 2), ("inner", 1 << 20, 512), ("outer", 1 << 20, 4)]
)
def test_least_step(variant: str, r: int, least: int) -> None:
    """Up to 256 steps are taken, and where r is long, steps as long as those of Inductor's own configs."""
    assert least_step(variant, r) == least
