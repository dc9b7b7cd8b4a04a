"""Generated tables and graphs, executed without a GPU; tools/fuzz_hook.py does it without end."""

import json

import pytest

from tests.forks import ROOT, Forks

pytestmark = pytest.mark.slow

FUZZER = str(ROOT / "tools" / "fuzz_hook.py")
SEED = 1


@pytest.mark.parametrize(
    ("kind", "cases", "least"),
    [("graphs", 8, 0.5), *((op, 12, 1 / 3) for op in ("attention", "generated", "grouped", "scaled"))],
)
def test_generated_cases_are_right(with_device: Forks, kind: str, cases: int, least: float) -> None:
    """No generated table breaks a compile, changes a digit or leaves memory unwritten; many cases get a row's kernel.

    The cases are those of one of the fuzzer's workers.
    """
    options = ["--device=interpreter", f"--kind={kind}", f"--seed={SEED}"]
    done = with_device.run(FUZZER, *options, f"--cases={cases}", "--step=1")
    assert done.returncode == 0, done.stderr
    reports = [report for report in map(json.loads, done.stdout.splitlines()) if report["status"] != "begun"]
    assert [each["number"] for each in reports] == [*range(cases)]
    failed = [f"{each['detail']}\n{options} --first={each['number']}" for each in reports if each["status"] == "failed"]
    assert not failed, "\n".join(failed)
    tried = [each["status"] for each in reports if each["status"] != "void"]
    assert tried.count("kernel") >= least * len(tried)


@pytest.mark.parametrize(
    ("kind", "first", "end"),
    [
        ("graphs", 4, 6),
        ("attention", 2, 4),
        ("generated", 6, 9),
        ("grouped", 3, 4),
        ("scaled", 2, 3),
        ("scaled", 28, 29),
    ],
)
def test_broken_kernels_are_found(with_device: Forks, kind: str, first: int, end: int) -> None:
    """Cases whose rows' kernels leave something unwritten fail, and are not taken for a failure of Inductor's."""
    program = str(ROOT / "tests" / "programs" / "fuzz_broken_kernels.py")
    done = with_device.run(program, kind, str(SEED), str(first), str(end))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == ["failed"] * (end - first)


def test_nothing_runs_on_the_fake_device(with_device: Forks) -> None:
    """Graphs are refused for a device on which nothing runs, and the message names the one to use."""
    done = with_device.run(FUZZER, "--device=fake", "--kind=graphs")
    assert done.returncode == 2
    assert "use interpreter" in done.stderr
