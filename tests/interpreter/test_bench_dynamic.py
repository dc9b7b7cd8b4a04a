"""The benchmark of what a call with several kernels costs, where Triton's interpreter executes them."""

import json
from pathlib import Path

import pytest

from tests.forks import ROOT, Forks

pytestmark = pytest.mark.slow


def test_a_call_with_three_kernels_is_timed(tmp_path: Path, with_device: Forks) -> None:
    """The code that is timed has one kernel and three, and is run at the sizes that are asked for."""
    out = tmp_path / "dispatch.jsonl"
    program = "\n".join(
        [
            "from pathlib import Path",
            "from tests.interpreter.device import interpreter_cuda",
            "with interpreter_cuda():",
            "    from modelbench.dynamic import measure_dispatch",
            f"    measure_dispatch(Path({str(out)!r}), 0, (8, 40), calls=1)",
        ]
    )
    done = with_device.run("-c", program, cwd=ROOT / "tools")
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    assert [(line["m"], line["kernels"], line["turns"]) for line in lines] == [(m, [1, 3], 6) for m in (8, 40)]
