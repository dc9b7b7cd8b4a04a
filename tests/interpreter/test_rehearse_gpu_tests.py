"""Running tests for a GPU where Triton's interpreter executes the kernels."""

from tests.forks import ROOT, Forks


def test_tests_for_a_gpu_run(with_device: Forks) -> None:
    """What is skipped without a GPU runs, and passes."""
    program = str(ROOT / "tools" / "rehearse_gpu_tests.py")
    done = with_device.run(program, "tests/gpu/test_guards.py", "-q", "-k", "autocast")
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
