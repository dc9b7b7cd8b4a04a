"""Compiles and runs one GEMM in a process that this one starts: ``python compile_for_guards.py fork|spawn``."""

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

import diode_lut


def hits_and_error() -> tuple[int, float]:
    """How many of a user's rows answered, and how far the result is from eager's."""
    a, b = torch.randn(4, 16, 32), torch.randn(4, 32, 24)
    with diode_lut.profile_predictions() as counts:
        result = torch.compile(torch.bmm)(a, b)
    return counts.hits["user"], (result - torch.bmm(a, b)).abs().max().item()


if __name__ == "__main__":
    problem = diode_lut.Problem("bmm", "float32", "nn", 16, 4, 16, 24, 32)
    assert diode_lut.select(problem).tier == "user"  # the tables are loaded here first
    with ProcessPoolExecutor(1, mp_context=get_context(sys.argv[1])) as pool:
        print(*pool.submit(hits_and_error).result())
