"""Makes the kernels with which ``collect`` measures joined matmuls, and work apart from a matmul, on the interpreter.

``python measure_joined.py DIRECTORY [PROBLEM]...``: tests/interpreter/test_joined.py reads what it prints, by problem:
the configs of the kernels that compute it, and how many programs apart do.
"""

import json
import os
import sys
from typing import Any

from tests.interpreter.device import interpreter_cuda

PROBLEMS = {
    "three": {"m": 2, "n": 120, "k": 96, "variant": "three", "layout": "nt"},
    "swiglu": {"m": 2, "n": 96, "k": 64, "variant": "swiglu", "layout": "nt"},
    "geglu": {"m": 20, "n": 96, "k": 64, "variant": "geglu", "layout": "nn"},
    "two": {"m": 70, "n": 96, "k": 64, "variant": "two", "layout": "nt", "dtype": "float16"},
    "float8": {"m": 20, "n": 96, "k": 96, "variant": "swiglu", "layout": "nt", "dtype": "float8_e4m3fn"},
    "float8 three": {"m": 2, "n": 128, "k": 64, "variant": "three", "layout": "nt", "dtype": "float8_e4m3fn"},
    "gelu": {"op": "fused_mm", "m": 40, "n": 96, "k": 64, "variant": "gelu", "layout": "nt"},
    "add": {"op": "fused_mm", "m": 40, "n": 96, "k": 64, "variant": "add", "layout": "nt"},
    "gated": {"op": "fused_mm", "m": 40, "n": 96, "k": 64, "variant": "swiglu", "layout": "nt"},
}


def measured(sizes: dict[str, Any]) -> dict[str, Any]:
    """Return which kernels compute a problem."""
    import torch

    from diode_lut.hardware import detect_hardware
    from diode_lut.measure.gemm import TogetherCheck, make_together
    from diode_lut.measure.programs import FastestOf, Program
    from diode_lut.measure.stages import _prepare_compiled
    from diode_lut.measure.tasks import Task, candidates
    from diode_lut.measure.tasks import apart as on_their_own
    from diode_lut.problem import FUSED, Problem
    from diode_lut.templates.config import DEFAULT

    problem = Problem.of(**{"op": "joined_mm", "dtype": "bfloat16", **sizes})
    hardware = detect_hardware("cuda")
    task = Task(problem, (DEFAULT,) if problem.op in FUSED else tuple(candidates(problem, hardware)))
    kernels = _prepare_compiled(task, torch.device("cuda", 0)).kernels
    _, operands = make_together(problem, "cuda")
    check = TogetherCheck(problem, operands)
    right, apart = [], 0
    for config, kernel in kernels.items():
        fault = kernel.load()
        assert fault is None, f"{problem}: {config}: {fault}"
        if isinstance(kernel, FastestOf):
            apart = sum(map(check.passes, kernel.run(operands)))
        elif isinstance(kernel, Program) and check.passes(kernel.run(operands)):
            right.append(str(config))
    tried, rivals = [str(config) for config in task.configs], len(on_their_own(problem, hardware))
    return {"kernels": right, "apart": apart, "tried": tried, "rivals": rivals}


def main(*names: str) -> dict[str, Any]:
    """Return what computes each of these problems, or of all."""
    return {name: measured(PROBLEMS[name]) for name in names or PROBLEMS}


if __name__ == "__main__":
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    with interpreter_cuda():
        answer = main(*sys.argv[2:])
    print(json.dumps(answer))
