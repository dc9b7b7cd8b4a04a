"""Our kernels stand for Inductor's: they need the same shared memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from diode_lut.collect.gemm import make_operands
from diode_lut.compilation.check import Trial, compile_trial
from diode_lut.domain.problem import Problem
from diode_lut.inductor.standalone import Kernel, lowering
from diode_lut.kernels.config import Config
from tests.fake_cuda import compile_triton, fake_cuda

CASES = [
    ("mm", "bfloat16", "nt", 4096, "triton_mm 64x128x64 g8 s3 w4"),
    ("mm", "float16", "tn", 4096, "triton_mm 128x128x32 g8 s4 w8"),
    ("mm", "float16", "nn", 4098, "triton_mm 64x64x32 g8 s5 w4"),
    ("mm", "tf32", "nn", 4096, "triton_mm 32x64x64 g8 s2 w4"),
    ("mm", "float32", "nt", 4096, "triton_mm 32x32x16 g8 s3 w2"),
    ("bmm", "bfloat16", "nn", 4096, "triton_bmm 64x32x128 g8 s2 w8"),
    ("mm", "bfloat16", "nt", 4096, "triton_mm_persistent_tma 128x64x64 g8 s3 w4"),
    ("mm", "float16", "tn", 4096, "triton_mm_persistent_tma 64x128x32 g8 s4 w8"),
]


@pytest.mark.parametrize(("op", "dtype", "layout", "size", "text"), CASES, ids=lambda value: str(value))
def test_shared_memory_is_that_of_inductors_kernel(
    op: str, dtype: str, layout: str, size: int, text: str, tmp_path: Path
) -> None:
    """For each template, layout and type, what Triton makes of both takes as much shared memory."""
    problem, config = (
        Problem.of(op, size, size, size, dtype=dtype, layout=layout, b=2 if op == "bmm" else 1),
        Config.parse(text),
    )
    with fake_cuda(), lowering(torch.device("cuda", 0)) as inductor:
        kernel = inductor.for_problem(problem, config, make_operands(problem, "meta"))
    assert isinstance(kernel, Kernel)
    source = Path(kernel.caller.bmreq.module_path).read_text(encoding="utf-8")
    theirs = compile_triton(source, tmp_path).metadata.shared
    assert compile_trial(Trial("sm_90", config, dtype, layout, problem.align)) == theirs
