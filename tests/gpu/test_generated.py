"""Tuning the generated kernels of a program on a real GPU."""

from pathlib import Path

import pytest

from diode_lut.dataset import read_dataset
from diode_lut.table import read_table
from diode_lut.templates.config import DEFAULT
from tests.commands import run

pytestmark = pytest.mark.gpu

PROGRAM = """
import torch
from torch.nn import functional

def function(a, w, b):
    return functional.layer_norm(a, (1536,), w, w), functional.gelu(b.transpose(1, 2) + 1)

tensors = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((4096, 1536), (1536,), (8, 512, 768))]
torch.compile(function)(*tensors)
"""


def test_generated_kernels_of_a_program_are_tuned(tmp_path: Path, python: Path) -> None:
    """Where no table answers, each kernel is measured, and the table that is built answers in the second run."""
    (tmp_path / "program.py").write_text(PROGRAM)
    variables = {"XDG_CONFIG_HOME": str(tmp_path), "DIODE_LUT_TIERS": "user"}
    done = run("tune", "--table", "own.json", "--", str(python), "program.py", cwd=tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert {row.op for row in read_table(tmp_path / "own.json").entries} == {"pointwise", "reduction"}
    (dataset,) = (tmp_path / "own.timings").glob("*.msgpack")
    records = list(read_dataset(dataset))
    assert len(records) >= 2
    for record in records:
        times = {timing.config: timing.ns for timing in record.timings}
        assert times[DEFAULT] is not None
        assert len(times) >= 6
    assert "generated kernel" in done.stderr
