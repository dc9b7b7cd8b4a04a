"""Who is blamed for a generated case that ends its worker's process, or all that the GPU does for that, or hangs."""

import argparse
import json
import sys

import pytest

from tools import fuzz_hook
from tools.fuzz_hook import Team

OPTIONS = {"device": "fake", "kind": "gemms", "seed": 0, "first": 0, "cases": 3, "processes": 1, "seconds": 1e6}

WORKER = """
import json, os, sys, time
how, off, numbers = json.loads(sys.argv[1]), "--off" in sys.argv, json.loads(sys.argv[2])
for number in numbers:
    print(json.dumps({"number": number, "status": "begun"}), flush=True)
    if number == 1 and how == "dies":
        os.abort()
    if number == 1 and how == "hangs" and not off:
        time.sleep(60)
    if number == 1 and (how == "faults anyway" or how == "faults" and not off):
        print(json.dumps({"number": number, "status": "fault", "detail": "illegal"}), flush=True)
        sys.exit(1)
    print(json.dumps({"number": number, "status": "kernel", "detail": ""}), flush=True)
"""
"""Does three cases, the second of which is special."""


class _Team(Team):
    """A team of workers that compile nothing."""

    how = ""

    def _command(self, share: range) -> list[str]:
        return [sys.executable, "-c", WORKER, json.dumps(self.how), json.dumps(list(share))]


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("faults", 1, "1 failed, 2 kernel"),
        ("faults anyway", 0, "2 kernel, 1 void"),
        ("dies", 0, "2 kernel, 1 void"),
        ("works", 0, "3 kernel"),
    ],
)
def test_a_case_without_diode_lut_tells_whose_fault_it_is(
    how: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault is a failure only if there is none without diode_lut, and the cases after it are done."""
    team = _Team(argparse.Namespace(**OPTIONS))
    team.how = how
    assert team.run() == code
    assert said in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    ("limits", "seconds", "code", "said"),
    [
        pytest.param({"PATIENCE_S": 2.0}, 1e6, 1, "1 failed, 2 kernel", id="a case that does not end"),
        pytest.param({"GRACE_S": 0.5}, 1.5, 0, "1 kernel", id="a case that outlasts the time of all"),
    ],
)
def test_a_case_that_hangs(
    limits: dict[str, float],
    seconds: float,
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A case that does not end fails, and those after it are done. One that the end of all cuts counts for nothing."""
    for name, value in limits.items():
        monkeypatch.setattr(fuzz_hook, name, value)
    team = _Team(argparse.Namespace(**OPTIONS | {"seconds": seconds}))
    team.how = "hangs"
    assert team.run() == code
    assert f"{said};" in capsys.readouterr().out.splitlines()[-1]
