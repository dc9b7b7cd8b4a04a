"""Running tests for a GPU where Triton's interpreter executes the kernels."""

from __future__ import annotations

from tests.forks import ROOT
from tests.interpreter.process import require_interpreter, run_program


def test_tests_for_a_gpu_run() -> None:
    """What is skipped without a GPU runs, and passes."""
    require_interpreter()
    done = run_program(ROOT / "tools" / "rehearse_gpu_tests.py", "tests/gpu/test_guards.py", "-q", "-k", "autocast")
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
