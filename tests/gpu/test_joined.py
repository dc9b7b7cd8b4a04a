"""Joined matmuls on a real GPU: digits, with gradients and with the blocks of shipped rows."""

from __future__ import annotations

import pytest

from tests.gpu.conftest import Rows
from tests.programs.join import CASES, CONFIG, Case, mlp, projections, run

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cold")]

LARGE = {**CONFIG, "block_m": 64, "block_n": 128, "block_k": 64, "group_m": 8, "num_stages": 4}


@pytest.mark.parametrize("case", CASES)
def test_joined_kernel_computes_it(case: str, rows: Rows) -> None:
    """The matmuls are one kernel, and results and gradients are those of float64."""
    rows({"op": "joined_mm", "configs": [CONFIG]})
    found = run(CASES[case])
    assert found["joined"] == CASES[case].joined
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
        assert (found["joined"], max(found["errors"]) < 0.01) == (1, True)
