"""Generated tables and GEMMs through the hook, a few of those that tools/fuzz_hook.py does without end."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch._inductor.utils import fresh_cache

from tests.fake_cuda import fake_cuda
from tests.fuzzing.cases import Case, draw_case
from tests.fuzzing.check import Outcome, executed, lowered
from tests.fuzzing.kinds import OP_KINDS

pytestmark = pytest.mark.slow

SEED = 2


def statuses(device: str, numbers: Iterable[int], try_case: Callable[[Case], Outcome]) -> list[str]:
    """What becomes of cases that can tell anything; fails at one that fails, with the command that repeats it."""
    found = []
    for number in numbers:
        case = draw_case(SEED, number)
        outcome = try_case(case)
        command = f"python tools/fuzz_hook.py --device {device} --seed {SEED} --first {number} --cases 1"
        assert outcome.status != "failed", f"{case}\n{outcome.detail}\n{command}"
        found.append(outcome.status)
    return [status for status in found if status != "void"]


def test_generated_cases_become_kernels_that_triton_compiles(tmp_path: Path) -> None:
    """No generated table breaks the way to a kernel that fits an H200; half of the GEMMs get a row's kernel."""
    with fake_cuda():
        found = statuses("fake", range(32), lambda case: lowered(case, tmp_path, compiling=case.number % 8 == 0))
    assert found.count("kernel") >= len(found) / 3
    assert found.count("miss") <= len(found) / 2


@pytest.mark.parametrize("kind", OP_KINDS)
def test_generated_ops_become_kernels_that_triton_compiles(tmp_path: Path, kind: str) -> None:
    """No generated table breaks the way to a kernel that fits an H200; a third of the cases get a row's kernel."""
    draw, lower, _ = OP_KINDS[kind]
    with fake_cuda():
        cases = [draw(SEED, number) for number in range(16 if kind == "attention" else 24)]
        found = [(case, lower(case, tmp_path, compiling=case.number % 8 == 0)) for case in cases]
    assert [f"{case}: {outcome.detail}" for case, outcome in found if outcome.status == "failed"] == []
    assert [outcome.status for _, outcome in found].count("kernel") >= len(found) / 3


def test_generated_cases_run_right_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No generated table breaks a compile on the CPU or changes a digit, for most of which Inductor has no choice."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TORCHINDUCTOR_DEBUG_COMPILE", "1")
    with fresh_cache():
        statuses("cpu", range(3), lambda case: executed(case, "cpu", tmp_path))
