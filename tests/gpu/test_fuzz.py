"""Generated tables, GEMMs, attention and grouped matmuls, run on the GPU and compared with float64."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", ["gemms", "attention", "grouped"])
def test_generated_cases_are_right(kind: str) -> None:
    """No generated table breaks a compile, changes a digit or has anything benchmarked; most of them are used."""
    options = ["--device=cuda", f"--kind={kind}", "--seed=3", "--cases=96", "--processes=8", "--seconds=30"]
    command = [sys.executable, str(ROOT / "tools" / "fuzz_hook.py"), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (answered,) = re.findall(r"rows answered (\d+)%", done.stdout.splitlines()[-1])
    assert int(answered) > (50 if kind == "gemms" else 30)
