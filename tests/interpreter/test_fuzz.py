"""Generated tables and graphs, executed without a GPU; tools/fuzz_hook.py does it without end."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from tests.forks import Forks
from tests.interpreter.process import ROOT, require_interpreter, run_program

SEED = 1


def fuzz(*options: str) -> subprocess.CompletedProcess[str]:
    """Run the fuzzer on the interpreter's device."""
    require_interpreter()
    return run_program(ROOT / "tools" / "fuzz_hook.py", "--device=interpreter", *options)


def test_generated_graphs_are_right() -> None:
    """No generated table breaks a graph, changes a digit or leaves memory unwritten; most graphs get a row's kernel."""
    done = fuzz(f"--seed={SEED}", "--cases=8")
    assert done.returncode == 0, done.stdout + done.stderr
    (executed,) = re.findall(r"(\d+)% with a row's Triton kernel", done.stdout.splitlines()[-1])
    assert int(executed) >= 50


@pytest.mark.parametrize("kind", ["attention", "grouped", "scaled"])
def test_generated_ops_are_right(kind: str) -> None:
    """No generated table breaks attention or another op or changes a digit; a third get a row's kernel."""
    done = fuzz(f"--kind={kind}", f"--seed={SEED}", "--cases=12")
    assert done.returncode == 0, done.stdout + done.stderr
    (executed,) = re.findall(r"(\d+)% with a row's Triton kernel", done.stdout.splitlines()[-1])
    assert int(executed) >= 33


@pytest.mark.parametrize(
    ("kind", "first", "end"), [("graphs", 3, 5), ("attention", 2, 4), ("grouped", 3, 4), ("scaled", 1, 3)]
)
def test_broken_kernels_are_found(with_device: Forks, kind: str, first: int, end: int) -> None:
    """Cases whose rows' kernels leave something unwritten fail, and are not taken for a failure of Inductor's."""
    program = str(ROOT / "tests" / "programs" / "fuzz_broken_kernels.py")
    done = with_device.run(program, kind, str(SEED), str(first), str(end))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == ["failed"] * (end - first)


def test_nothing_runs_on_the_fake_device() -> None:
    """Graphs are refused for a device on which nothing runs, and the message names the one to use."""
    done = run_program(ROOT / "tools" / "fuzz_hook.py", "--device=fake", "--kind=graphs")
    assert done.returncode == 2
    assert "use interpreter" in done.stderr
