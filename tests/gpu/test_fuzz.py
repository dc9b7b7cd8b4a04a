"""Generated tables, GEMMs, attention, grouped matmuls and float8, run on the GPU and compared with float64."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("kind", "cases", "share"), [("gemms", 96, 50), ("attention", 32, 30), ("grouped", 32, 30), ("scaled", 32, 50)]
)
def test_generated_cases_are_right(kind: str, cases: int, share: int) -> None:
    """No generated table breaks a compile, changes a digit or has anything benchmarked; rows answer a share of them."""
    options = ["--device=cuda", f"--kind={kind}", "--seed=3", f"--cases={cases}", "--processes=8"]
    command = [sys.executable, str(ROOT / "tools" / "fuzz_hook.py"), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (answered,) = re.findall(r"rows answered (\d+)%", done.stdout.splitlines()[-1])
    assert int(answered) > share
