"""Runs tests for a GPU without one, on the device on which Triton's interpreter executes kernels.

``python tools/rehearse_gpu_tests.py tests/gpu/test_fusion.py -k silu`` takes the arguments of pytest. It shows mistakes
in tests, and in what they test, before a GPU is there. A test takes seconds to minutes. What the device lacks fails:
CUDA graphs, events, faults of kernels, benchmarks that Inductor counts, and the rounding of float32 to float8.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.interpreter.device import interpreter_cuda

if __name__ == "__main__":
    with interpreter_cuda():
        import pytest

        sys.exit(pytest.main(["-p", "no:cacheprovider", "-W", "default", *sys.argv[1:]]))
