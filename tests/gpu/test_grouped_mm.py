"""Grouped matmuls on a real GPU: the row's kernel runs, nothing is benchmarked, and results are those of float64."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from diode_lut.problem import Problem
from diode_lut.templates.config import Config
from tests.gpu.gemms import benchmarks, collected
from tests.programs.grouped_mm import CONFIG, Case, run

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cold")]

Rows = Callable[..., None]

CASES = {
    "experts of Mixtral": Case((3, 9, 0, 20, 8, 8, 15, 1), 1024, 4096),
    "experts of Qwen3": Case((1, 0, 2, 1) * 32, 1536, 2048),
    "row-major": Case((70, 0, 130, 56), 2880, 2880, "nn"),
    "many rows": Case((1000, 24, 3000), 512, 256),
    "gate and up": Case((30, 34), 1024, 512, then="gate"),
    "gradients": Case((64, 8, 256, 56), 768, 1408, gradients=True),
}
LARGE = {**CONFIG, "block_m": 128, "block_n": 64, "block_k": 128, "num_stages": 4, "num_warps": 8}


def row(config: dict[str, object]) -> dict[str, object]:
    return {"op": "grouped_mm", "configs": [config]}


@pytest.fixture(autouse=True)
def _from_sm_90() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("Inductor has the kernel from sm_90")


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("config", [CONFIG, LARGE], ids=["few rows", "many rows"])
@pytest.mark.parametrize("case", CASES)
def test_row_computes_it(case: str, config: dict[str, object], rows: Rows) -> None:
    """The row's kernel runs for the result and the gradient of A, and digits are right; B's gradient is Inductor's."""
    rows(row(config))
    found = run(CASES[case])
    assert found["kernels"] >= (2 if CASES[case].gradients else 1)
    if not CASES[case].gradients:
        assert found["library"] == 0
        assert benchmarks() == 0
    assert max(found["errors"]) < 0.008


@pytest.mark.usefixtures("mode")
def test_row_for_the_library(rows: Rows) -> None:
    """A row that says aten has the library called without a benchmark."""
    rows(row({"template": "aten"}))
    found = run(CASES["experts of Mixtral"])
    assert (found["kernels"], found["library"]) == (0, 1)
    assert benchmarks() == 0
    assert max(found["errors"]) < 0.008


def test_collect_measures_it(tmp_path: Path) -> None:
    """Both stages of a collection measure the library and some kernels, and find no result wrong."""
    problem = Problem.of("grouped_mm", 128, 512, 256, dtype="bfloat16", layout="nt", b=4)
    for (record,) in collected([problem], tmp_path / "grouped.msgpack").values():
        assert not [timing for timing in record.timings if timing.reason]
        assert {timing.config.template for timing in record.timings if timing.ns} == {"aten", "triton_grouped_mm"}
        assert Config("aten") in {timing.config for timing in record.timings}
