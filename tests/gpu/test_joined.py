"""Joined matmuls and few rows on a real GPU: digits, with gradients and with the blocks of shipped rows."""

from collections.abc import Iterator

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.utils import run_and_get_code

from diode_lut.measure.gemm import TogetherCheck, make_together
from diode_lut.problem import Problem
from tests.gpu.conftest import Rows
from tests.programs.join import CASES, CONFIG, Case, mlp, projections, residual, run

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cold", "unpadded")]

LARGE = {**CONFIG, "block_m": 64, "block_n": 128, "block_k": 64, "group_m": 8, "num_stages": 4}


@pytest.fixture
def unpadded() -> Iterator[None]:
    """Without Inductor's benchmark for padding, after which matmuls may stay apart: no row decides about each alone."""
    with inductor_config.patch(shape_padding=False):
        yield


@pytest.mark.parametrize("case", CASES)
def test_kernel_computes_it(case: str, rows: Rows) -> None:
    """The matmuls are kernels of the template, and results and gradients are those of float64."""
    rows(*CASES[case].rows())
    found = run(CASES[case])
    assert found["kernels"] == CASES[case].kernels
    assert max(found["errors"]) < (1e-6 if CASES[case].dtype == "float32" else 0.01)


@pytest.mark.parametrize("m", [1, 16, 100])
def test_layers_of_a_decoder(m: int, rows: Rows) -> None:
    """Projections and a gated network of usual sizes, with large blocks and sizes that they do not divide."""
    rows({"op": "joined_mm", "configs": [LARGE]})
    for case in (
        Case(projections, ((m, 1000), (1032, 1000), (264, 1000), (264, 1000))),
        Case(mlp, ((m, 1024), (2744, 1024), (2744, 1024), (1024, 2744))),
    ):
        found = run(case)
        assert (found["kernels"], max(found["errors"]) < 0.01) == (1, True)


FLOAT8 = {
    "few": {"template": "triton_few_rows", "block_n": 4, "block_k": 512, "num_stages": 3, "num_warps": 4},
    "16": {**CONFIG, "block_n": 16, "block_k": 256, "num_stages": 5, "num_warps": 2},
    "64": {**LARGE, "block_n": 64, "block_k": 128},
}


@pytest.mark.parametrize(("m", "config"), [(1, "few"), (1, "16"), (16, "16"), (64, "64"), (500, "64")])
@pytest.mark.parametrize("variant", ["three", "swiglu"])
def test_float8(variant: str, m: int, config: str, rows: Rows) -> None:
    """Joined matmuls of float8, with scales of rows, compute what float64 does."""
    problem = Problem.of("joined_mm", m, 4096, 2048, dtype="float8_e4m3fn", layout="nt", variant=variant)
    rows({"op": "joined_mm", "configs": [FLOAT8[config]]})
    function, operands = make_together(problem, "cuda")
    results, codes = run_and_get_code(torch.compile(function), *operands)
    assert "TILES_N : tl.constexpr" in codes[0]
    assert TogetherCheck(problem, operands).passes(lambda: results)


@pytest.mark.parametrize("m", [1, 2, 3, 4])
@pytest.mark.parametrize(("k", "block_k"), [(1000, 256), (4096, 1024), (14336, 512)])
def test_few_rows_of_a_decoder(m: int, k: int, block_k: int, rows: Rows) -> None:
    """A projection with bias, activation and residual, a joined one, and a gated network, with shipped blocks."""
    config = {"template": "triton_few_rows", "block_n": 2, "block_k": block_k, "num_stages": 3, "num_warps": 4}
    rows(*({"op": op, "m": [1, 4], "configs": [config]} for op in ("joined_mm", "mm", "addmm")))
    for case in (
        Case(residual, ((m, k), (1001, k), (1001,), (m, 1001))),
        Case(projections, ((m, k), (1032, k), (264, k), (264, k))),
        Case(mlp, ((m, k), (999, k), (999, k), (k, 999)), kernels=2),
    ):
        found = run(case)
        assert (found["kernels"], max(found["errors"]) < 0.01) == (case.kernels, True)
