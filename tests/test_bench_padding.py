"""The benchmark of padding: small matrices, on a CPU, where nothing is padded."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench_padding import main, summary
from modelbench.records import read

ROOT = Path(__file__).parent.parent


@pytest.fixture
def run(python: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What the benchmark prints that writes to this file."""
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))

    def run(out: Path, *options: str) -> str:
        arguments = ["addmm", "--device=cpu", "--tiny", "--compiles=1", "--alone=1", f"--out={out}", *options]
        monkeypatch.setattr(sys, "argv", ["bench_padding.py", *arguments])
        main()
        return capsys.readouterr().out

    return run


@pytest.mark.slow
def test_each_compile_is_a_line(run: Callable[..., str], tmp_path: Path) -> None:
    """Both compiles are in the results, with a decision, a time and a small error; a second run finds all done."""
    printed = run(out := tmp_path / "padding.jsonl")
    lines = list(read([out]))
    assert [line["alone"] for line in lines] == [False, True]
    assert all(line["ms"] > 0 and line["error_of_result"] < 0.1 for line in lines), lines
    assert printed.startswith("2 of 2 compiles:\n  addmm (14, 44) ")
    assert run(out) == printed
    assert list(read([out])) == lines


def test_no_time_is_no_compile(run: Callable[..., str], tmp_path: Path) -> None:
    """Without time left no compile is started."""
    run(out := tmp_path / "padding.jsonl", "--seconds=0")
    assert not out.exists()


def test_what_differs_and_what_failed_is_said() -> None:
    """Decisions are counted, times are of those that were alone, and failures have their errors."""
    both: list[dict[str, Any]] = [
        {"alone": alone, "decisions": [["mm", alone]], "ms": 0.5 + alone} for alone in (True, False, False)
    ]
    assert summary("mlp", [*both, {"alone": False, "error": "took over 300 s"}]).splitlines() == [
        "2 of 3 compiles:",
        "  mm: not padded",
        "1 of 3 compiles:",
        "  mm: padded",
        "mlp: 1.5000 to 1.5000 ms in 1 processes, each alone",
        "failed: took over 300 s",
    ]
