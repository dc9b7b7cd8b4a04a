"""What ``compare`` finds in traces of Triton kernels, on the device on which Triton's interpreter executes them."""

from pathlib import Path

import pytest

from tests.forks import Forks
from tests.interpreter.conftest import found_by


@pytest.mark.parametrize("kind", [pytest.param((), marks=pytest.mark.slow), ("fixed",)])
def test_triton_s_kernels_have_their_sizes(with_device: Forks, tmp_path: Path, kind: tuple[str, ...]) -> None:
    """Templates' kernels are GEMMs with sizes and type, and generated kernels have their problem and what they fuse.

    A kernel has the same name whether Inductor or a table decides, or ``compare`` would not compare it.
    """
    found = found_by(with_device, "traced_gemms.py", tmp_path, *kind)
    fused = "abs_add_mean_mul_reciprocal_transpose"
    generated = (
        "pointwise flat x 960: tanh",
        "reduction default x 56 r 24: sum",
        f"reduction mixed x 48 r 24: {fused}",
    )
    assert found == {
        "40x56x24 float32": [2, "Triton GEMM 40 56 24"],
        "2x24x24x24 float32": [2, "Triton GEMM 24 24 24"],
        "33x56x24 float32": [2, "Triton GEMM ? 56 24"],
        **{name: [2, f"generated kernel {name}"] for name in generated},
    }
