"""Flex attention on a real GPU: the row's kernels run, nothing is benchmarked, and results are those of float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._inductor.utils import run_and_get_code
from torch.nn.attention.flex_attention import flex_attention

from diode_lut.problem import Problem
from tests.gpu.gemms import benchmarks, collected
from tests.programs.attention import ROWS, Case, run

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cold")]

Rows = Callable[..., None]

CASES = {
    "causal": Case(1024, 1024, 64, 64, 8, gradients=True),
    "odd lengths": Case(1000, 777, 128, 128, 4, mask="none", gradients=True),
    "shared keys": Case(512, 512, 96, 96, 8, 4, "window", gradients=True),
    "documents, soft cap": Case(2048, 2048, 64, 64, 2, mask="documents", capped=True, gradients=True),
    "other values": Case(512, 512, 192, 128, 4),
    "long heads": Case(512, 512, 256, 256, 2),
    "decoding": Case(1, 4096, 128, 128, 32, 8, "none"),
    "decoding some": Case(20, 1000, 64, 64, 8, 2, "none"),
}
TOLERANCES = {"bfloat16": 0.03, "float16": 0.005, "float32": 2e-5}
BLOCKS = {"BLOCK_M": 64, "BLOCK_N": 32}
OF_GRADIENTS = {"BLOCK_M1": 16, "BLOCK_N1": 64, "BLOCK_M2": 64, "BLOCK_N2": 32}


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("case", CASES)
def test_rows_compute_attention(case: str, dtype: str, rows: Rows) -> None:
    """The rows' kernels run without a benchmark, and results and gradients are those of float64."""
    rows(*ROWS)
    found = run(CASES[case], dtype)
    if "decoding" in case:
        assert found["blocks"]["BLOCK_N"] == 32
    else:
        assert found["blocks"] == {**BLOCKS, **(OF_GRADIENTS if CASES[case].gradients else {})}
    assert benchmarks() == 0
    assert max(found["errors"]) < TOLERANCES[dtype]


@pytest.mark.usefixtures("mode")
def test_user_options_win(rows: Rows) -> None:
    """Blocks that the user sets are the kernel's, in a table's place."""
    rows(*ROWS)
    inputs = [torch.randn(1, 2, 256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    options = {"BLOCK_M": 32, "BLOCK_N": 16}
    _, codes = run_and_get_code(torch.compile(lambda q, k, v: flex_attention(q, k, v, kernel_options=options)), *inputs)
    assert "BLOCK_M : tl.constexpr = 32\n" in "\n".join(codes)


@pytest.mark.parametrize("op", ["flex_attention", "flex_attention_backward", "flex_decoding"])
def test_collect_measures_it(op: str, tmp_path: Path) -> None:
    """Both stages of a collection measure the default and some kernels, and find no result wrong."""
    m = 1 if op == "flex_decoding" else 256
    variant = "full" if op == "flex_decoding" else "causal"
    problem = Problem.of(op, m, 1024 if m == 1 else m, 64, dtype="bfloat16", layout="nt", variant=variant, h=4)
    for (record,) in collected([problem], tmp_path / "attention.msgpack").values():
        assert len({timing.config.template for timing in record.timings if timing.ns}) == 2
