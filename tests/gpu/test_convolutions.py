"""1x1 convolutions as matmuls on a real GPU: digits, with cuDNN's layouts and with blocks that do not divide sizes."""

import pytest

from tests.gpu.conftest import Rows
from tests.programs.convolve import CASES, Case, norm, run
from tests.programs.convolve import rows as small

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cold")]

LARGE = {"block_m": 128, "block_n": 128, "block_k": 64, "group_m": 8, "num_stages": 3, "num_warps": 8}


@pytest.mark.parametrize("case", CASES)
def test_rows_compute_1x1_convolutions(case: str, rows: Rows) -> None:
    """Kernels of rows compute them and what follows as float64 does."""
    rows(*small())
    found = run(CASES[case])
    assert found["others"] == 0
    assert found["error"] == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_large_tiles(dtype: str, rows: Rows) -> None:
    """A batch norm whose rows of factors end within a large tile."""
    rows({"op": "mm", "configs": [{"template": "triton_mm", **LARGE}]})
    found = run(Case(norm, ((8, 256, 14, 14), (520, 256, 1, 1), *((520,),) * 4), dtype))
    assert (found["blocks"], found["others"]) == ([128], 0)
    assert found["error"] == pytest.approx(0, abs=0.01)
