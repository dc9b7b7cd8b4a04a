"""What ``compare`` finds in traces of Triton kernels, on the device on which Triton's interpreter executes them."""

from pathlib import Path

from tests.forks import Forks
from tests.interpreter.conftest import found_by


def test_triton_s_kernels_have_their_sizes(with_device: Forks, tmp_path: Path) -> None:
    """Templates' kernels are GEMMs with sizes and type, and generated kernels have their problem and what they fuse."""
    found = found_by(with_device, "traced_gemms.py", tmp_path)
    assert found == {
        "40x56x24 float32": [2, "Triton GEMM 40 56 24"],
        "2x24x24x24 float32": [2, "Triton GEMM 24 24 24"],
        "33x56x24 float32": [2, "Triton GEMM ? 56 24"],
        "reduction inner x 48 r 24: mean": [2, "generated kernel reduction inner x 48 r 24: mean"],
    }
